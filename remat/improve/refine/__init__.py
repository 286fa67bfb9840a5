"""Refines a plan to a better one by local search, under an objective that is no sum over values.

A cost model that a minimum cut can solve prices each saved value by itself. What a plan really moves
depends on which values end up in one kernel, and so on all decisions together. `remat.refine` begins where
the cuts end: it scores whole plans, and makes moves as long as one lowers the score.

**Starts.** The given plan, the classic cut (conservative and aggressive), and what the caller adds. The
search begins at each that is not far above the best, also where it saves more than is allowed; the answer is never
worse, by the oracle, than the best start that does not.

**Moves** (`remat.improve.refine.moves`). Save something that is recomputed; drop something that is saved; swap
a saved value for one that it is computed from, or that is computed from it; and where a save would help but
exceeds the allowance, make room for it by a drop anywhere. Every set of values becomes a legal plan
(`remat.improve.refine.states`). Matrix products, convolutions and attention are recomputed only where a start
does so, unless the objective counts arithmetic. The first move that helps is made; when none is left, the
plan is a local optimum, and nothing proves how far from the best one.

**Memory at little traffic** (`remat.improve.refine.memory_objectives`). With "saved", or a `Peak` that has a limit,
memory is lowered, and the traffic may be at most that of the given plan, or a fraction more. A plan that moves more is
searched from, too, but is no answer; the limit is that of whoever counts.

**Never worse** (`remat.improve.refine.no_worse`). With "no-worse" traffic is lowered, and the answer has no more
kernels than the given plan, saves no more bytes and recomputes no longer. The search begins at the given plan and at
plans of little recompute time that save as much; at none that saves more.

What is left above the floor of `experiments.traffic_study.traffic_floor` is mostly fixed by the shapes of loops,
whatever is saved: a sum over rows beside one over columns, a masked softmax in two kernels, a loss that is charged for
all logits to read one of each row.

**Equal values move together** (`equivalence_classes`): first all that look the same up to a distance
of a few operators, wherever they are, then one by one.

**Deep models** (`remat.improve.refine.repeated_layers`). Where a graph repeats a layer, the search looks at a graph of
two layers, and its decisions are lifted to all of them. The starts and the results are then compared on
the whole graph. Not for "peak", which no part of a model shows,
and not for "saved" and "no-worse", whose limits are those of the whole model.

**Oracles** (`remat.improve.refine.oracles`). The prediction scores every candidate. With oracle="inductor" a move
must also lower TorchInductor's own count, and with oracle="device" the results are timed.
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
