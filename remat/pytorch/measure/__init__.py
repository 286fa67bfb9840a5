"""Measures what a training step really does: bytes moved, kernels, memory kept and held, time.

`training_step` measures a model under each of several strategies (`step_strategies`), compares what they compute
(`step_values`), counts what autograd keeps (`saved`) and the most memory held (`peak`). For estimators, `timing` has
the clock, `profiling` times a graph's operators one by one, and `ceilings` measures the device. `torch_budgets` has
PyTorch's own plans to compare with, and `torch_oracles` lets `remat.refine` ask Inductor or the clock.

This room may import all of `remat` and of `remat.pytorch`; `remat.predict` and `remat.improve` ask it inside a call.
Begin with `training_step`.
"""

from remat.pytorch.measure.training_step import measure

__all__ = ["measure"]
