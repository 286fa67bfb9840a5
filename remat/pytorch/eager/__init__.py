"""Applies decisions about whole modules to models that are not compiled: `remat.choose_regions`.

`regions` is what users see, also for Meta's `torch_remat`; `region_contexts` keeps what saved modules compute while
`torch.utils.checkpoint` runs their layer again.

This package imports `remat.pytorch.read` and `.seam`, and the rest of `remat`. Begin reading in `regions`.
"""
