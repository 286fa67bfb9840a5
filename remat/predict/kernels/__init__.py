"""Predicts the kernels that TorchInductor makes of a plan, from the graph alone.

The question answered here is which kernels this very plan becomes. Other questions about fusion have simpler answers
that do not depend on the plan: see docs/fusion.md. `kernels` gives the kernels of one plan; a search that asks for
many plans of one graph makes one `Fuser`. Begin reading in `fuser`. The package needs no torch and imports
`remat.predict.memory`, for the order of both passes; `remat.predict.traffic` adds up what the kernels read and write.

There are two backends (`backends`): TorchInductor's C++ for CPUs, and its Triton for GPUs. A graph gets the kernels of
the device on which it was captured, or those that are asked for: `backend="triton"`. Nothing is fitted to a model. What
follows are the rules of torch 2.13, in small, in the order in which they apply, each with the modules that hold it;
first those for CPUs, then those in which Triton differs. Where a docstring of theirs names a class or method that is
not here, such as `Scheduler.fuse_nodes`, it is Inductor's. `experiments/accuracy/traffic_error.py` compares the outcome
with the count of Inductor's own scheduler; for GPUs with its Triton schedule, without a device.

**What each pass computes** (`remat.predict.memory.order`), and in which order, follows torch's partitioner. Of saved
values that share memory, only the owner is handed over. The elements of a tuple follow their tuple. Then the graph of
the pass is rewritten (`passes`): clones that change nothing disappear, and a matrix product that only a sum reads
becomes one call with the sum.

**What is stored** (`lowering`, `realize`). A pointwise operator is an expression, which every reader computes anew, and
a view is index arithmetic (`index`, `view_maps`). Stored are:

- what a pass returns, and the arguments of calls;
- the results of reductions, and random numbers;
- what more than one operator reads, if it reads more than 4 tensors, computes more than 50 operations, or contains an
  operation that is costly on CPUs (exp, log, tanh, sigmoid);
- what reads more than 12 tensors, or has grown past 50 operations;
- the inputs of matrix products and convolutions that have other readers besides.

A value that reads nothing, such as a constant, is computed wherever it is needed and is never read from memory.

**In which layout** (`strides`, `loops`). What is returned, asked for by a call, or read by an as_strided has eager's
strides. One of which a view was taken is row-major. Images around convolutions have their channels last.
Any other value is laid out as the loop that writes it reads. A call that cannot take a layout gets a copy: of matrices
that are neither in rows nor in columns, of images whose channels are not last, and of what a convolution's gradients
want in another order. Before torch 2.15, a pass that has gradients of convolutions only has images in eager's layout;
before 2.13, such gradients take no other.

**What each operator becomes** (`dispatch` chooses among these). In `reductions`, sums of fewer than 8 elements are
unrolled, variances of up to 1,024 elements take two loops, and means take a division more. In `indexing`, embedding,
gather and index read at any place, index_put and scatter are loops that write at any place, and scatter_add is a call
where several threads run (of a graph captured with one thread, `Graph.meta` says so). In `library`, a concatenation is
written in place. Everything without a rule is a call of eager's operator, and so is everything with complex numbers.
`pointwise` has the rest, and `rules` the thresholds.

**What shares a kernel** (`schedule`, `cpu_schedule`, `loop_groups`). Loops are ordered by the strides of their
accesses, and joined where all accesses allow it. In up to 10 rounds, the pairs with the most bytes in common fuse. A
consumer fuses with its producer if it reads each element where it was written; loops that do not depend on each other
fuse if they lie within 64 of each other and are at most 16. In both cases they must run over the same loops, or be a
reduction after its elementwise producer. Only when no such pair is left do producers and consumers share their outer
loops alone. A fusion never makes a cycle, and a kernel never has more than 64 loops.

**What is offloaded** (`host_copies`) is copied to the host behind its last reader in the forward pass, and back before
the first in the backward pass, by calls in the stream of the kernels.

**What counts** (`kernel`, `fuser`). A kernel reads or writes a buffer once: the whole of it, or as much as its loop can
reach if it has only one. A buffer that only its own kernel reads is never written.

**What Triton does otherwise:**

- *Rewriting* (`passes`). The bias of a product is added outside of it, except in half precision, and a product and a
  sum stay two, if elementwise operators alone read the result.
- *Stored* (`backends`). Nothing is costly. What reads more than 8 tensors, or has grown past 30 operations, is stored.
  Variances of 8 elements or more take one walk. Layouts that a view settles follow what the loop reads.
- *Sums* (`splits`, `reductions`). With few results, a sum is split into two kernels or more, so that an H100's 132
  processors are busy; how, depends on whether it goes along memory. Sums of fewer than 8 elements are always unrolled.
- *Images* (`strides`, `library`). Channels are last only where most convolutions profit: not where they are rare,
  grouped, narrowing, or all small. A convolution's bias is added outside. Its gradients have the layout of cuDNN's.
- *Others* (`library`, `indexing`). A concatenation of up to 8 parts is an expression that selects, if its parts would
  be copied anyway or elementwise operators alone read it. scatter_add is a loop that adds atomically. What a call asks
  for, others do not read.
- *Shared kernels* (`triton_loops`, `triton_groups`, `triton_schedule`, `tiles`). Every dimension is a loop until
  fusion is over. Two groups fuse if they have as many points, and reduce as many; or if one is elementwise, and runs
  over all points of a reduction or over its results, and its loops and tiles can be cut like that. Neither outer loops
  nor 16 neighbours limit it. In one last round, elementwise loops may be reordered, and be given those of a reduction,
  so that both access a buffer alike.
- *Rows and columns* (`mixed_orders`). Two reductions of the same 5 Mi elements or more, one of rows and one of columns,
  share a kernel, if there are 4,096 rows, and twice as many as columns.

**What is not followed**: `max_autotune` and all else that is decided by timing, templates, mkldnn, quantized operators,
pooling other than the low-memory maximum, scans and sorts, control flow, custom and mutating operators other than
`copy_`. All of these are taken for calls; scans and sorts are kernels of Triton's. For GPUs, strides are not padded,
indices are not turned around for fusion, and the one walk in which a softmax finds maximum and sum is two, which
matters where rows are split. An A100 has fewer processors than the H100 that is assumed, splits some sums otherwise,
and adds bfloat16 by calls. Symbolic sizes count as captured, and inputs are taken for contiguous. Operations are
counted by operator, not by Inductor's own count of an expression, so a value near a threshold may fall on its other
side.
"""

from remat.predict.kernels.backends import backend_for
from remat.predict.kernels.fuser import Fuser, kernels
from remat.predict.kernels.kernel import Kernel

__all__ = ["Fuser", "Kernel", "backend_for", "kernels"]
