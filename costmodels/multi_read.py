"""Prices memory traffic, with one read of a value for each kernel of the backward pass that needs it."""

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
    """Prices saving v by its write, and by one read for each kernel of the backward pass that may need v.

    `ByteTraffic` assumes that a saved value is read once, although several kernels of the backward pass may read it,
    and bans recomputing what the backward pass would write (Lemma 3.1). This model has, in bytes,

        save_cost[v]      = B(v) * reads(v)  +  B(v) if the forward pass would not write v anyway
        recompute_cost[v] = B(v) * reads(v)  +  B(v)    if v needs a separate kernel; otherwise 0

    B(v) is what reading v moves. reads(v) counts the kernels of the tangents' closure that read v, or compute something
    from v on the way (`costmodels.backward_kernels`); it is 1 if there is none. v needs a separate kernel if a library
    call of the backward pass reads v: then recomputing v writes v, and all kernels read v from memory. So the ban of
    Lemma 3.1 became a price.

    The optimum is still one minimum cut, because a price depends only on the graph and not on what else is saved. That
    causes three errors. If another value is saved between v and a kernel, that kernel does not read v, but its read is
    counted: `reads` is an upper bound. The reads of the separate kernel of a recomputed value are not counted. And
    Inductor may split a kernel when too much is recomputed in it.

    The options are those of `ByteTraffic` without `prices`, and the rule "materialized_in_backward" is off unless
    `rules` switches it on.
    """

    name: ClassVar[str] = "multi-read"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prices != "paper":
            raise InvalidOption(f"MultiRead has prices of its own: leave prices out, got {self.prices!r}")

    @property
    def active_rules(self) -> tuple[Rule, ...]:
        switches = {"materialized_in_backward": False, **self.rules}
        return tuple(rule for rule in RULES.values() if switches.get(rule.name, self.mode in rule.modes))

    def terms(self, graph: Graph) -> Terms:
        """Prices values by the predicted kernels, and bans what the active rules forbid to recompute."""
        bans = super().terms(graph)
        not_recomputable = bans.cannot_recompute.mask | graph.cannot_recompute.mask | graph.input
        backward = BackwardKernels.of(graph, not_recomputable)
        moved, reads = graph.moved_bytes, np.maximum(backward.reads(), 1)
        total = 2.0 * float((moved.astype(np.float64) * (reads + 1)).sum())
        if total >= LARGEST_TOTAL:  # the integers below would overflow silently
            raise InvalidProblem(f"MultiRead: the prices must add up to less than 2**62, got up to {total:.2e} bytes")
        save = moved * (reads + ~backward.written)
        if self.free_parameters:
            save = np.where(graph.parameter, 0, save)
        recompute = np.where(backward.own_kernel, moved * (reads + 1), 0)
        return Terms(save, recompute, bans.cannot_save, bans.cannot_recompute)
