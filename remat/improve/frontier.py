"""Implements `remat.frontier`: the whole trade-off of memory against time, with a bound at every budget."""

from __future__ import annotations

import warnings
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.answer.plan_facts import no_recompute_plan
from remat.answer.registry import (
    DEFAULT_BUDGET_MODEL,
    DEFAULT_ESTIMATOR,
    DEFAULT_TIME_MODEL,
    QUICK_BUDGET_SOLVER,
    costmodel_class,
    find_costmodel,
    find_solver,
)
from remat.answer.solver import Solver
from remat.errors import InvalidOption, InvalidPlan
from remat.facts.argument_checks import checked_bytes
from remat.facts.graph import Graph
from remat.improve.byte_budgets import default_plan, default_saved_bytes, evenly_spaced, read_budgets
from remat.improve.offload_search import fit_offload
from remat.improve.point import Point
from remat.improve.progress import Progress, check_progress, is_over
from remat.predict.offloading import StepClock, simulated
from remat.predict.time import DeviceProfile
from remat.problem.constraints import base_problem
from remat.problem.costmodel import CostModel
from remat.problem.estimator import Estimator
from remat.problem.problem import Problem
from remat.proof.budget import flow_solver, least_bytes
from remat.proof.certify import check_plan
from remat.proof.hull import Edge, Hull, Vertex
from remat.proof.solve import solve

if TYPE_CHECKING:
    import pandas as pd  # pyright: ignore[reportMissingTypeStubs]  # pandas ships none
    from matplotlib.figure import Figure

PYTORCH = "PyTorch's default"
EAGER = "nothing runs twice (eager)"

# With a host, plans are searched at this many budgets, from the fewest bytes to what PyTorch's default plan saves.
_BUDGETS = 8
# The bound is drawn at this many budgets of an edge, if it is no straight line there.
_SAMPLES = 64


@dataclass(frozen=True, eq=False)
class Frontier:
    """Describes the trade-off between saved bytes and cost, with a lower bound at every budget.

    The vertices of the lower convex hull are exact, and a flow proves each. Between two vertices lie plans that are
    optimal for no Lagrange multiplier on memory (finding them is a knapsack); `refine` looks for them, and `bound` is a
    lower bound on their cost. Where costs times bytes are larger than the flow solver can count, vertices that lie
    close together may be missed; then `Edge.is_exact` is false, and `bound` still holds.

    Attributes:
        problem: what was solved, without a budget.
        unit: the unit of all costs, such as "ns" or "flops".
        points: plans in the order of their saved bytes. Before `refine`, these are the vertices.
        edges: edges of the hull with their proofs, from the fewest bytes to the lowest cost.
        graph: the graph of the problem; None if `frontier` was called with a problem.
        clock: the times of the step on a device that offloads to its host; None if nothing is offloaded. With a clock,
            a cost is the time that a plan adds to the step by simulation, each point has its own budget and bound, and
            there are no edges (`remat.improve.offload_search`).
    """

    problem: Problem
    unit: str
    points: tuple[Point, ...]
    edges: tuple[Edge, ...]
    graph: Graph | None = None
    clock: StepClock | None = None

    @property
    def vertices(self) -> tuple[Point, ...]:
        """Returns the vertices of the convex hull, from the fewest bytes to the lowest cost."""
        return tuple(point for point in self.points if point.is_vertex)

    def bound(self, budget_bytes: int | str) -> int | None:
        """Returns a lower bound on the cost of all plans within a budget of saved bytes; None if there is no such plan.

        Args:
            budget_bytes: bytes, or a size such as "8GB".
        """
        limit = checked_bytes("budget_bytes", budget_bytes)
        if self.clock is not None:
            is_infeasible = self.points[0].saved_bytes > limit
            return None if is_infeasible else max((p.bound for p in self.points if p.budget_bytes >= limit), default=0)
        vertices = self.vertices
        if limit < vertices[0].saved_bytes:
            return None
        # A bound at a larger budget holds at this one, too.
        after = min(bisect_left(vertices, limit, key=lambda vertex: vertex.saved_bytes), len(vertices) - 1)
        return max(vertices[after].bound, *(edge.bound(limit) for edge in self.edges[max(after - 1, 0) : after]), 0)

    def at(self, budget_bytes: int | str) -> Point:
        """Returns the cheapest point that saves at most a budget (bytes, or a size such as "8GB").

        Raises:
            InvalidOption: no plan saves so little.
        """
        limit = checked_bytes("budget_bytes", budget_bytes)
        fitting = [point for point in self.points if point.saved_bytes <= limit]
        if not fitting:
            raise InvalidOption(
                f"budget_bytes must be at least {self.points[0].saved_bytes}, the fewest bytes that any plan saves, "
                f"got {budget_bytes!r}"
            )
        return min(fitting, key=lambda point: (point.cost, point.saved_bytes))

    @cached_property
    def references(self) -> tuple[Point, ...]:
        """Returns PyTorch's default plan, and the plan that runs nothing twice; `Point.solver` says which is which.

        Without a graph, there are none. A plan that is not legal is left out: what it would save cannot be saved, or
        the user's demands forbid it. Costs include operators that run only in the backward pass.
        """
        if self.graph is None:
            return ()
        points: list[Point] = []
        for name, plan in ((PYTORCH, default_plan(self.graph)), (EAGER, no_recompute_plan(self.graph))):
            if plan is None or not _is_legal(self.graph, plan):
                continue
            saved_bytes, cost = self.price(plan)
            # A plan that breaks a ban of the cost model may cost less than the bound.
            bound = min(self.bound(saved_bytes) or 0, cost)
            points.append(Point(saved_bytes, saved_bytes, cost, bound, bound, plan, name))
        return tuple(points)

    def refine(
        self,
        budgets: int | Iterable[int | str] = 16,
        solver: str | Solver = QUICK_BUDGET_SOLVER,
        *,
        time_limit_s: float | None = None,
        progress: Progress | None = None,
    ) -> Frontier:
        """Returns the frontier with more points: the best plan that a solver finds at each of some budgets.

        Args:
            budgets: how many, evenly spaced between the ends; or a list of them, in bytes or sizes ("8GB").
            solver: a solver of problems with a byte budget; `remat plugins solvers` lists them.
            time_limit_s: seconds for each budget, if the solver takes a limit.
            progress: called with the number of budgets solved so far, and with how many there will be.

        Raises:
            Infeasible: a budget is below the fewest bytes that any plan saves.
            InvalidOption: a budget is neither bytes nor a size.
            LimitReached, UnsupportedProblem: see `remat.solve`.
        """
        chosen = find_solver(solver)
        check_progress(progress)
        sizes, new_points = self._budgets(budgets), list[Point]()
        for budget in sizes:
            if is_over() and (new_points or self.points):  # a frontier has one plan at least
                break
            new_points.append(self._solved(budget, chosen, time_limit_s))
            if progress is not None:
                progress(len(new_points), (len(sizes),))
        points = sorted((*self.points, *new_points), key=lambda point: (point.saved_bytes, -point.cost))
        return replace(self, points=tuple(points))

    def _budgets(self, budgets: int | Iterable[int | str]) -> list[int]:
        sizes = read_budgets(budgets)
        if isinstance(sizes, list):
            return sizes
        return sorted(set(evenly_spaced(self.points[0].saved_bytes, self.points[-1].saved_bytes, sizes + 2)[1:-1]))

    def _solved(self, budget_bytes: int, solver: Solver, time_limit_s: float | None) -> Point:
        problem = replace(self.problem, budget_bytes=budget_bytes)
        if self.clock is not None:
            return _offloaded(problem, self.clock, solver, time_limit_s)
        solution = solve(problem, solver, time_limit_s=time_limit_s)
        assert solution.plan is not None  # solve() raises where there is none
        saved_bytes, cost = self.price(solution.plan)
        claimed = solution.bound or 0
        bound = max(self.bound(budget_bytes) or 0, claimed if solution.is_proven else 0)
        return Point(budget_bytes, saved_bytes, cost, bound, max(bound, claimed), solution.plan, solver.name)

    def price(self, plan: Plan) -> tuple[int, int]:
        """Returns (saved bytes, cost) of any plan for the same graph, counted as in `bound`.

        PyTorch's plans (`remat.pytorch.measure.torch_budgets`) may save views though the problem bans that. Then the
        value that owns the view's memory is counted as saved, once, and the cost of computing the view from it is
        added.

        Raises:
            InvalidPlan: the plan is not legal.
        """
        added_ns = None
        if self.clock is not None:
            added_ns = simulated(self.clock, plan).added_ns
        else:
            check_plan(self.problem if self.graph is None else base_problem(self.graph), plan)
        choice = self._with_owners(plan)
        saved_bytes = int(self.problem.save_bytes[choice.on_device].sum())
        return saved_bytes, choice.cost(self.problem) if added_ns is None else added_ns

    def _with_owners(self, plan: Plan) -> Choice:
        choice, graph = Choice.from_plan(self.problem, plan), self.graph
        if graph is None:
            return choice
        saved, barred = graph.for_all_values(choice.saved), graph.for_all_values(self.problem.cannot_save.mask)
        views = saved & barred & ~barred[graph.base]
        if not views.any():
            return choice
        saved = saved & ~views
        saved[graph.base[views]] = True
        return Choice.from_saved(self.problem, saved[graph.plannable], choice.offloaded)

    def as_frame(self) -> pd.DataFrame:
        """Returns a table with a row for each point; each bound is the one at the point's own budget."""
        import pandas as pd  # pyright: ignore[reportMissingTypeStubs]

        prices = ("cost", "bound", "claimed_bound")
        columns = ("budget_bytes", "saved_bytes", *prices, "gap", "is_proven", "is_vertex", "solver")
        rows = [{column: getattr(point, column) for column in columns} for point in self.points]
        return pd.DataFrame(rows).rename(columns={price: f"{price}_{self.unit}" for price in prices})

    def plot(
        self,
        path: str | Path | None = None,
        *,
        other_points: Mapping[str, Iterable[tuple[int, int]]] | None = None,
        beside: Mapping[str, Iterable[tuple[int, int]]] | None = None,
    ) -> Figure:
        """Draws the points and the bound under them, with `references` and other points to compare with.

        Args:
            path: where to write the picture; the suffix says the format: .svg, .png, .pdf. None writes nothing.
            other_points: (saved bytes, cost) of other plans, by a label for the legend; `price` computes such pairs.
            beside: the old name of `other_points`; 0.4 removes it.

        Raises:
            NotInstalled: matplotlib is missing.
            InvalidOption: matplotlib knows no format of that suffix; or `other_points` holds no such pairs.
        """
        from remat.improve.frontier_plot import draw

        if beside is not None:
            warnings.warn("plot(beside=) is other_points= now; 0.4 removes it", DeprecationWarning, stacklevel=2)
            other_points = beside
        between = [point.point for point in self.points if not point.is_vertex]
        vertices = [point.point for point in self.vertices]
        references = {point.solver: [point.point] for point in self.references}
        model = self.graph.meta.get("model", "") if self.graph is not None else ""
        line = self._bound_line()
        return draw(vertices, between, line, references, other_points or {}, self.unit, model, path)

    def _bound_line(self) -> list[tuple[int, int]]:
        if self.clock is not None:
            return sorted((point.budget_bytes, point.bound) for point in self.points)
        # Between two vertices the bound is a straight line, unless the hull is not exact there.
        corners = {vertex.saved_bytes: vertex.bound for vertex in self.vertices}
        for edge in self.edges:
            if not edge.is_exact:
                between = evenly_spaced(edge.left.saved_bytes, edge.right.saved_bytes, _SAMPLES)
                corners |= {budget: self.bound(budget) or 0 for budget in between}
        return sorted(corners.items())

    def __repr__(self) -> str:
        first, last = self.points[0], self.points[-1]
        return (
            f"<Frontier: {len(self.points)} plans ({len(self.vertices)} vertices), from {first.saved_bytes} bytes at "
            f"{first.cost} {self.unit} to {last.saved_bytes} bytes at {last.cost} {self.unit}>"
        )


def _is_legal(graph: Graph, plan: Plan) -> bool:
    try:
        check_plan(base_problem(graph), plan)
    except InvalidPlan:
        return False
    return True


def frontier(
    graph: Graph | Problem,
    *,
    estimator: str | Estimator = DEFAULT_ESTIMATOR,
    cost_model: str | CostModel | None = None,
    solver: str | Solver | None = None,
    offload: bool | str | Path | DeviceProfile = False,
) -> Frontier:
    """Finds the exact lower convex hull of (saved bytes, cost), by minimum cuts.

    If values may wait on a host, the time that their copies add is no sum over values, so that there is no hull. Then
    the points are the best plans that are found at 8 budgets, each with a bound. `Frontier.refine` adds further ones.

    Args:
        graph: a joint graph; or a problem, whose budget is ignored.
        estimator: estimates the recompute time that is traded for memory.
        cost_model: defines the costs; None takes the recompute time. A budget of the cost model is ignored.
        solver: a flow solver; None takes the default one. With `offload`, a solver of problems with a byte budget.
        offload: True if activations may wait on the host of the estimator's device; or that device: a known name such
            as "h100", a file, or a profile.

    Raises:
        Infeasible: the bans leave no plan.
        InvalidOption: the solver is no flow solver; or a problem comes with a cost model or a device, though it has its
            own prices; or the device has no host.
        CertificateRejected: a flow does not prove its cut. That is a bug in the solver.
    """
    if offload is not False:
        return _with_host(graph, estimator, cost_model, solver, offload)
    problem, unit = _posed(graph, estimator, cost_model)
    flow = flow_solver(solver)
    hull = Hull(problem, flow)
    edges = hull.edges()
    first = edges[0].left if edges else hull.cheapest  # without edges, one choice is the best in both
    # The flow of the smallest choice proves only that no choice has fewer bytes. The edge proves what it costs.
    least = edges[0].bound(first.saved_bytes) if edges else first.cost
    vertices = [(first, least), *((edge.right, edge.right.cost) for edge in edges)]
    points = tuple(_point(problem, vertex, bound, flow.name) for vertex, bound in vertices)
    return Frontier(problem, unit, points, tuple(edges), graph if isinstance(graph, Graph) else None)


def _posed(
    graph: Graph | Problem, estimator: str | Estimator, cost_model: str | CostModel | None
) -> tuple[Problem, str]:
    if isinstance(graph, Graph):
        recompute_time: Any = costmodel_class(DEFAULT_TIME_MODEL)
        model = find_costmodel(recompute_time(estimator=estimator) if cost_model is None else cost_model)
        return replace(model.pose_without_peak(graph), budget_bytes=None, rows=()), model.unit
    if not isinstance(graph, Problem):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"frontier needs a remat.Graph or a remat.Problem, got {graph!r}")
    if cost_model is not None:
        raise InvalidOption(f"cost_model must be left out for a problem, which has its own prices, got {cost_model!r}")
    return replace(graph, budget_bytes=None, rows=()), "cost"


def _with_host(
    graph: Graph | Problem,
    estimator: str | Estimator,
    cost_model: str | CostModel | None,
    solver: str | Solver | None,
    offload: bool | str | Path | DeviceProfile,
) -> Frontier:
    if not isinstance(graph, Graph) or cost_model is not None:
        raise InvalidOption(
            "offload must be left out where the first argument is a problem or cost_model is given: then "
            "Problem.offload says what copies cost"
        )
    budgeted: Any = costmodel_class(DEFAULT_BUDGET_MODEL)
    model = budgeted("1024 B", estimator=estimator, offload=offload)
    problem = replace(model.pose(graph), budget_bytes=None)
    clock = StepClock.of(graph, model.offload_device).priced(problem.recompute_cost)
    least, most = least_bytes(problem).weight, default_saved_bytes(graph)
    empty = Frontier(problem, model.unit, (), (), graph, clock)
    return empty.refine(
        evenly_spaced(least, max(most, least), _BUDGETS), QUICK_BUDGET_SOLVER if solver is None else solver
    )


def _offloaded(problem: Problem, clock: StepClock, solver: Solver, time_limit_s: float | None) -> Point:
    solution = fit_offload(problem, clock, solver, time_limit_s=time_limit_s)
    assert solution.plan is not None  # fit_offload() raises where there is none
    saved_bytes = Choice.from_plan(problem, solution.plan).saved_bytes(problem)
    cost, bound = solution.objective or 0, solution.bound or 0
    return Point(problem.budget_bytes or 0, saved_bytes, cost, bound, bound, solution.plan, solution.solver)


def _point(problem: Problem, vertex: Vertex, bound: int, solver: str) -> Point:
    plan = vertex.choice.plan(problem)
    return Point(vertex.saved_bytes, *vertex.point, bound, bound, plan, solver, is_vertex=True)
