"""Determines what TorchInductor generates for a plan: kernels, bytes, and for GPUs the code. Nothing runs.

`scheduled` returns the kernels of a model, or of a `Graph` alone, which `to_fx` converts to a joint FX graph.
`traffic_count` reads the kernels from Inductor's schedule, also during a real compilation. `duplicate` is a pass that
rewrites graphs so that kernels compute values again. `lowered_graphs` is their common entry to Inductor. `cubins` gets
the code that Inductor writes for a GPU, and compiles it.

This package imports `remat.pytorch.run`, `.read` and `.seam`, and the rest of `remat`. Begin reading in `scheduled`.
"""
