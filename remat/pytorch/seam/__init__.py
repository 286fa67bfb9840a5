"""Contains every use of torch's private names, and every patch of torch during a call of this library.

`internals` has the table of the private names that are used, and checks it; `torch_names` re-exports types and
functions that other packages need. What torch does itself stays torch's: `torch_partitioner` replaces only its choice
of saved values, `inductor_lowering` reads its kernels instead of its code, and `thread_patch` hides patches from other
threads. `fakes` and `reachable` run a model without memory and without side effects; `allocations` lists what a call
allocates. `triton_compiler` makes machine code of a kernel, and `cache_notes` writes into torch's cache on disk.

`virtual_gpu` compiles for a GPU that is missing: `gpu_sheets` has its properties, `driver_answers` and
`autograd_walk` replace what torch would ask a driver, `fused_attention` replaces libtorch's choice of an attention
kernel, and `reachable` moves a model to that GPU.

This package imports torch, `remat.errors`, `remat.words` and `Marked`. Others import from its modules: `from
remat.pytorch.seam.torch_partitioner import partition`. Begin reading in `internals` and `thread_patch`.
"""
