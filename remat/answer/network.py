"""Converts a problem to a flow network, and a cut of the network to a choice.

Each value v is split into `in(v) -> out(v)`. A cut puts every vertex on the source side ("computed by the forward pass
only") or on the sink side ("available in the backward pass"):

    in(v) -> out(v)     capacity save_cost        cut: v is saved
    source -> in(v)     capacity recompute_cost   cut: v is recomputed
    out(u) -> in(v)     infinite, for each use    v is recomputed only if u is available
    out(v) -> sink      infinite, if v is needed

(paper, section 3.3, with a finite price of recomputing instead of "may / may not"). Infinite arcs at the source and the
sink are contracted, which changes no finite cut and removes most of the network: `in(v)` is the source if v cannot be
recomputed, `out(v)` is the sink if v is needed. A value has no arcs if the backward pass neither needs it nor could
recompute anything from it; most outputs of a model are such values.

If v can be offloaded, saving means the cheaper of the two: `in(v) -> out(v)` has the capacity min(save_cost, offload
cost). A multiplier on memory adds the bytes of v to save_cost only. So the place, device or host, is chosen
before the cut, and the cut and its proof do not change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from remat.answer.choice import Choice
from remat.errors import UnsupportedProblem
from remat.facts.columns import LARGEST_TOTAL, BoolArray, IntArray, common_divisor, frozen, mask_of, separate_view
from remat.problem.feasibility import ForcedValues, forced_values
from remat.problem.multipliers import BY_COST, Multipliers
from remat.problem.problem import Problem

SOURCE, SINK = 0, 1


@dataclass(frozen=True, eq=False)
class Network:
    """Holds a directed graph with capacities; vertex 0 is the source and vertex 1 the sink.

    Attributes:
        num_vertices: vertices are 0 to num_vertices - 1.
        tails, heads, capacities: (k,) one entry per arc; no two arcs share both ends.
        infinity: the capacity of arcs that no finite cut contains. It is larger than the sum of the finite capacities,
            and so larger than any finite cut.
        tiebreaks: (k,) columns; among minimum cuts, the sum of the first is minimized, then that of the second, and so
            on.
    """

    num_vertices: int
    tails: IntArray
    heads: IntArray
    capacities: IntArray
    infinity: int
    tiebreaks: tuple[IntArray, ...] = ()

    def rescaled(self, largest: int | None, label: str = "prices") -> tuple[Network, int]:
        """Returns the network in a unit in which a solver can represent all capacities exactly, and that unit.

        Args:
            largest: the largest capacity of the solver, or None for any.
            label: what the capacities are, for the error message.

        Raises:
            UnsupportedProblem: the capacities do not fit in any unit. Without this check, a solver would overflow
                silently: a capacity of 6442450949 makes SciPy 1.17 report a flow of 0.
        """
        if largest is None or self.infinity <= largest:
            return self, 1
        finite = self.capacities < self.infinity
        unit = common_divisor(self.capacities[finite])
        capacities = self.capacities // unit
        infinity = int(capacities[finite].sum()) + 1
        if infinity > largest:
            raise UnsupportedProblem(
                f"the {label} add up to {infinity - 1} in units of {unit}, but this solver counts only to {largest}; "
                f"take a solver with a larger `largest_capacity` (`remat plugins solvers --json` lists them)"
            )
        capacities[~finite] = infinity
        return Network(self.num_vertices, self.tails, self.heads, capacities, infinity, self.tiebreaks), unit

    def with_tiebreaks(self, largest: int | None) -> Network:
        """Returns a network with the same minimum cuts, with as many tiebreaks in its capacities as `largest` allows.

        One unit of capacity outweighs the sum of all tiebreaks, so integers lose nothing.
        """
        network = self
        for tie in self.tiebreaks:
            scale = int(tie.sum()) + 1
            infinity = network.infinity * scale
            if infinity > min(largest or LARGEST_TOTAL, LARGEST_TOTAL):
                break
            capacities = np.where(network.capacities < network.infinity, network.capacities * scale + tie, infinity)
            network = Network(self.num_vertices, self.tails, self.heads, capacities, infinity, network.tiebreaks[1:])
        return network

    def is_decided(self, sides: Sides) -> bool:
        """Returns whether there is only one minimum cut: every vertex with arcs is on a fixed side."""
        decided = sides.source | sides.sink
        return bool(decided[self.tails].all() and decided[self.heads].all())

    def face(self, flow: IntArray, sides: Sides) -> tuple[Network, IntArray]:
        """Returns a network whose finite cuts are exactly the minimum cuts of this network.

        Its capacities are the first tiebreak. A cut is minimum if and only if it cuts only saturated arcs and no flow
        crosses it backwards (complementary slackness). So residual arcs become infinite, saturated arcs get the
        tiebreak as capacity, and vertices that are on one side in every minimum cut are merged.

        Args:
            flow: (k,) a maximum flow.
            sides: the vertices that are on the same side of all minimum cuts.

        Returns:
            the network, and an array (num_vertices,) of the new vertex of each vertex.
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
    """Holds the vertices that are on the same side of *every* minimum cut; a vertex may be in neither mask.

    Attributes:
        source: (num_vertices,) vertices that the source reaches through residual arcs.
        sink: (num_vertices,) vertices that reach the sink through residual arcs: the sink side of the minimum cut that
            is closest to the sink.
    """

    source: BoolArray
    sink: BoolArray


# Merges parallel arcs: capacities and tiebreaks add up, infinity stays infinity.
def _merged(
    num_vertices: int,
    tails: IntArray,
    heads: IntArray,
    capacities: IntArray,
    ties: tuple[IntArray, ...],
    inner: BoolArray,
    infinity: int,
) -> Network:
    codes, group = np.unique(tails[inner] * num_vertices + heads[inner], return_inverse=True)

    def summed(column: IntArray) -> IntArray:
        total = np.zeros(len(codes), np.int64)
        np.add.at(total, group, column[inner])
        return total

    infinite = mask_of(group[capacities[inner] >= infinity], len(codes))
    finite = summed(np.where(capacities >= infinity, 0, capacities))
    merged = np.where(infinite, infinity, finite)
    return Network(
        num_vertices, codes // num_vertices, codes % num_vertices, merged, infinity, tuple(map(summed, ties))
    )


@dataclass(frozen=True, eq=False)
class Reduction:
    """Holds a problem's network, and what is needed to read a cut of it as a choice.

    Attributes:
        network: the network. Among minimum cuts, its tiebreaks prefer the fewest saved bytes (the lowest cost, if the
            multipliers count only bytes), then the fewest saved values.
        unit: the weight of one unit of the network's capacity.
        base: the weight of the values that every plan saves; they are not in the network.
        in_vertex, out_vertex: (n,) the two vertices of each value.
        offloaded: (n,) the values that are offloaded if they are saved, because that weighs less, or because the
            weights are equal and the tiebreaks prefer it.
    """

    network: Network
    unit: int
    base: int
    in_vertex: IntArray
    out_vertex: IntArray
    offloaded: BoolArray

    @classmethod
    def of(cls, problem: Problem, weights: Multipliers = BY_COST, rules: ForcedValues | None = None) -> Reduction:
        """Builds the network of a feasible problem, in time linear in the graph.

        Args:
            problem: a feasible problem; its budget is not part of the network.
            weights: the multipliers of cost and of saved bytes; by default bytes are free.
            rules: `forced_values(problem)`, if it has been computed.

        Raises:
            UnsupportedProblem: the weighted prices add up to 2**62 or more.
        """
        return Arcs.of(problem, rules).with_multipliers(weights)

    def choice(self, sink_side: BoolArray) -> Choice:
        """Returns the choice of a cut, which is a mask (num_vertices,) of its sink side.

        A value is saved if the cut contains its in-out arc, and recomputed if both its vertices are on the sink side.
        """
        inside, outside = sink_side[self.in_vertex], sink_side[self.out_vertex]
        saved = ~inside & outside
        return Choice(saved, inside & outside, saved & self.offloaded)

    def sink_side(self, choice: Choice) -> BoolArray:
        """Returns a mask (num_vertices,) of the sink side of the cut of a choice."""
        side = mask_of(self.out_vertex[choice.saved | choice.recomputed], self.network.num_vertices)
        side[self.in_vertex[choice.recomputed]] = True
        side[SINK] = True
        return side


@dataclass(frozen=True, eq=False)
class Arcs:
    """Holds the network of a feasible problem without capacities, which is the same for all multipliers."""

    problem: Problem
    in_vertex: IntArray  # (n,)
    out_vertex: IntArray  # (n,)
    always_saved: BoolArray  # (n,) values that every plan saves; they are not in the network
    save_values: IntArray  # positions of the values with an arc for saving
    recompute_values: IntArray  # positions of the values with an arc for recomputing
    tails: IntArray  # (k,) arcs of `save_values`, then of `recompute_values`, then of the uses
    heads: IntArray

    @classmethod
    def of(cls, problem: Problem, rules: ForcedValues | None = None) -> Arcs:
        """Builds the arcs, in time linear in the graph. `rules` is `forced_values(problem)`, if already computed."""
        rules = rules or forced_values(problem)
        n = len(problem)
        in_vertex = np.where(rules.not_recomputable, SOURCE, np.arange(2, 2 + n))
        out_vertex = np.arange(2 + n, 2 + 2 * n)
        out_vertex[problem.needed] = SINK
        out_vertex[rules.unavailable] = SOURCE

        always_saved = rules.not_recomputable & problem.needed
        use = (out_vertex[problem.producers] != SINK) & (in_vertex[problem.consumers] != SOURCE)
        is_useful = problem.needed.copy()
        is_useful[problem.producers[use]] = True
        use &= is_useful[problem.consumers]
        save_values = (is_useful & ~(always_saved | rules.unavailable)).nonzero()[0]
        recompute_values = (is_useful & ~rules.not_recomputable & (problem.recompute_cost > 0)).nonzero()[0]
        tails = [in_vertex[save_values], np.full(len(recompute_values), SOURCE), out_vertex[problem.producers[use]]]
        heads = [out_vertex[save_values], in_vertex[recompute_values], in_vertex[problem.consumers[use]]]
        ends = (frozen(np.concatenate(parts)) for parts in (tails, heads))
        return cls(problem, in_vertex, out_vertex, always_saved, save_values, recompute_values, *ends)

    def with_multipliers(self, weights: Multipliers) -> Reduction:
        """Returns the reduction under multipliers, with array objects of its own.

        Raises:
            UnsupportedProblem: the weighted prices add up to 2**62 or more.
        """
        problem, save_values, recompute_values = self.problem, self.save_values, self.recompute_values
        terms = _PricedArcs.of(problem, weights)
        unit, save_weight, recompute_weight = terms.unit, terms.save, terms.recompute
        infinity = int(save_weight.sum() + recompute_weight.sum()) + 1
        can_save = ~problem.cannot_save.mask[save_values]
        saving = np.where(can_save, save_weight[save_values], infinity)
        uses = np.zeros(len(self.tails) - len(save_values) - len(recompute_values), np.int64)
        no_tie = np.zeros(len(recompute_values), np.int64)
        recompute_ties = no_tie if weights.cost else problem.recompute_cost[recompute_values]
        network = Network(
            num_vertices=2 + 2 * len(problem),
            tails=separate_view(self.tails),
            heads=separate_view(self.heads),
            capacities=np.concatenate([saving, recompute_weight[recompute_values], uses + infinity]),
            infinity=infinity,
            tiebreaks=(
                np.concatenate([np.where(can_save, terms.save_tie[save_values], 0), recompute_ties, uses]),
                np.concatenate([can_save.astype(np.int64), no_tie, uses]),
            ),
        )
        base = unit * int(save_weight[self.always_saved].sum())
        return Reduction(network, unit, base, self.in_vertex, self.out_vertex, terms.offloaded)


@dataclass(frozen=True, eq=False)
class _PricedArcs:
    unit: int  # of all weights below
    save: IntArray  # (n,) on the device or on the host, whichever weighs less
    recompute: IntArray
    save_tie: IntArray  # (n,) the first tiebreak of saving: bytes on the device, or cost where bytes alone count
    offloaded: BoolArray  # (n,) whether saving means offloading

    @classmethod
    def of(cls, problem: Problem, weights: Multipliers) -> _PricedArcs:
        unit, (save, recompute, *copies) = _in_units(problem, weights)
        tie = problem.save_bytes if weights.cost else problem.save_cost
        if problem.offload is None:
            return cls(unit, save, recompute, tie, np.zeros(len(problem), np.bool_))
        (host,) = copies
        host_tie = 0 if weights.cost else problem.offload.cost
        is_cheaper = (host < save) | (host == save) & (host_tie < tie)
        offloaded = is_cheaper & ~problem.offload.banned.mask & ~problem.cannot_save.mask
        return cls(unit, np.where(offloaded, host, save), recompute, np.where(offloaded, host_tie, tie), offloaded)


# Returns a unit, and arrays (n,) of the weights of saving, recomputing and possibly offloading in that unit.
def _in_units(problem: Problem, weights: Multipliers) -> tuple[int, tuple[IntArray, ...]]:
    costs = [problem.save_cost, problem.recompute_cost]
    if problem.offload is not None:
        costs.append(problem.offload.cost)
    if weights == BY_COST:
        return 1, tuple(costs)
    cost_unit, byte_unit = (
        max(math.gcd(*map(int, map(np.gcd.reduce, columns))), 1) for columns in (costs, [problem.save_bytes])
    )
    # The multipliers of each column of costs, and of the bytes in it.
    prices = [(weights.cost, weights.byte), (weights.cost, 0), (weights.cost, 0)][: len(costs)]
    unit = math.gcd(*(cost * cost_unit for cost, _ in prices), *(byte * byte_unit for _, byte in prices))
    factors = [(cost * cost_unit // unit, byte * byte_unit // unit) for cost, byte in prices]
    units = [column // cost_unit for column in costs]
    sizes = problem.save_bytes // byte_unit
    parts = zip(factors, units, strict=True)
    total = sum(cost * int(column.sum()) + byte * int(sizes.sum()) for (cost, byte), column in parts)
    if total >= LARGEST_TOTAL:
        raise UnsupportedProblem(
            f"{weights.cost} * costs + {weights.byte} * bytes add up to {total}, not below 2**62; take coarser units"
        )
    return unit, tuple(cost * column + byte * sizes for (cost, byte), column in zip(factors, units, strict=True))
