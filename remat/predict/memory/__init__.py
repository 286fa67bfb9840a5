"""Simulates live bytes over the forward and the backward pass of a plan, and the peak.

`simulate` returns the whole `Timeline`. A search that tries many plans of one graph makes one `Simulator` and calls
`peak`. `lower_bound` is at most the peak of every plan. Begin reading in `simulator`: it combines the facts that do not
depend on the plan (`storages`), the `order` of both passes and the `lifetimes`. The model:

**Order.** The forward pass computes what the outputs and the saved values depend on, in graph order. The backward pass
is torch's (`_extract_fwd_bwd_modules`, then `reordering_to_mimic_autograd_engine`). From the first operator that reads
a tangent on, it runs in graph order. A recomputed value that is earlier in the graph runs right before the first
operator that needs it, together with all other missing operands of that operator, in graph order. A value that both
passes could compute is computed in the forward pass if it, or a value that depends on it, is saved. Values on which no
gradient depends are not computed, and saved values that are not read are not saved: torch drops both.

**Allocated storages.** A storage counts once, however many views it has. It is allocated at the step of its base, and
freed after the last step of the pass that reads it or a view of it. Saved storages are alive until their last reader in
the backward pass: Inductor's graphs own their inputs and free them then. Gradients are alive until the end. Forward
outputs belong to the caller, who is assumed to hold them until the end of the backward pass, unless
`holds_outputs=False`. Inputs, parameters, constants, tangents, and views of them are not counted. An offloaded storage
leaves the device after its last reader in the forward pass, and is a new storage from its first reader in the backward
pass on; host memory is not counted. All results of an operator with several results are allocated when it runs.
While a step runs, both its operands and its results are alive; a step never overwrites an input.

**Registers.** A fusible value is in registers if all its uses in the pass can be fused and it is neither saved nor
returned (`registers` defines what can be fused). It belongs to the kernels of all its consumers, so its operands stay
alive until the last of these has run. A value that is written to memory belongs to one kernel, together with its
fusible consumers before the next library call: the operands of the kernel stay alive until it has written its last
result.

A compiler that fuses less, changes layouts, or reorders kernels to save memory, as Inductor does, has other peaks:
`experiments/accuracy/compiled_peaks.py` measures the difference.
"""

from remat.predict.memory.bound import WorkingSet, lower_bound
from remat.predict.memory.simulator import Simulator, simulate
from remat.predict.memory.timeline import LiveTensor, Timeline

__all__ = ["LiveTensor", "Simulator", "Timeline", "WorkingSet", "lower_bound", "simulate"]
