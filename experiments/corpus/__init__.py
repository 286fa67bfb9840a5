"""Makes the joint graphs of published models in `experiments/instances` anew: `python -m experiments.corpus`.

`catalogue` lists the instances, each a recipe (`experiments.models.recipe`) that captures a model without running it,
and `readme` writes the page about them. Solvers and predictions are compared on these files without PyTorch and without
a GPU; `remat corpus` lists and copies them. Begin reading in `catalogue`.
"""
