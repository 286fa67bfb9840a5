"""A problem as a flow network, and a cut of it as a plan.

Each value v is split into `in(v) -> out(v)`. A cut puts every vertex on the source side
("computed by the forward pass only") or on the sink side ("available in the backward pass"):

    in(v) -> out(v)     capacity save_cost        cut: v is saved
    source -> in(v)     capacity recompute_cost   cut: v is recomputed
    out(u) -> in(v)     infinite, for each use    v is recomputed only if u is available
    out(v) -> sink      infinite, if v is needed

(paper, section 3.3, with a finite price for recomputing in the place of "may / may not").
Infinite arcs at the terminals are contracted, which changes no finite cut and removes most of the
network: `in(v)` is the source where v cannot be recomputed, `out(v)` is the sink where v is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from remat.arrays import BoolArray, IntArray
from remat.errors import UnsupportedProblem
from remat.feasibility import Forced, forced
from remat.problem import Problem

SOURCE, SINK = 0, 1


@dataclass(frozen=True, eq=False)
class Network:
    """A capacitated directed graph; vertex 0 is the source and vertex 1 the sink.

    Attributes:
        num_vertices: vertices are 0 to num_vertices - 1.
        tails, heads, capacities: (k,) one entry an arc; no two arcs share both ends.
        infinity: capacity of the arcs that no finite cut may contain: one more than the sum of
            the finite capacities, and so more than any finite cut.
        tiebreaks: (k,) columns; among minimum cuts, the sum of the first is minimized, then of
            the second, and so on.
    """

    num_vertices: int
    tails: IntArray
    heads: IntArray
    capacities: IntArray
    infinity: int
    tiebreaks: tuple[IntArray, ...] = ()

    def fitted(self, largest: int | None, what: str = "prices") -> tuple[Network, int]:
        """The same network in the coarsest unit, and that unit.

        Args:
            largest: the largest capacity that the solver can take, or None for any.
            what: what the capacities are, for the message.

        Raises:
            UnsupportedProblem: the capacities do not fit even so. Wrapping would be silent: a
                capacity of 6442450949 makes SciPy 1.17 report a flow of 0.
        """
        finite = self.capacities < self.infinity
        unit = max(math.gcd(*np.unique(self.capacities[finite]).tolist()), 1)
        capacities = self.capacities // unit
        infinity = int(capacities[finite].sum()) + 1
        if largest is not None and infinity > largest:
            raise UnsupportedProblem(
                f"the {what} add up to {infinity - 1} in units of {unit}, but the solver counts to {largest} only; "
                f'use solver="ortools", which counts to 2**62'
            )
        capacities[~finite] = infinity
        fitted = Network(self.num_vertices, self.tails, self.heads, capacities, infinity, self.tiebreaks)
        return fitted, unit

    def is_decided(self, sides: Sides) -> bool:
        """Whether there is but one minimum cut: every vertex that has arcs is on a side for good."""
        decided = sides.source | sides.sink
        return bool(decided[self.tails].all() and decided[self.heads].all())

    def face(self, flow: IntArray, sides: Sides) -> tuple[Network, IntArray]:
        """The network whose finite cuts are the minimum cuts of this one, priced by its first tiebreak.

        A cut is minimum if and only if it cuts saturated arcs only and no flow crosses it
        backwards (complementary slackness). So residual arcs become infinite, saturated arcs take
        the tiebreak as capacity, and the vertices on a side in every minimum cut are merged.

        Returns:
            the network, and (num_vertices,) the vertex of it that each vertex of this one became.
        """
        free = ~(sides.source | sides.sink)
        vertex = np.where(sides.sink, SINK, SOURCE)
        vertex[free] = np.arange(2, 2 + int(free.sum()))
        slack, saturated, carrying = flow < self.capacities, flow == self.capacities, flow > 0
        price = self.tiebreaks[0]
        infinity = int(price[saturated].sum()) + 1
        tails = vertex[np.concatenate([self.tails[slack], self.heads[carrying], self.tails[saturated]])]
        heads = vertex[np.concatenate([self.heads[slack], self.tails[carrying], self.heads[saturated]])]
        rest = int(slack.sum() + carrying.sum())
        capacities = np.concatenate([np.full(rest, infinity), price[saturated]])
        ties = tuple(np.concatenate([np.zeros(rest, np.int64), tie[saturated]]) for tie in self.tiebreaks[1:])
        inner = (tails != heads) & (heads != SOURCE) & (tails != SINK) & ((tails != SOURCE) | (heads != SINK))
        return _merged(2 + int(free.sum()), tails, heads, capacities, ties, inner, infinity), vertex


class Sides(NamedTuple):
    """Which side of *every* minimum cut a vertex is on; a vertex may be on neither.

    Attributes:
        source: (num_vertices,) reachable from the source through residual arcs.
        sink: (num_vertices,) the sink is reachable from it: the sink side of the minimum cut
            that is closest to the backward pass.
    """

    source: BoolArray
    sink: BoolArray


def _merged(
    num_vertices: int,
    tails: IntArray,
    heads: IntArray,
    capacities: IntArray,
    ties: tuple[IntArray, ...],
    keep: BoolArray,
    infinity: int,
) -> Network:
    """Merges parallel arcs: capacities and ties add up, infinity stays infinity."""
    codes, group = np.unique(tails[keep] * num_vertices + heads[keep], return_inverse=True)

    def summed(column: IntArray) -> IntArray:
        total = np.zeros(len(codes), np.int64)
        np.add.at(total, group, column[keep])
        return total

    endless = np.zeros(len(codes), np.bool_)
    endless[group[capacities[keep] >= infinity]] = True
    finite = summed(np.where(capacities >= infinity, 0, capacities))
    merged = np.where(endless, infinity, finite)
    return Network(
        num_vertices, codes // num_vertices, codes % num_vertices, merged, infinity, tuple(map(summed, ties))
    )


@dataclass(frozen=True, eq=False)
class Reduction:
    """A problem's network, with what is needed to read a cut of it as a plan.

    Attributes:
        network: the network; its tiebreaks are saved bytes, then saved values.
        base_cost: price of the values that every plan saves; they are not in the network.
        in_vertex, out_vertex: (n,) the two vertices of each value.
    """

    network: Network
    base_cost: int
    in_vertex: IntArray
    out_vertex: IntArray

    @classmethod
    def of(cls, problem: Problem, known: Forced | None = None) -> Reduction:
        """Builds the network of a feasible problem, in time linear in the graph."""
        rules = known or forced(problem)
        n = len(problem)
        in_vertex = np.where(rules.stuck, SOURCE, np.arange(2, 2 + n))
        out_vertex = np.arange(2 + n, 2 + 2 * n)
        out_vertex[problem.needed] = SINK
        out_vertex[rules.lost] = SOURCE

        always = rules.stuck & problem.needed
        split = np.flatnonzero(~always & ~rules.lost)
        redo = np.flatnonzero(~rules.stuck & (problem.recompute_cost > 0))
        use = (out_vertex[problem.producers] != SINK) & (in_vertex[problem.consumers] != SOURCE)
        u, v = problem.producers[use], problem.consumers[use]

        infinity = int(problem.save_cost.sum() + problem.recompute_cost.sum()) + 1
        unsaveable = problem.cannot_save.mask
        save_price = np.where(unsaveable, infinity, problem.save_cost)[split]
        nothing = np.zeros(len(redo) + len(u), np.int64)
        can_tie = ~unsaveable[split]
        network = Network(
            num_vertices=2 + 2 * n,
            tails=np.concatenate([in_vertex[split], np.full(len(redo), SOURCE), out_vertex[u]]),
            heads=np.concatenate([out_vertex[split], in_vertex[redo], in_vertex[v]]),
            capacities=np.concatenate([save_price, problem.recompute_cost[redo], np.full(len(u), infinity)]),
            infinity=infinity,
            tiebreaks=(
                np.concatenate([np.where(can_tie, problem.save_bytes[split], 0), nothing]),
                np.concatenate([can_tie.astype(np.int64), nothing]),
            ),
        )
        return cls(network, int(problem.save_cost[always].sum()), in_vertex, out_vertex)

    def saved(self, sink_side: BoolArray) -> BoolArray:
        """(n,) the values whose in-out arc a cut cuts, given (num_vertices,) its sink side."""
        return ~sink_side[self.in_vertex] & sink_side[self.out_vertex]

    def recomputed(self, sink_side: BoolArray) -> BoolArray:
        """(n,) the values with both vertices on the sink side."""
        return sink_side[self.in_vertex] & sink_side[self.out_vertex]
