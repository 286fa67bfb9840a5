"""Turns a plan into a policy of selective activation checkpointing, for models that are not compiled.

Eager PyTorch runs other operators than the joint graph has. `recording` lists what it runs, `expansion` takes each
operator apart as the compiler would, `correspondence` finds the joint graph's values among the pieces, and
`policy` is what `torch.utils.checkpoint` asks about each operator.

This room imports the floors of `remat`, and `remat.pytorch.read` and `.seam`. Begin with `selective`.
"""
