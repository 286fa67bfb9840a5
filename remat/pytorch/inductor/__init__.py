"""Determines what TorchInductor generates for a plan: kernels, bytes, and for GPUs the code. Nothing runs.

`scheduled` returns the kernels of a model, or of a `Graph` alone, which `to_fx` converts to a joint FX graph.
`traffic_count` reads the kernels from Inductor's schedule, also during a real compilation. `duplicate` is a pass that
rewrites graphs so that kernels compute values again; it uses `dry_run` to get Inductor's schedule. `lowered_graphs` is
their common entry to Inductor. `triton_code` gets the code that Inductor writes for a GPU, and `cubins` compiles it.

This package imports `remat.pytorch.run`, `.read` and `.seam`, and the rest of `remat`. Begin reading in `scheduled`.
"""
