"""A price on memory instead of a budget: a few minimum cuts give a plan, and a proven bound on how far off it is."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from remat import Problem, Solution, TerminationReason
from remat.answer.solver import residual_sides
from remat.plugin import SINK, BoolArray, Feature, FlowSolver, Network, Reduction, Solver, Termination
from remat.proof.budget import flow_solver
from remat.proof.hull import Edge, Hull, Vertex
from solvers.knapsack import DynamicKnapsack, GreedyKnapsack


@dataclass(frozen=True)
class Lagrangian(Solver):
    """Finds the edge of the convex hull at the budget, and approaches the budget from both its ends.

    The flow of that edge bounds every plan within the budget (`remat.problem.multipliers`), so the gap is proven.

    From the left, within the budget: at the price of the edge many choices tie, for models repeat
    their layers. All of them are minimum cuts, and they differ by sets of values that flip together.
    Those flip one by one, the largest that fits first.

    From the right, above the budget by d bytes: drop at least d bytes at the least cost. There a
    value counts up to d bytes only, so that a small one that is enough beats a large one.

    Two more starts are the knapsacks of `solvers.knapsack`: hardly ever near the bound, but on small
    models with few and large values now and then nearest. So no answer is worse than theirs.

    Then what is saved is free, what no longer fits is out of reach, and the same again for the rest
    of the budget, until nothing gets better.
    """

    name: ClassVar[str] = "lagrangian"
    exact: ClassVar[bool] = False
    features: ClassVar[frozenset[Feature]] = frozenset({Feature.BUDGET, Feature.OFFLOAD})

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        flow = flow_solver()
        hull = Hull(replace(problem, budget_bytes=None), flow)
        cheapest = flow.minimum_cut(problem)
        if problem.budget_bytes is None or cheapest.choice.saved_bytes(problem) <= problem.budget_bytes:
            plan = cheapest.choice.plan(problem)
            claim = Termination(TerminationReason.OPTIMAL, cheapest.weight)
            return Solution(plan, cheapest.weight, claim, cheapest.certificate, self.name)
        edge = hull.edge_at(problem.budget_bytes)
        assert edge is not None  # the cheapest choice does not fit
        starts = [_filled(hull.problem, edge, problem.budget_bytes), _trimmed(problem, edge.right, flow)]
        for knapsack in (GreedyKnapsack(), DynamicKnapsack()):
            starts.append(Vertex.of(problem, knapsack.choice(problem, cheapest)))
        different = {start.choice: start for start in starts if start is not None}
        found = [_refilled(problem, start, flow) for start in different.values()]
        best = min(found, key=lambda vertex: (vertex.cost, vertex.saved_bytes))
        bound = edge.bound(problem.budget_bytes)
        reason = TerminationReason.OPTIMAL if best.cost == bound else TerminationReason.FEASIBLE
        plan = best.choice.plan(problem)
        return Solution(plan, best.cost, Termination(reason, bound), edge.certificate, self.name)


def _refilled(problem: Problem, start: Vertex, flow: FlowSolver) -> Vertex:
    """Spends what is left of the budget: what is saved already is free, and may stay."""
    assert problem.budget_bytes is not None
    best = start
    must_fit = np.ones(len(problem), np.bool_) if problem.offload is None else problem.offload.banned.mask
    while True:
        slack, kept = problem.budget_bytes - best.saved_bytes, best.choice.on_device
        too_large = ~kept & must_fit & (problem.save_bytes > slack)
        paid = replace(
            problem,
            save_bytes=np.where(kept, 0, problem.save_bytes),
            cannot_save=problem.cannot_save.also(too_large, "larger than what is left"),
            budget_bytes=None,
        )
        found = _within(Hull(paid, flow), slack)
        better = Vertex.of(problem, found.choice)
        if better.cost >= best.cost:
            return best
        best = better


def _trimmed(problem: Problem, start: Vertex, flow: FlowSolver) -> Vertex | None:
    """Drops from a choice above the budget what is enough, at the least cost that a price of memory finds.

    None if that takes saving values that are as large: in this measure they gain nothing.
    """
    assert problem.budget_bytes is not None
    excess = start.saved_bytes - problem.budget_bytes
    kept = start.choice.on_device
    size = np.where(kept, np.minimum(problem.save_bytes, excess), problem.save_bytes)
    capped = replace(problem, save_bytes=size, budget_bytes=None)
    hull, target = Hull(capped, flow), int(size[kept].sum()) - excess
    if hull.smallest.saved_bytes > target:
        return None
    found = _within(hull, target)
    return Vertex.of(problem, found.choice)


def _within(hull: Hull, budget_bytes: int) -> Vertex:
    edge = hull.edge_at(budget_bytes)
    return hull.cheapest if edge is None else _filled(hull.problem, edge, budget_bytes)


def _filled(problem: Problem, edge: Edge, budget_bytes: int) -> Vertex:
    if not edge.is_exact:  # then its left end need not be a minimum cut
        return edge.left
    reduction = Reduction.of(problem, edge.certificate.multipliers)
    network, flow = reduction.network, edge.certificate.flow
    face, vertex = network.face(flow, residual_sides(network, flow))
    sink_side = reduction.sink_side(edge.left.choice)
    free = vertex > SINK
    chosen = np.zeros(face.num_vertices, np.bool_)
    chosen[vertex[free]] = sink_side[free]
    for block in _blocks_to_save(face, chosen, budget_bytes - edge.left.saved_bytes):
        chosen[block] = False
    sink_side[free] = chosen[vertex[free]]
    return Vertex.of(problem, reduction.choice(sink_side))


def _blocks_to_save(face: Network, sink_side: BoolArray, slack_bytes: int) -> Iterator[list[int]]:
    """Vertices that may leave the sink side together, the largest that fits the slack first.

    A block is strongly connected by arcs that no minimum cut contains; it may leave once no such
    arc leads from it to the sink side. What that adds to the saved bytes is linear: an arc with a
    price is cut, or its ends are on one side (`Network.face`).
    """
    import networkx

    inner = (face.tails > SINK) & (face.heads > SINK)
    endless = inner & (face.capacities >= face.infinity)
    price = np.where(face.capacities >= face.infinity, 0, face.capacities)
    freed = np.zeros(face.num_vertices, np.int64)
    np.add.at(freed, face.tails, price)
    np.subtract.at(freed, face.heads, price)

    backend: Any = networkx  # partly typed
    graph = backend.DiGraph()
    graph.add_nodes_from(np.flatnonzero(sink_side).tolist())
    both = endless & sink_side[face.tails] & sink_side[face.heads]
    graph.add_edges_from(zip(face.tails[both].tolist(), face.heads[both].tolist(), strict=True))
    blocks = backend.condensation(graph)
    members = {block: sorted(blocks.nodes[block]["members"]) for block in blocks}
    waits_for = dict(blocks.out_degree())
    more = {block: int(freed[members[block]].sum()) for block in blocks}
    ready = [(-more[block], members[block][0], block) for block in blocks if not waits_for[block]]
    heapq.heapify(ready)
    while ready:
        *_, block = heapq.heappop(ready)
        if more[block] > slack_bytes:
            continue
        slack_bytes -= more[block]
        yield members[block]
        for earlier in blocks.predecessors(block):
            waits_for[earlier] -= 1
            if not waits_for[earlier]:
                heapq.heappush(ready, (-more[earlier], members[earlier][0], earlier))
