"""Joint graphs of published models, files in `experiments/instances`: `python -m experiments.corpus` makes them anew.

`catalogue` lists the instances, each a recipe (`experiments.models.recipe`) that captures a model without running it,
and `readme` writes the page about them. Solvers and predictions are compared on these files without PyTorch and without
a GPU; `remat corpus` lists and copies them. Begin reading in `catalogue`.
"""
