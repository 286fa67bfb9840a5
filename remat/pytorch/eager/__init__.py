"""Applies decisions about whole modules to models that are not compiled: `remat.choose_regions`.

`regions` is what users see; `region_contexts` keeps what saved modules compute while `torch.utils.checkpoint` runs
their layer again; `torch_remat_regions` marks the same modules for Meta's `torch_remat`.

This package imports `remat.pytorch.read` and `.seam`, and the rest of `remat`. Begin reading in `regions`.
"""
