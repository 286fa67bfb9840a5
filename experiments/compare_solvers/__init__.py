"""Every solver on every instance of the corpus under several cost models: `python -m experiments.compare_solvers`."""
