"""Measures a training step: bytes moved, kernels, memory saved and held, time.

`training_step` measures a model under each of several strategies, compares their results
(`step_values`), and measures what autograd saves and the peak (`saved`). For estimators, `timing` has the clock and
times a graph's operators one by one, and `ceilings` measures the device. `torch_budgets` has PyTorch's own plans.

This package may import all of `remat`; `remat.predict` and `remat.improve` import it only inside a call. Begin reading
in `training_step`.
"""

from remat.pytorch.measure.training_step import measure

__all__ = ["measure"]
