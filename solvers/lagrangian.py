"""Replaces a budget by a Lagrange multiplier: a few minimum cuts give a plan, and a proven bound on its gap."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

import numpy as np

from remat import Choice, Plan, Problem, Solution, TerminationReason, solve
from remat.answer.solver import residual_sides
from remat.plugin import SINK, BoolArray, Feature, FlowCertificate, FlowSolver, Network, Reduction, Solver, Termination
from remat.proof.budget import flow_solver
from remat.proof.hull import Edge, Hull, Vertex
from solvers.knapsack import DynamicKnapsack, GreedyKnapsack


@dataclass(frozen=True)
class Lagrangian(Solver):
    """Finds the edge of the convex hull at the budget, and approaches the budget from both ends of the edge.

    The flow of that edge is a bound for every plan within the budget (`remat.problem.multipliers`), so the gap is
    proven. The left end of the edge keeps the budget. At the multiplier of the edge, many choices tie, because models
    repeat their layers. All of them are minimum cuts, which differ by sets of values that change sides together. So
    from the left end, these sets change sides one by one, the largest that fits first.

    The right end exceeds the budget, by d bytes: from there, the search drops at least d bytes at the least cost. A
    value counts at most d bytes, so that a small value that is enough is preferred to a large one. Two more starts are
    the plans of `solvers.knapsack`. They are rarely near the bound, but sometimes the best on small models with few
    large values. So no answer is worse than these plans.

    Each start is then refilled: saved values become free, values that no longer fit are banned, and the search runs
    again for the rest of the budget, until the plan does not improve.

    With budgets of some values, each budget alone gives a bound and a plan, and the highest bound counts. One more plan
    keeps the budgets one after the other: what the plan does not save under one budget is banned under the next ones.
    If none of these plans keeps all budgets, the solver returns no plan, though there may be one.
    """

    name: ClassVar[str] = "lagrangian"
    exact: ClassVar[bool] = False
    features: ClassVar[frozenset[Feature]] = frozenset({Feature.BUDGET, Feature.OFFLOAD, Feature.ROWS})

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        if problem.rows:
            return self._within_all(problem)
        flow = flow_solver()
        hull = Hull(replace(problem, budget_bytes=None), flow)
        cheapest = flow.minimum_cut(problem)
        if problem.budget_bytes is None or cheapest.choice.saved_bytes(problem) <= problem.budget_bytes:
            plan = cheapest.choice.plan(problem)
            claim = Termination(TerminationReason.OPTIMAL, cheapest.weight)
            return Solution(plan, cheapest.weight, claim, cheapest.certificate, self.name)
        edge = hull.edge_at(problem.budget_bytes)
        assert edge is not None  # because the cheapest choice does not fit
        starts = [_fill(hull.problem, edge, problem.budget_bytes), _trim(problem, edge.right, flow)]
        for knapsack in (GreedyKnapsack(), DynamicKnapsack()):
            starts.append(Vertex.of(problem, knapsack.choice(problem, cheapest)))
        distinct = {start.choice: start for start in starts if start is not None}
        refilled = [_refill(problem, start, flow) for start in distinct.values()]
        best = min(refilled, key=lambda vertex: (vertex.cost, vertex.saved_bytes))
        bound = edge.bound(problem.budget_bytes)
        reason = TerminationReason.OPTIMAL if best.cost == bound else TerminationReason.FEASIBLE
        plan = best.choice.plan(problem)
        return Solution(plan, best.cost, Termination(reason, bound), edge.certificate, self.name)

    def _within_all(self, problem: Problem) -> Solution:
        found = [self._solve(problem.with_one_budget(at), time_limit_s=None) for at in range(len(problem.budgets))]
        at = max(range(len(found)), key=lambda position: found[position].bound or 0)
        bound, certificate = found[at].bound, replace(cast(FlowCertificate, found[at].certificate), budget=at)
        choices, bans = [Choice.from_plan(problem, cast(Plan, one.plan)) for one in found], problem.cannot_save
        for at in reversed(range(len(found))):  # the budget of all values last: the rest of the plan is filled to it
            alone = replace(problem.with_one_budget(at), cannot_save=bans)
            if (plan := solve(alone, self, throw=False).plan) is None:
                break
            choices.append(Choice.from_plan(problem, plan))
            bans = bans.also((alone.save_bytes > 0) & ~choices[-1].saved, "another budget has no room for it")
        fitting = [choice for choice in choices if choice.keeps_budget(problem)]
        if not fitting:
            return Solution(None, None, Termination(TerminationReason.NO_PLAN_FOUND, bound), certificate, self.name)
        best = min(fitting, key=lambda choice: (choice.cost(problem), choice.saved_bytes(problem)))
        plan, cost = best.plan(problem), best.cost(problem)
        reason = TerminationReason.OPTIMAL if cost == bound else TerminationReason.FEASIBLE
        return Solution(plan, cost, Termination(reason, bound), certificate, self.name)


# Spends the rest of the budget: already saved values are free, and may stay.
def _refill(problem: Problem, start: Vertex, flow: FlowSolver) -> Vertex:
    assert problem.budget_bytes is not None
    best = start
    must_fit = np.ones(len(problem), np.bool_) if problem.offload is None else problem.offload.banned.mask
    while True:
        slack, is_saved = problem.budget_bytes - best.saved_bytes, best.choice.on_device
        too_large = ~is_saved & must_fit & (problem.save_bytes > slack)
        paid = replace(
            problem,
            save_bytes=np.where(is_saved, 0, problem.save_bytes),
            cannot_save=problem.cannot_save.also(too_large, "larger than what is left"),
            budget_bytes=None,
        )
        refilled = Vertex.of(problem, _within(Hull(paid, flow), slack).choice)
        if refilled.cost >= best.cost:
            return best
        best = refilled


# Drops enough bytes from a choice above the budget, at the least cost that a multiplier on bytes finds. None if dropped
# bytes would have to be saved elsewhere, where the trimmed sizes gain nothing.
def _trim(problem: Problem, start: Vertex, flow: FlowSolver) -> Vertex | None:
    assert problem.budget_bytes is not None
    excess = start.saved_bytes - problem.budget_bytes
    is_saved = start.choice.on_device
    size = np.where(is_saved, np.minimum(problem.save_bytes, excess), problem.save_bytes)
    capped = replace(problem, save_bytes=size, budget_bytes=None)
    hull, target = Hull(capped, flow), int(size[is_saved].sum()) - excess
    if hull.smallest.saved_bytes > target:
        return None
    return Vertex.of(problem, _within(hull, target).choice)


def _within(hull: Hull, budget_bytes: int) -> Vertex:
    edge = hull.edge_at(budget_bytes)
    return hull.cheapest if edge is None else _fill(hull.problem, edge, budget_bytes)


def _fill(problem: Problem, edge: Edge, budget_bytes: int) -> Vertex:
    if not edge.is_exact:  # then its left end may not be a minimum cut
        return edge.left
    reduction = Reduction.of(problem, edge.certificate.multipliers)
    network, flow = reduction.network, edge.certificate.flow
    face, vertex = network.face(flow, residual_sides(network, flow))
    sink_side = reduction.sink_side(edge.left.choice)
    free = vertex > SINK
    on_sink_side = np.zeros(face.num_vertices, np.bool_)
    on_sink_side[vertex[free]] = sink_side[free]
    for block in _blocks_to_save(face, on_sink_side, budget_bytes - edge.left.saved_bytes):
        on_sink_side[block] = False
    sink_side[free] = on_sink_side[vertex[free]]
    return Vertex.of(problem, reduction.choice(sink_side))


# Yields blocks of vertices that may leave the sink side together, the largest that fits the slack first. A block is
# strongly connected by arcs that no minimum cut contains; it may leave once no such arc leads from it to the sink side.
# A block adds the same number of saved bytes whichever blocks left before: an arc with a price is cut, or both its ends
# are on one side (`Network.face`).
def _blocks_to_save(face: Network, sink_side: BoolArray, slack_bytes: int) -> Iterator[list[int]]:
    import networkx

    inner = (face.tails > SINK) & (face.heads > SINK)
    uncuttable = inner & (face.capacities >= face.infinity)
    price = np.where(face.capacities >= face.infinity, 0, face.capacities)
    freed = np.zeros(face.num_vertices, np.int64)
    np.add.at(freed, face.tails, price)
    np.subtract.at(freed, face.heads, price)

    backend: Any = networkx  # partly typed
    graph = backend.DiGraph()
    graph.add_nodes_from(np.flatnonzero(sink_side).tolist())
    inside = uncuttable & sink_side[face.tails] & sink_side[face.heads]
    graph.add_edges_from(zip(face.tails[inside].tolist(), face.heads[inside].tolist(), strict=True))
    blocks = backend.condensation(graph)
    members = {block: sorted(blocks.nodes[block]["members"]) for block in blocks}
    waits_for = dict(blocks.out_degree())
    bytes_of = {block: int(freed[members[block]].sum()) for block in blocks}
    ready = [(-bytes_of[block], members[block][0], block) for block in blocks if not waits_for[block]]
    heapq.heapify(ready)
    while ready:
        *_, block = heapq.heappop(ready)
        if bytes_of[block] > slack_bytes:
            continue
        slack_bytes -= bytes_of[block]
        yield members[block]
        for earlier in blocks.predecessors(block):
            waits_for[earlier] -= 1
            if not waits_for[earlier]:
                heapq.heappush(ready, (-bytes_of[earlier], members[earlier][0], earlier))
