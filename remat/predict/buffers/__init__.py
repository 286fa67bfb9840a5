"""Predicts the memory of a compiled step: which buffers the code of TorchInductor allocates, and when it frees them.

The prediction needs only the graph, not torch. It begins with the kernels of a plan (`remat.predict.kernels`), and does
with their buffers what Inductor of torch 2.13 does. Begin in `step`. The rules, in the order in which they apply:

- *Order* (`units`, `orders`). Of four orders of the kernels, Inductor takes the one with the smallest peak by its own
  estimate. `remat.compile` offers it two more.
- *Steps* (`allocated`). On CPUs, the kernels between two library calls are one function: the buffers that they write
  are allocated before it, and none is freed until it returns. On GPUs, each kernel is a step.
- *Buffers in memory* (`allocated`). A buffer that only its own kernel reads is not in memory. A buffer between loops
  that share only outer loops is in memory, unless it is an array of one inner loop. The parts of a concatenation are
  parts of the whole, and a scatter writes into its target. A user's Triton kernel writes into an argument that the pass
  computes and nothing else reads, such as an empty tensor, which no kernel fills. Of any other argument, it writes into
  a copy: where that is a part of a tensor, TorchInductor copies the tensor from its beginning to the end of the part.
- *Overwriting* (`allocated`). A kernel overwrites an argument that it reads exactly where it writes, if no later
  kernel reads it. The argument must be a buffer that this pass has written, or a saved value without other owners.
- *Reuse* (`allocated`). The memory of a freed buffer is reused for a later buffer of the same size and dtype, unless
  keeping it so long raises Inductor's estimate. The result of an eager operator is never reused.
- *Between the passes* (`step`). What the forward pass returns for the backward pass is alive until its last reader
  there. This includes saved inputs that the pass copied into another layout, such as filters of convolutions.
- *Copies to the host* (`remat.predict.kernels.host_copies`). Each copy is a call that Inductor may move like any other.
  In Inductor's estimate, a value on the host has no bytes, so it is copied back as late as possible. The value is on
  the device until it is copied, and again from its copy back.
- *Calls* (`workspaces`). A library call may allocate workspace memory; `workspaces` has what is known of it.

Parameters, arguments, and memory that a library does not take from torch's allocator are not counted. Tangents are
counted only if other graphs compute them.
"""

from remat.predict.buffers.floor import step_floor
from remat.predict.buffers.step import ALONE, Exchanged, StepMemory, memory_of, records_calls

__all__ = ["ALONE", "Exchanged", "StepMemory", "memory_of", "records_calls", "step_floor"]
