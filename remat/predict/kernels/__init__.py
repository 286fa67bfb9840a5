"""Fusion groups: the kernels that TorchInductor makes of a plan, predicted from the graph alone.

The question answered here is which kernels this very plan becomes. Other questions about fusion have simpler answers
that do not depend on the plan: see docs/fusion.md. `kernels` gives the kernels of one plan; a search that asks for
many plans of one graph makes one `Fuser`. No torch is needed, nothing is fitted to a model: what follows are the rules
of torch 2.13 for CPUs, in small, in the order in which they apply. `remat.predict.traffic` adds up what the kernels
read and write; `experiments` compares that with the count of Inductor's own scheduler.

**What each pass computes**, and in which order, is `remat.predict.memory.order`'s mirror of torch's partitioner. Of
saved values that share memory, the owner is handed over alone. Elements of tuples follow their tuple.
(`passes`) Clones that change nothing disappear; a matrix product that only a sum reads becomes one call with
the sum.

**What is stored** (`lowering`, `stores`). A pointwise operator is an expression that every reader computes
anew, views are index arithmetic. Stored are: what a pass returns; arguments of calls; reductions and random
numbers; what more than one operator reads, if it reads more than 4 tensors, computes more than 50 operations or
contains one that is costly on CPUs (exp, log, tanh, sigmoid); what reads more than 12 tensors or has grown past
50 operations; and the inputs of matrix products and convolutions that have other readers besides. What reads
nothing is never read.

**In which layout** (`strides`, `loops`). In eager's strides where the value is returned or a call asks for
them, row-major where a view was taken, with channels last around convolutions, else as the loop that writes it
reads. Calls that cannot take a layout get a copy: matrices that are neither in rows nor in columns, images
whose channels are not last, what a convolution's gradients want in another order.

**What each operator becomes.** (`operators`) `reductions`: sums of fewer than 8 elements are unrolled,
variances of up to 1,024 take two loops, means a division more. `lookups`: embedding, gather and index read any
place; index_put and scatter are loops that write anywhere, scatter_add a call. `library`: a concatenation is written in
place, everything without a rule is a call of eager's operator, and complex numbers always are.

**What shares a kernel** (`schedule`, `groups`). Loops are ordered by the strides of their accesses and joined
where all of these allow. In up to 10 rounds, pairs with the most bytes in common fuse: a consumer with its
producer if it reads each element where it was written; loops that do not depend on each other if they lie
within 64 of each other and are no more than 16; both over the same loops, or a reduction after its elementwise
producer. Only when no such pair is left do producers and consumers share outer loops alone. No cycles, no more
than 64 loops in a kernel.

**What counts** (`predict`). Each buffer once a kernel, whole, or as much as a single loop can reach. A buffer
that only its own kernel reads is never written.

Not followed: GPUs (Triton's loops, tiling, templates), `max_autotune`, mkldnn and quantized operators, pooling
other than the low-memory maximum, scans and sorts, control flow, custom and mutating operators other than
`copy_`; all of these are taken for calls. Symbolic sizes count as captured. Inputs are taken for contiguous.
Operations are counted by operator, not by Inductor's own count of an expression, so that a value near a
threshold may fall on its other side.
"""

from remat.predict.kernels.fuser import Fuser, kernels
from remat.predict.kernels.kernel import Kernel

__all__ = ["Fuser", "Kernel", "kernels"]
