"""Computes the lower convex hull of (saved bytes, cost), vertex by vertex, with a proof of each edge.

For a chord between two vertices, take the multipliers under which both weigh the same (`Multipliers.equalizing`), and
compute a minimum cut. If no choice weighs less, the chord is an edge of the hull, and the flow proves it. Otherwise the
cut is a vertex below the chord, which splits it in two. Every cut finds a vertex or an edge, so v vertices take 2 v - 1
cuts.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from remat.answer.choice import Choice
from remat.answer.network import Arcs
from remat.answer.solution import FlowCertificate
from remat.answer.solver import FlowSolver, MaxFlow
from remat.errors import CertificateRejected, UnsupportedProblem
from remat.problem.feasibility import check_feasible, forced_values
from remat.problem.multipliers import BY_BYTES, BY_COST, Multipliers
from remat.problem.problem import Problem
from remat.proof.certify import proven_weight


@dataclass(frozen=True, eq=False)
class Vertex:
    """Holds a choice with its bytes and its cost; a vertex of a `Hull` is optimal under some multiplier on bytes."""

    choice: Choice
    saved_bytes: int
    cost: int

    @classmethod
    def of(cls, problem: Problem, choice: Choice) -> Vertex:
        return cls(choice, choice.saved_bytes(problem), choice.cost(problem))

    @property
    def point(self) -> tuple[int, int]:
        return self.saved_bytes, self.cost


@dataclass(frozen=True, eq=False)
class Edge:
    """Holds two neighbouring vertices of a hull, and the proof that no choice is below the line through them."""

    left: Vertex  # saves fewer bytes, and costs more
    right: Vertex
    certificate: FlowCertificate
    weight: int  # a lower bound on the weight of every choice, under the multipliers of the certificate

    @property
    def is_exact(self) -> bool:
        """Returns whether the line contains both ends. If not, 62 bits were too few for equalizing multipliers."""
        weights = self.certificate.multipliers
        return weights.weigh(*self.left.point) == self.weight == weights.weigh(*self.right.point)

    def bound(self, budget_bytes: int) -> int:
        """Returns a lower bound on the cost of every choice that saves up to `budget_bytes`."""
        bound = self.certificate.multipliers.bound(self.weight, budget_bytes)
        assert bound is not None  # an edge weighs costs, too
        return bound


@dataclass(frozen=True, eq=False)
class Hull:
    """Searches the lower convex hull of (saved bytes, cost) over all choices of a feasible problem.

    The budget of the problem has no effect. Every flow is checked before it is used.
    """

    problem: Problem
    solver: FlowSolver

    def __post_init__(self) -> None:
        _ = self._arcs

    @cached_property
    def _arcs(self) -> Arcs:
        rules = forced_values(self.problem)
        check_feasible(self.problem, rules)
        return Arcs.of(self.problem, rules)

    @cached_property
    def smallest(self) -> Vertex:
        """Returns the choice that saves the fewest bytes, and of those costs least."""
        return self._vertex(self._flow(BY_BYTES))

    @cached_property
    def cheapest(self) -> Vertex:
        """Returns the choice that costs least, and of those saves the fewest bytes."""
        return self._vertex(self._flow(BY_COST))

    def edges(self) -> list[Edge]:
        edges: list[Edge] = []
        pending = [(self.smallest, self.cheapest)]
        while pending:
            left, right = pending.pop()
            part = self.between(left, right)
            if isinstance(part, Edge):
                edges.append(part)
            elif part is not None:
                pending += [(part, right), (left, part)]
        return edges

    def edge_at(self, budget_bytes: int) -> Edge | None:
        """Returns the edge over a budget of saved bytes; None if the cheapest choice keeps the budget.

        The budget must be at least the bytes of `smallest`.
        """
        left, right = self.smallest, self.cheapest
        while left.saved_bytes <= budget_bytes < right.saved_bytes:
            part = self.between(left, right)
            if part is None or isinstance(part, Edge):
                return part
            left, right = (part, right) if part.saved_bytes <= budget_bytes else (left, part)
        return None

    def between(self, left: Vertex, right: Vertex) -> Vertex | Edge | None:
        """Returns a vertex below the chord, or the chord as an edge with its proof; None if the chord has no length."""
        if left.saved_bytes >= right.saved_bytes:
            return None
        for weights in Multipliers.equalizing(left.point, right.point).ever_coarser():
            with suppress(UnsupportedProblem):  # too large for the solver: use coarser multipliers
                return self._between(left, right, weights)
        return self._between(left, right, BY_COST)

    def _between(self, left: Vertex, right: Vertex, weights: Multipliers) -> Vertex | Edge:
        flow = self._flow(weights)
        # The flow alone proves that no choice weighs less than the chord. Most choices tie here, so a cut would take
        # long.
        if flow.weight < min(weights.weigh(*left.point), weights.weigh(*right.point)):
            middle = self._vertex(flow)
            if left.saved_bytes < middle.saved_bytes < right.saved_bytes:
                return middle
        return Edge(left, right, flow.certificate, flow.weight)

    def _flow(self, weights: Multipliers) -> MaxFlow:
        flow = self.solver.max_flow(self._arcs, weights)
        proven = proven_weight(self.problem, flow.certificate, self._arcs)
        if flow.weight != proven:
            raise CertificateRejected(f"{self.solver.name}: the flow proves {proven}, not {flow.weight} as claimed")
        return flow

    def _vertex(self, flow: MaxFlow) -> Vertex:
        vertex = Vertex.of(self.problem, self.solver.cut(flow))
        weight = flow.certificate.multipliers.weigh(*vertex.point)
        if weight != flow.weight:
            raise CertificateRejected(
                f"{self.solver.name}: the minimum cut weighs {weight}, not {flow.weight} as claimed"
            )
        return vertex
