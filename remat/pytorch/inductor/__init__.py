"""Finds what TorchInductor makes of a plan: kernels, bytes, and for GPUs their code. Nothing runs.

`scheduled` gives the kernels of a model, or of a `Graph` alone, which `to_fx` turns back into a joint FX graph;
`traffic_count` reads them off what Inductor has scheduled, also while a real compilation runs. `duplicate` is a pass
that changes graphs, so that kernels compute values again, with `dry_run` to ask Inductor what comes of it.
`lowered_graphs` is the way to Inductor that these share. `triton_code` has Inductor write what it has scheduled for a
GPU, and `cubins` has Triton compile it.

This room imports the floors of `remat`, and `remat.pytorch.run`, `.read` and `.seam`. Begin with `scheduled`.
"""
