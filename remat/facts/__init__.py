"""Holds the facts of a joint graph, without prices.

`Graph` holds the values of a training step's forward and backward pass as plain columns: sizes, operators, storages,
uses, and what can never be saved or recomputed, with reasons (`Bans`). A graph comes from a model (`remat.pytorch`),
from a file (`graph_file`), from code that names each value (`graph_builder`), or from the corpus of published models
(`corpus`).

The modules of this package import only each other, `remat.errors` and `remat.words`, and need no torch. Begin reading
in `graph`; its class docstring lists every fact.
"""
