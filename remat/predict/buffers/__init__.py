"""Follows the memory of a compiled step: which buffers the code of TorchInductor allocates, and when it frees them.

Everything is found from the graph alone, without torch: the kernels of a plan (`remat.predict.kernels`), then what
Inductor does with their buffers, after the rules of torch 2.13. Begin reading in `step`. The rules, in the order in
which they apply, each with the module that holds it:

- *Order* (`units`, `orders`). Of four orders of the kernels, the one with the smallest peak by Inductor's own sum.
- *Steps* (`allocated`). On CPUs the kernels between two calls of a library are one function: what any of them writes
  is allocated before it, and nothing is freed until it returns. For GPUs each kernel is a step.
- *What is in memory* (`allocated`). Not what only its own kernel reads; but what passes between kernels that share
  outer loops alone is, unless it is an array of one inner loop. The parts of a concatenation lie in the whole, a
  scatter writes into its target.
- *Written over* (`allocated`). A kernel writes over what it reads for the last time just where it writes: a result of
  this pass, or what was saved for it and nobody else can see.
- *Taken again* (`allocated`). What was freed is taken for a buffer of the same size and type that is allocated later,
  unless it would have to be kept so long that Inductor's sum rises. What an operator of eager's returned never is.
- *Between the passes* (`step`). What the forward pass returns for the backward pass is held until that has read it for
  the last time: saved inputs of which the pass made a copy in another layout, as the filters of convolutions, too.
- *Copies to the host* (`remat.predict.kernels.host_copies`). Each copy is a call, which Inductor may move like any
  other: by its sum, in which what is on the host has no bytes. So a value is copied back as late as it can be. On the
  device it is there until it is copied, and from when it is copied back.
- *Calls* (`workspaces`). A library may take memory while it runs. What is known of it is stated there.

Not counted are parameters, arguments, and what a library does not take from torch's allocator. Tangents are counted
only where other graphs hand them over.
"""

from remat.predict.buffers.floor import step_floor
from remat.predict.buffers.step import ALONE, Exchanged, StepMemory, memory_of, records_calls

__all__ = ["ALONE", "Exchanged", "StepMemory", "memory_of", "records_calls", "step_floor"]
