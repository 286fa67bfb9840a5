"""Memory traffic, where each kernel of the backward pass that needs a value reads it once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from costmodels.backward_kernels import BackwardKernels
from costmodels.byte_traffic import ByteTraffic
from costmodels.recompute_rules import RULES, Rule
from remat import Graph, InvalidOption
from remat.errors import InvalidProblem
from remat.facts.columns import LARGEST_TOTAL
from remat.plugin import Terms


@dataclass(frozen=True)
class MultiRead(ByteTraffic):
    """Saving v costs its write, and one read for each backward kernel that may need v.

    The classic price (`ByteTraffic`) assumes one read of a saved value, though several kernels of the backward
    pass may read it, and bans what the backward pass would write (Lemma 3.1). Here, in bytes,

        save_cost[v]      = B(v) * reads(v)  +  B(v) if the forward pass would not write v anyway
        recompute_cost[v] = B(v) * reads(v)  +  B(v)    if v needs a kernel of its own; else nothing

    B(v) is what reading v moves. reads(v) counts the kernels of the tangents' closure that v reaches directly, or
    through values that they may compute on their way (`costmodels.backward_kernels`); it is 1 where there is none.
    A value needs a kernel of its own if a library call of the backward pass reads it: recomputing it writes it,
    and all read it from there. So the ban has become its price.

    It is still one minimum cut, for a price depends on the graph alone and not on what else is saved. That is
    also what it leaves out. Where something between v and a kernel is saved, that kernel does not read v, yet
    the read is paid for: `reads` is the most that these kernels can make. What the own kernel of a recomputed value
    reads is not paid for. And a kernel may fall apart when too much is recomputed in it.

    Attributes:
        mode: as in `ByteTraffic`.
        rules: as in `ByteTraffic`; but "materialized_in_backward" is off unless switched on.
        free_parameters: reading a parameter costs nothing, as in PyTorch's partitioner.
    """

    name: ClassVar[str] = "multi-read"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prices != "paper":
            raise InvalidOption(f"MultiRead has prices of its own: leave prices out, got {self.prices!r}")

    @property
    def active_rules(self) -> tuple[Rule, ...]:
        """The rules that this instance applies, in order."""
        switches = {"materialized_in_backward": False, **self.rules}
        return tuple(rule for rule in RULES.values() if switches.get(rule.name, self.mode in rule.modes))

    def terms(self, graph: Graph) -> Terms:
        """Prices by predicted kernels, bans by the active rules."""
        bans = super().terms(graph)
        stuck = bans.cannot_recompute.mask | graph.cannot_recompute.mask | graph.input
        backward = BackwardKernels.of(graph, stuck)
        moved, reads = graph.moved_bytes, np.maximum(backward.reads(), 1)
        total = 2.0 * float((moved.astype(np.float64) * (reads + 1)).sum())
        if total >= LARGEST_TOTAL:  # what follows would wrap
            raise InvalidProblem(f"MultiRead: the prices must add up to less than 2**62, got up to {total:.2e} bytes")
        save = moved * (reads + ~backward.written)
        if self.free_parameters:
            save = np.where(graph.parameter, 0, save)
        redo = np.where(backward.apart, moved * (reads + 1), 0)
        return Terms(save, redo, bans.cannot_save, bans.cannot_recompute)
