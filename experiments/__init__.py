"""Reproduces the project's claims by drivers, each with one command, and makes the models that they take.

`models` and `report` are what the others stand on; `paper`, `bench`, `accuracy`, `traffic_study`, `compare_solvers`,
`rivals` and `corpus` each answer one kind of question, and their packages say with which commands. `demo` shows the
whole library on one small transformer, `gpu_smoke` tries it on a GPU, and `pages` writes the pages of `results` again
from their data.
The library imports nothing from here. Begin with `python -m experiments.demo`.
"""
