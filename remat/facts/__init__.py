"""Floor 1: what is true of a joint graph, before anything has a price.

`Graph` holds the values of a training step's forward and backward pass as plain columns: sizes, operators, storages,
uses, and what can never be saved or recomputed, each with its reason (`Bans`). A graph comes from a model
(`remat.pytorch`), from a file (`graph_file`), from code that names each value (`graph_builder`), or from the corpus
of published models (`corpus`).

Modules of this floor import each other, `remat.errors` and `remat.words`, and nothing above. They need no torch.
Begin with `graph`; its class docstring lists every fact.
"""
