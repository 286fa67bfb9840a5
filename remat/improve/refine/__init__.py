"""Refines a plan to a better one by local search, under an objective that is no sum over values.

A cost model that a minimum cut can solve prices each saved value by itself. What a plan really moves depends on which
values end up in one kernel, and so on all decisions together. `remat.refine` begins where the cuts end: it scores whole
plans, and makes moves as long as one lowers the score.

**Starts.** The caller's plan, two minimum cuts (by the classic and by the aggressive rules), and further plans of the
caller. The search goes on from each start that is not far above the best, even if it saves more than is allowed. By the
oracle, the answer is never worse than the best start that keeps all limits.

**Moves** (`remat.improve.refine.moves`). Save a value that is recomputed; drop a value that is saved; swap a saved
value for one that it is computed from, or that is computed from it; and where a save would help but exceeds the allowed
bytes, drop another value anywhere to make room. Every set of values becomes a legal plan
(`remat.improve.refine.states`). Matrix products, convolutions and attention are recomputed only where a start does so,
unless the objective counts arithmetic. The first move that helps is made. When none helps, the plan is a local optimum,
and nothing proves how far it is from the best one.

**Limits** (`remat.improve.refine.memory_objectives`, `remat.improve.refine.no_worse`). With "saved", or a `Peak` that
has a limit, memory is lowered, and the traffic may be at most that of the caller's plan, or a fraction more. With
"no-worse" traffic is lowered, and the answer has no more kernels than the caller's plan, saves no more bytes and
recomputes no longer. The search may pass through infeasible plans, but the answer keeps the limits as the oracle
counts.

What no plan can avoid is mostly fixed by the shapes of loops, whatever is saved: a sum over rows beside one over
columns, a masked softmax in two kernels, a loss that is charged for all logits to read one of each row.

**Equal values move together** (`equivalence_classes`): first all values that look the same up to a distance of a few
operators, wherever they are; then each value by itself.

**Deep models** (`remat.improve.refine.repeated_layers`). Where a graph repeats a layer, the search looks at a graph of
two layers, and its decisions are lifted to all layers. The starts and the results are then compared on the whole graph.
Objectives whose scores do not add up over layers have no short graph: "peak", "saved", "no-worse", `most_kernels`.

**Oracles** (`remat.improve.refine.oracles`). The prediction scores every candidate. With oracle="inductor" a move must
also lower TorchInductor's own count, and with oracle="device" the results are timed.
"""

from remat.improve.refine.descent import Step
from remat.improve.refine.driver import refine
from remat.improve.refine.memory_objectives import Peak, SavedBytes
from remat.improve.refine.no_worse import NoWorse
from remat.improve.refine.objectives import Objective, Time, Traffic
from remat.improve.refine.oracles import Oracle
from remat.improve.refine.result import Refined, Start

__all__ = [
    "NoWorse",
    "Objective",
    "Oracle",
    "Peak",
    "Refined",
    "SavedBytes",
    "Start",
    "Step",
    "Time",
    "Traffic",
    "refine",
]
