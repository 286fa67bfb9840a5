"""Holds all that touches torch's private names, and exchanges functions of torch while a call of this library runs.

`internals` has one table of the private names that are called, and checks it; `torch_names` hands on the types that
other rooms are written with. What torch does by itself stays torch's: `torch_partitioner` exchanges its choice of
saved values, `inductor_lowering` looks at its kernels instead of its code, and `thread_patch` sees to it that no other
thread notices. `fakes` and `restore` run a model without memory, and without a trace.

`virtual_gpu` compiles for a GPU that is not there: `gpu_sheets` say what it is like, `device_guard` and
`autograd_walk` stand in for what libtorch asks of a driver, `fused_attention` for what it would choose with one, and
`fake_device` puts a model onto it.

This room imports torch, `remat.errors`, and nothing else of the library. Others import its modules' names:
`from remat.pytorch.seam.torch_partitioner import partition`. Begin with `internals` and `thread_patch`.
"""
