"""Simulates live bytes over the forward and the backward pass of a plan: what is held, and the peak.

`simulate` gives the whole `Timeline`; a search that asks for many plans of one graph makes one `Simulator` and calls
`peak`. No plan can have a smaller peak than `lower_bound`. Begin reading in `simulator`: it needs the facts that depend
on no plan (`storages`), the `order` of both passes and the `lifetimes` in it. Nothing here imports `kernels` or `time`.
The model:

**What runs, and in which order.** The forward pass computes what its outputs and the saved values depend on, in graph
order. The backward pass is torch's (`_extract_fwd_bwd_modules`, then `reordering_to_mimic_autograd_engine`). From the
first operator that reads a tangent on, it runs in graph order. What comes earlier in the graph and is recomputed runs
right before the first operator that cannot do without it, together with whatever else that one lacks, in graph order. A
value that either pass could compute is computed in the forward pass if it, or something that depends on it, is saved.
What leads to no gradient is not computed, and what is saved without being read is not saved: torch drops both.

**What takes memory.** A storage takes memory once, however many views look at it. It is allocated at the step of its
base, and freed after the last step of the pass that reads it, or a view of it. Saved storages live until the backward
pass has read them for the last time: Inductor's graphs own their inputs, and drop them then. Gradients live to the
end. Forward outputs belong to the caller, who is assumed to hold them until the end of the backward pass, unless
`holds_outputs=False`. What is alive anyway, or belongs to somebody else, is not counted: inputs, parameters,
constants, tangents, and views of them. What is offloaded leaves the device once the forward pass has read it for the
last time, and is a new storage from the first step of the backward pass that reads it; the host is not counted. The
results of an operator with several (`getitem`) are allocated when it runs. While a step runs, what it reads and what
it writes are both alive; it is not assumed that it writes over an input that dies.

**What takes none.** A fusible value lives in registers if all its uses in the pass can be fused and it is neither saved
nor returned (`registers` says what can be fused). It belongs to the kernels of all its consumers, so what it reads
stays alive until the last of these has run. A value that is written belongs to one kernel with those of its fusible
consumers that follow before the next call of a library: what the kernel reads stays alive until it has written its last
result.

The simulation is of this order and of these rules. A compiler that fuses less, changes layouts, or reorders kernels to
save memory, as Inductor does, ends up elsewhere: `experiments/accuracy/compiled_peaks.py` measures how far.
"""

from remat.predict.memory.bound import WorkingSet, lower_bound
from remat.predict.memory.simulator import Simulator, simulate
from remat.predict.memory.timeline import LiveTensor, Timeline

__all__ = ["LiveTensor", "Simulator", "Timeline", "WorkingSet", "lower_bound", "simulate"]
