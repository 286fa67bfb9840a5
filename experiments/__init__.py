"""Reproduces the project's claims by drivers, each with one command, and makes the models that they take.

`models` and `report` are what the others stand on. `accuracy` and `bench` compare predictions with what happens, and
plans with PyTorch's; `compare_solvers` compares solvers, `sources` has what the sources print, `rivals` the methods of
other papers, `benchmark` instances with the best known answers, `corpus` makes their graphs, and `recipes` are training
loops of others. Each driver keeps its rows in `results`, and goes on where it stopped; `pages` writes the pages there
again. `demo` shows the whole library on one small transformer. The library imports nothing from here. Begin with
`python -m experiments.demo`.
"""
