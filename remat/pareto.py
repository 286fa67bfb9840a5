"""`remat.frontier`: memory against time, the whole trade-off, with a bound at every budget."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from remat.arrays import is_whole
from remat.budget import flow_solver
from remat.certify import check_plan
from remat.costmodel import CostModel
from remat.errors import InvalidOption
from remat.estimator import Estimator
from remat.graph import Graph
from remat.hull import Edge, Hull, Vertex
from remat.plan import Plan
from remat.problem import Problem
from remat.registry import DEFAULT_ESTIMATOR, DEFAULT_SOLVER, costmodel_class, find_costmodel, find_solver
from remat.report import PlanFacts
from remat.sizes import parse_bytes
from remat.solve import solve
from remat.solver import Solver

if TYPE_CHECKING:
    import pandas as pd  # pyright: ignore[reportMissingTypeStubs]  # pandas ships none
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Point:
    """A plan on, or near, the frontier.

    Attributes:
        budget_bytes: the budget that it was found for; of a hull vertex, its own bytes.
        saved_bytes: what the plan saves.
        cost: what the plan costs, in the frontier's unit.
        bound: no plan that saves up to `budget_bytes` costs less, and that is proven.
        plan: what to save and recompute.
        solver: who found it.
        is_vertex: a vertex of the convex hull.
    """

    budget_bytes: int
    saved_bytes: int
    cost: int
    bound: int
    plan: Plan
    solver: str
    is_vertex: bool = False

    @property
    def point(self) -> tuple[int, int]:
        """(saved bytes, cost)."""
        return self.saved_bytes, self.cost

    @property
    def gap(self) -> float:
        """(cost - bound) / cost: how far from optimal the plan may be at most."""
        return (self.cost - self.bound) / self.cost if self.cost else 0.0

    @property
    def is_proven(self) -> bool:
        """No plan within the budget costs less."""
        return self.cost == self.bound


@dataclass(frozen=True, eq=False)
class Frontier:
    """The trade-off between saved bytes and cost.

    The vertices of its lower convex hull are exact, each with the flow that proves it. In between
    lie plans that no price of memory finds (that is a knapsack); `refine` looks for them, and
    `bound` tells how good a plan there can be at most.

    Attributes:
        problem: what was solved, without a budget.
        unit: of the costs: "ns", "flops".
        points: in the order of their saved bytes. Without a refinement, the vertices.
        edges: of the hull, from the fewest bytes to the lowest cost, with their proofs.
        graph: what the problem is about, if it was not given as a problem.
    """

    problem: Problem
    unit: str
    points: tuple[Point, ...]
    edges: tuple[Edge, ...]
    graph: Graph | None = None

    @property
    def vertices(self) -> tuple[Point, ...]:
        """The vertices of the convex hull, from the fewest bytes to the lowest cost."""
        return tuple(point for point in self.points if point.is_vertex)

    def bound(self, budget_bytes: int) -> int | None:
        """What every plan that saves up to `budget_bytes` costs at least; None if there is no such plan."""
        smallest, cheapest = self.vertices[0], self.vertices[-1]
        if budget_bytes < smallest.saved_bytes:
            return None
        return max((edge.bound(budget_bytes) for edge in self._near(budget_bytes)), default=cheapest.cost)

    def _near(self, budget_bytes: int) -> tuple[Edge, ...]:
        """The edges over a budget: two where it is the bytes of a vertex."""
        if budget_bytes >= self.vertices[-1].saved_bytes:
            return ()
        right = bisect_right(self.edges, budget_bytes, key=lambda edge: edge.left.saved_bytes)
        return self.edges[max(right - 2, 0) : right]

    def at(self, budget_bytes: int | str) -> Point:
        """The best plan known that saves up to a budget (bytes, or a size such as "8GB").

        Raises:
            InvalidOption: no plan saves so little.
        """
        limit = _bytes(budget_bytes)
        fitting = [point for point in self.points if point.saved_bytes <= limit]
        if not fitting:
            raise InvalidOption(
                f"budget_bytes must be at least {self.points[0].saved_bytes}, the fewest bytes that any plan saves, "
                f"got {budget_bytes!r}"
            )
        return min(fitting, key=lambda point: (point.cost, point.saved_bytes))

    def refine(
        self,
        budgets: int | Iterable[int | str] = 16,
        solver: str | Solver = "lagrangian",
        *,
        time_limit_s: float | None = None,
    ) -> Frontier:
        """Adds the best plan that a solver finds at each of some budgets.

        Args:
            budgets: how many, evenly spaced between the ends; or which, in bytes or sizes ("8GB").
            solver: one that takes a byte budget: `lagrangian`, `cpsat`, `pulp`.
            time_limit_s: for each budget, if the solver takes a limit.

        Raises:
            Infeasible: a budget is below the fewest bytes that any plan saves.
            LimitReached, UnsupportedProblem: see `remat.solve`.
        """
        chosen = find_solver(solver)
        if isinstance(budgets, int):
            ends = self.points[0].saved_bytes, self.points[-1].saved_bytes
            budgets = sorted({int(budget) for budget in np.linspace(*ends, budgets + 2)[1:-1]})
        found = [self._solved(_bytes(budget), chosen, time_limit_s) for budget in budgets]
        points = sorted((*self.points, *found), key=lambda point: (point.saved_bytes, -point.cost))
        return replace(self, points=tuple(points))

    def _solved(self, budget_bytes: int, solver: Solver, time_limit_s: float | None) -> Point:
        problem = replace(self.problem, budget_bytes=budget_bytes)
        solution = solve(problem, solver, time_limit_s=time_limit_s)
        assert solution.plan is not None  # solve() raises where there is none
        saved_bytes, cost = self.price(solution.plan)
        # A solver's own bound is its word only: what counts here is proven.
        proven = solution.bound if solution.is_proven else None
        bound = max(self.bound(budget_bytes) or 0, proven or 0)
        return Point(budget_bytes, saved_bytes, cost, bound, solution.plan, solver.name)

    def price(self, plan: Plan) -> tuple[int, int]:
        """(saved bytes, cost) of any plan for the same graph, say PyTorch's (`remat.pytorch.budgets`).

        It may save views, which count with what owns their memory, once.

        Raises:
            InvalidPlan: it is not legal.
        """
        if self.graph is None:
            cost = check_plan(self.problem, plan)
            return int(self.problem.save_bytes[plan.masks(self.problem)[0]].sum()), cost
        check_plan(self.graph.unpriced, plan)
        return PlanFacts.of(self.graph, plan).saved_bytes, self.problem.cost(*plan.masks(self.problem))

    def as_frame(self) -> pd.DataFrame:
        """A row for each point; the bound is that of its budget."""
        import pandas as pd  # pyright: ignore[reportMissingTypeStubs]

        columns = ("budget_bytes", "saved_bytes", "cost", "bound", "gap", "is_proven", "is_vertex", "solver")
        rows = [{column: getattr(point, column) for column in columns} for point in self.points]
        return pd.DataFrame(rows).rename(columns={"cost": f"cost_{self.unit}", "bound": f"bound_{self.unit}"})

    def plot(
        self, path: str | Path | None = None, *, beside: Mapping[str, Iterable[tuple[int, int]]] | None = None
    ) -> Figure:
        """Draws the points, the bound under them, and other points beside them.

        Args:
            path: writes the picture there, in the format of the suffix: .svg, .png, .pdf.
            beside: label -> (saved bytes, cost) of other plans; see `price`.

        Raises:
            NotInstalled: matplotlib is missing.
        """
        from remat.pareto_plot import draw

        return draw(self, path, dict(beside or {}))

    def __repr__(self) -> str:
        first, last = self.points[0], self.points[-1]
        return (
            f"<Frontier: {len(self.points)} plans ({len(self.vertices)} vertices), from {first.saved_bytes} bytes at "
            f"{first.cost} {self.unit} to {last.saved_bytes} bytes at {last.cost} {self.unit}>"
        )


def frontier(
    graph: Graph | Problem,
    *,
    estimator: str | Estimator = DEFAULT_ESTIMATOR,
    cost_model: str | CostModel | None = None,
    solver: str | Solver = DEFAULT_SOLVER,
) -> Frontier:
    """The exact lower convex hull of (saved bytes, cost), by minimum cuts.

    Args:
        graph: a joint graph; or a problem, whose budget is ignored.
        estimator: of the recompute time that is traded against memory.
        cost_model: another trade-off than recompute time; its own budget, if any, is ignored.
        solver: a flow solver.

    Raises:
        Infeasible: the bans leave no plan.
        InvalidOption: the solver is no flow solver.
    """
    if isinstance(graph, Graph):
        model = find_costmodel(cost_model or _recompute_time(estimator))
        problem, unit, of = model.pose(graph), model.unit, graph
    else:
        problem, unit, of = graph, "cost", None
    problem = replace(problem, budget_bytes=None)
    flow = flow_solver(solver)
    hull = Hull(problem, flow)
    edges = hull.edges()
    # One choice may be the best in both: no edge, one vertex.
    vertices = [edges[0].left, *(edge.right for edge in edges)] if edges else [hull.cheapest]
    points = tuple(_point(problem, vertex, flow.name) for vertex in vertices)
    return Frontier(problem, unit, points, tuple(edges), of)


def _recompute_time(estimator: str | Estimator) -> CostModel:
    plugin: Any = costmodel_class("recompute-time")
    return plugin(estimator=estimator)


def _point(problem: Problem, vertex: Vertex, solver: str) -> Point:
    plan = Plan.of(problem, vertex.saved, vertex.recomputed)
    return Point(vertex.saved_bytes, vertex.saved_bytes, vertex.cost, vertex.cost, plan, solver, is_vertex=True)


def _bytes(budget: int | str) -> int:
    if isinstance(budget, str):
        return parse_bytes(budget, "budget")
    if not is_whole(budget) or budget < 0:
        raise InvalidOption(f'a budget must be a non-negative number of bytes or a size such as "8GB", got {budget!r}')
    return int(budget)
