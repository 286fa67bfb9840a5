"""Determines what TorchInductor generates for a plan: kernels, bytes, and for GPUs the code. Nothing runs.

`scheduled` returns the kernels of a `Graph`, which `to_fx` converts to a joint FX graph. `traffic_count` reads the
kernels from Inductor's schedule, also during a real compilation. `duplicate` is a pass that rewrites graphs so that
kernels compute values again. `cubins` gets the code that Inductor writes for a GPU, and compiles it.

This package imports `remat.pytorch.run`, `.read` and `.seam`, and the rest of `remat`. Begin reading in `scheduled`.
"""
