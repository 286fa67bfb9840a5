"""Implements `remat.step_frontier`: the peak of a training step against the time that it takes."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.answer.registry import DEFAULT_BUDGET_MODEL, QUICK_BUDGET_SOLVER, costmodel_class, find_solver
from remat.answer.solution import Termination, TerminationReason
from remat.answer.solver import check_time_limit
from remat.errors import InvalidOption, LimitReached
from remat.facts.argument_checks import checked_bytes
from remat.facts.graph import Graph, checked_graph
from remat.improve.byte_budgets import evenly_spaced, read_budgets
from remat.improve.one_liners import one_liners as plans_of_pytorch
from remat.improve.pareto_front import pareto_front
from remat.improve.peak_plans import PeakPlan, PeakPlans
from remat.improve.progress import Progress, check_progress, ended_early, ending_within, is_over
from remat.improve.step_predictor import StepPredictor, predictor_for
from remat.improve.step_search import StepPlans
from remat.predict.buffers.orders import with_torchs_order
from remat.proof.certify import check_plan

if TYPE_CHECKING:
    import pandas as pd  # pyright: ignore[reportMissingTypeStubs]  # pandas ships none
    from matplotlib.figure import Figure

OURS = "remat"


@dataclass(frozen=True)
class StepPoint:
    """Holds a plan with the predictions for its training step.

    Attributes:
        peak_bytes: the predicted peak of both passes; inputs and parameters do not count.
        step_ns: the modelled time of both passes in nanoseconds.
        plan: what to save and recompute; it need not be legal if PyTorch makes it.
        source: "remat", or what a user of PyTorch would have typed.
    """

    peak_bytes: int
    step_ns: float
    plan: Plan
    source: str = OURS


@dataclass(frozen=True, eq=False)
class StepFrontier:
    """Describes the fastest training steps found within limits of the peak, beside what PyTorch gives in one line.

    Peaks and times are predicted for one device. No proof is known that no step is faster.

    Attributes:
        points: plans by ascending peak; each is faster than the one before.
        one_liners: what PyTorch gives in one line (`remat.improve.one_liners`), by ascending peak; the peaks are those
            of `torch.compile`.
        device: the full name of the device, to be read by people.
        termination: what ended a search early, if anything did.
    """

    points: tuple[StepPoint, ...]
    one_liners: tuple[StepPoint, ...]
    device: str
    termination: Termination

    def at(self, limit_bytes: int | str) -> StepPoint:
        """Returns the point with the fastest step whose peak is at most a limit (bytes, or a size such as "8GB").

        Raises:
            InvalidOption: no plan found has so small a peak.
        """
        limit = checked_bytes("limit_bytes", limit_bytes)
        within = bisect_right(self.points, limit, key=lambda point: point.peak_bytes)
        if not within:
            raise InvalidOption(
                f"limit_bytes must be at least {self.points[0].peak_bytes}, the smallest peak found, got "
                f"{limit_bytes!r}"
            )
        return self.points[within - 1]

    def as_frame(self) -> pd.DataFrame:
        """Returns a table with a row for each of `points` and `one_liners`."""
        import pandas as pd  # pyright: ignore[reportMissingTypeStubs]

        rows = [(one.source, one.peak_bytes, round(one.step_ns)) for one in (*self.points, *self.one_liners)]
        return pd.DataFrame(rows, columns=["source", "peak_bytes", "step_ns"])

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draws peaks against step times: our plans as a line, PyTorch's as points.

        Args:
            path: where to write the picture; the suffix says the format: .svg, .png, .pdf. None writes nothing.

        Raises:
            NotInstalled: matplotlib is missing.
            InvalidOption: matplotlib knows no format of that suffix.
        """
        from remat.improve.frontier_plot import draw_steps

        ours, theirs = (
            [(one.source, one.peak_bytes, one.step_ns) for one in some] for some in (self.points, self.one_liners)
        )
        return draw_steps(ours, theirs, self.device, path)

    def __repr__(self) -> str:
        first, last = self.points[0], self.points[-1]
        return (
            f"<StepFrontier for {self.device}: {len(self.points)} plans, from a peak of {first.peak_bytes} bytes in "
            f"{first.step_ns:.0f} ns to {last.peak_bytes} bytes in {last.step_ns:.0f} ns>"
        )


def step_frontier(
    graph: Graph,
    budgets: int | Iterable[int | str] = 6,
    *,
    device: str | None = None,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> StepFrontier:
    """Searches for the fastest training step within each of several limits of its peak.

    Without a time limit, the plan within each limit is at least as fast as that of `remat.choose` with
    `MemoryBudget(limit, of="peak")` and the same device: each limit has a search of its own, and then the best plan of
    all searches that keeps it.

    Args:
        graph: a graph that records its calls, as `remat.capture` makes it.
        budgets: how many limits, evenly spaced from a low peak, which is not always the smallest that can be reached,
            to the peak of PyTorch's default plan; or a list of limits, in bytes or sizes ("8GB"). A limit that no plan
            keeps has no point.
        device: "cpu", or the name of a GPU, such as "h100", which need not be present; None takes that of the graph.
        time_limit_s: wall time in seconds for all limits together: each has an equal part of what the ones before left.
            None makes a short search for each limit, as in `remat.choose`.
        progress: called with the number of plans looked at so far, and with the pair (peak in bytes, cost) of the last
            one.

    Raises:
        InvalidOption: `graph` is no graph that records its calls, or `budgets` names no limit, or a limit that is
            neither bytes nor a size.
        LimitReached: no plan was found that keeps any of the limits.
        UnknownName: no device is known by this name.
        Infeasible: the graph has no legal plan at all.
    """
    check_progress(progress)
    check_time_limit(time_limit_s)
    limits = read_budgets(budgets)
    if not limits:
        raise InvalidOption(f"budgets must name at least one limit, got {budgets!r}")
    model: Any = costmodel_class(DEFAULT_BUDGET_MODEL)
    cost_model = model(of="peak") if device is None else model(of="peak").on_device(device)
    predictor = predictor_for(checked_graph(graph), cost_model)
    if predictor is None:
        raise InvalidOption("graph must record its calls, as a graph of remat.capture does: capture the model again")
    problem = cost_model.pose_without_peak(predictor.graph)
    plans = PeakPlans(predictor.graph, problem, find_solver(QUICK_BUDGET_SOLVER), progress=progress)

    def step_ns(plan: PeakPlan) -> float:
        return predictor.ns(predictor.graph.for_all_values(plan.choice.saved))

    end_s = None if time_limit_s is None else time.monotonic() + time_limit_s
    with ending_within(time_limit_s):
        one_liners = one_liner_points(predictor)  # first, so that a search that ends early has them
        searches, early = list[StepPlans](), None
        if isinstance(limits, int):
            searches.append(ends := StepPlans(plans, predictor))
            with ending_within(_part_of(end_s, limits + 1)):
                least_bytes = ends.smallest_of_one_round.peak_bytes
            limits = evenly_spaced(least_bytes, ends.default_peak_bytes, limits)
        # A search of its own for each limit: what a search finds depends on the plans before it.
        for i, limit in enumerate(limits):
            if searches and is_over():
                break
            searches.append(search := StepPlans(plans, predictor))
            with ending_within(_part_of(end_s, len(limits) - i)):
                search.within(limit)
                early = early or (ended_early() if is_over() else None)
        early = early or (ended_early() if is_over() else None)
    found = [plan for search in searches for plan in search.predicted]
    points = list[StepPoint]()
    for limit in limits:
        within = (plan for plan in found if plan.peak_bytes <= limit)
        best = min(within, key=lambda plan: (step_ns(plan), plan.peak_bytes), default=None)
        if best is not None:
            points.append(StepPoint(best.peak_bytes, step_ns(best), plan := best.choice.plan(problem)))
            check_plan(problem, plan)
    if not points:
        raise LimitReached(
            f"{f'{early.detail}; ' if early else ''}no plan was found with a peak of at most {max(limits)} bytes; the "
            f"smallest found is {min(plan.peak_bytes for plan in found)}; raise the limits"
        )
    whole = Termination(
        TerminationReason.FEASIBLE, detail=f"{'a short' if end_s is None else 'a'} search for each limit"
    )
    return StepFrontier(tuple(pareto_front(points, key=_costs)), one_liners, predictor.device.name, early or whole)


def _part_of(end_s: float | None, count: int) -> float | None:
    return None if end_s is None else (end_s - time.monotonic()) / count


def one_liner_points(predictor: StepPredictor) -> tuple[StepPoint, ...]:
    """Returns what PyTorch gives in one line, by ascending peak; equal plans once, by the name that comes first."""
    compiled_by_torch = StepPredictor.of(
        with_torchs_order(predictor.graph), predictor.device, exchanged=predictor.exchanged
    )
    points = dict[bytes, StepPoint]()
    for source, saved in plans_of_pytorch(predictor.graph):
        if saved.tobytes() not in points and not (points and is_over()):
            plan = Choice.from_saved(predictor.graph, saved).plan(predictor.graph)
            points[saved.tobytes()] = StepPoint(compiled_by_torch.peak(saved), predictor.ns(saved), plan, source)
    return tuple(sorted(points.values(), key=_costs))


def _costs(point: StepPoint) -> tuple[int, float]:
    return point.peak_bytes, point.step_ns
