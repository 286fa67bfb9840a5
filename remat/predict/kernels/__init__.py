"""Predicts the kernels that TorchInductor generates for a plan, from the graph alone and without torch.

`kernels` predicts the kernels of one plan. A search that tries many plans of one graph makes one `Fuser`; begin reading
there. `remat.predict.traffic` adds up what the kernels read and write. Other questions about fusion have simpler
answers that do not depend on the plan: see docs/fusion.md.

There are two backends (`backends`): TorchInductor's C++ for CPUs and its Triton for GPUs. The default is the backend of
the device on which the graph was captured; `backend="triton"` chooses another one. No rule is fitted to a model. The
rules below are a summary of torch 2.13, in the order in which they apply, with the modules that implement them; first
those of CPUs, then the differences of Triton. A class or method that a docstring names and that is not in this package,
such as `Scheduler.fuse_nodes`, is Inductor's. `experiments/accuracy/traffic_error.py` compares the prediction with what
Inductor's own scheduler counts (for GPUs: with its Triton schedule, without a device).

**What each pass computes** (`remat.predict.memory.order`) follows torch's partitioner, and so does the order. Of saved
values that share a storage, only the owner is passed to the backward pass. The elements of a tuple follow the tuple.
Then the graph of the pass is rewritten (`passes`): clones without effect disappear, and a matrix product that only a
sum reads becomes one call with the sum.

**What is stored** (`lowering`, `realize`). A pointwise operator is an expression that every reader computes again. A
view is index arithmetic (`index`, `view_maps`). These values are stored:

- the results of a pass, and the arguments of calls;
- the results of reductions, and random numbers;
- values that several operators read, if they read more than 4 tensors, compute more than 50 operations, or contain an
  operation that is expensive on CPUs (exp, log, tanh, sigmoid);
- values that read more than 12 tensors or compute more than 50 operations;
- the inputs of matrix products and convolutions, if they have other readers too.

A value that reads nothing, such as a constant, is computed where it is needed and is never read from memory.

**Layouts** (`strides`, `loops`). A value has eager's strides if the pass returns it, a call requires them, or an
as_strided reads it. A value with a view is row-major. Images around convolutions are channels-last. All other values
are laid out in the order in which the loop that writes them reads. A call that does not accept a layout gets a copy: of
matrices that are neither row-major nor column-major, of images that are not channels-last, and of arguments that the
gradient of a convolution needs in another order. Before torch 2.15, a pass whose only convolutions are gradients has
images in eager's layout; before 2.13, such gradients accept no other layout.

**What each operator becomes** (`dispatch` chooses). In `reductions`, sums of fewer than 8 elements are unrolled,
variances of up to 1,024 elements take two loops, and means have an extra division. In `indexing`, embedding, gather and
index are reads at any position, index_put and scatter are loops that write at any position, and scatter_add is a call,
unless the graph was captured with a single thread (`Graph.meta`). In `library`, a concatenation is written in place. An
operator without a rule, or with complex numbers, is a call of eager's operator. `pointwise` has the other operators,
and `rules` the thresholds.

**Which loops share a kernel** (`schedule`, `cpu_schedule`, `loop_groups`). Loops are ordered by the strides of their
accesses, and joined where all accesses allow it. In up to 10 rounds, the pairs that share the most bytes fuse. A
consumer fuses with its producer if it reads each element where it was written. Independent loops fuse if they are at
most 64 places apart and 16 loops in all. In both cases the loops must be equal, or the second must be a reduction after
its elementwise producer. Only when no such pair is left, producers and consumers that share outer loops fuse. A fusion
never creates a cycle, and a kernel has at most 64 loops.

**Offloaded values** (`host_copies`) are copied to the host after their last reader in the forward pass, and back before
their first reader in the backward pass, by calls in the stream of the kernels.

**Counted traffic** (`kernel`, `fuser`). A kernel reads or writes a buffer once: the whole buffer, or as much as the
loop can reach if the kernel has a single loop. A buffer that only its own kernel reads is never written.

**Differences of Triton:**

- *Rewriting* (`passes`). The bias of a product is added by a separate expression, except in half precision. A product
  and a sum stay separate if only elementwise operators read the result.
- *Stored values* (`backends`). No operation is expensive. Values that read more than 8 tensors or compute more than 30
  operations are stored. Variances of more than 8 elements take one loop. The layout of a value with a view follows the
  order in which its loop reads.
- *Sums* (`splits`, `reductions`). A sum with few results is split into two or more kernels that occupy the 132
  processors of an H100; the split depends on whether the sum runs along memory. Sums of fewer than 8 elements are
  always unrolled.
- *Images* (`strides`, `library`). Images are channels-last only where most convolutions profit: not where convolutions
  are rare, grouped, narrowing, or all small. The bias of a convolution is added by a separate expression. Gradients of
  convolutions have cuDNN's layout.
- *Others* (`library`, `indexing`). A concatenation of up to 8 parts is an expression, if its parts would be copied
  anyway or only elementwise operators read it. scatter_add is a loop with atomic adds. A layout that a call requires
  holds for that call alone.
- *Shared kernels* (`triton_loops`, `triton_groups`, `triton_schedule`, `tiles`). Every dimension stays a loop until
  fusion has ended. Two groups fuse if they have the same number of points and reduce the same number. An elementwise
  group also fuses with a reduction if it runs over all points of the reduction or over its results, and its loops and
  tiles can be split accordingly. Neither the rule of outer loops nor the limit of 16 applies. One last round may
  reorder elementwise loops, or give them the loops of a reduction, so that both groups access a buffer in the same way.
- *Rows and columns* (`mixed_orders`). Two reductions of the same 5 Mi elements or more, one of rows and one of columns,
  share a kernel if there are at least 4,096 rows and twice as many rows as columns.

**Not modelled**: `max_autotune` and all other decisions by timing, templates, mkldnn, quantized operators, pooling
other than the low-memory maximum, sorts, control flow, custom operators, and mutating operators other than
`copy_`. All of these count as calls (for Triton, sorts are kernels in fact). For GPUs, strides are not
padded, indices are not inverted for fusion, and a softmax takes two loops for maximum and sum where Inductor takes one,
which matters where rows are split. An A100 has fewer processors than the assumed H100, splits some sums differently,
and adds bfloat16 by calls. Symbolic sizes count with their captured values, and inputs count as contiguous. Operations
are counted once for each operator and what it depends on, not in the text of an expression as by Inductor, which sees
equal operations of different operators: a value near a threshold may be on the wrong side.
"""

from remat.predict.kernels.backends import backend_for
from remat.predict.kernels.fuser import Fuser, kernels
from remat.predict.kernels.kernel import Kernel

__all__ = ["Fuser", "Kernel", "backend_for", "kernels"]
