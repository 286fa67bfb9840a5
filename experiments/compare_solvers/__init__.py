"""Runs every solver on every instance of the corpus under several cost models: `python -m experiments.compare_solvers`.

Solvers run in processes that are killed at a time limit (`supervision`, `child`), here or on a cluster (`scheduling`);
their rows (`rows`) are kept in a database (`store`), so that a run that is stopped goes on. Then `agreement` says
whether any answer refutes another, `performance_profile` who is fast how often, and `summary` and `solver_pictures`
write the page `experiments/results/solvers.md`. Begin reading in `case`, the unit of work, and `solving`.
"""
