"""Converts a plan to a selective checkpoint policy, for models that are not compiled.

Eager PyTorch runs other operators than those of the joint graph. `recording` lists the operators that run, `expansion`
decomposes each one like the compiler, `correspondence` finds the joint graph's values among the pieces, and `policy`
answers `torch.utils.checkpoint` for each operator.

This package imports `remat.pytorch.read` and `.seam`, and the rest of `remat`. Begin reading in `selective`.
"""
