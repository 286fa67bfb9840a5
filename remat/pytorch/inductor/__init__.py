"""Determines what TorchInductor generates for a plan: kernels, bytes, and for GPUs the code. Nothing runs.

`scheduled` reads the kernels from Inductor's schedule: during a compilation, or for a `Graph`, which `to_fx` converts
to a joint FX graph. `rehearsed` runs the code that Inductor writes on fake tensors, to get its peak; `cubins` compiles
that code for a GPU. `duplicate` is a pass that rewrites graphs so that kernels compute values again.

This package imports `remat.pytorch.run`, `.read` and `.seam`, and the rest of `remat`. Begin reading in `scheduled`.
"""
