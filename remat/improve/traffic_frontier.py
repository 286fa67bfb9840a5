"""Implements `remat.traffic_frontier`: saved bytes against the bytes that the kernels of a step move."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from remat.answer.plan import Plan
from remat.answer.solution import Termination, TerminationReason
from remat.answer.solver import check_time_limit
from remat.errors import InvalidOption
from remat.facts.columns import is_whole
from remat.facts.graph import Graph, checked_graph
from remat.improve.byte_budgets import evenly_spaced, read_budget, read_budgets
from remat.improve.candidates import Candidate, PlanPool
from remat.improve.choose import choose
from remat.improve.for_device import for_device
from remat.improve.pareto_front import pareto_front
from remat.improve.progress import OutOfTime, Progress, check_progress, ended_early, is_over
from remat.improve.refine.named_oracles import find_oracle
from remat.improve.refine.objectives import Traffic
from remat.improve.refine.oracles import Model, Oracle
from remat.improve.refine.starts import starting_points
from remat.problem.constraints import base_problem
from remat.proof.certify import check_plan

if TYPE_CHECKING:
    import pandas as pd  # pyright: ignore[reportMissingTypeStubs]  # pandas ships none


@dataclass(frozen=True)
class TrafficPoint:
    """Holds a plan of the Pareto front of saved bytes and traffic.

    Attributes:
        saved_bytes: memory of the saved activations, each storage once.
        traffic_bytes: what the kernels of both passes read and write, as the oracle counts it.
        plan: what to save and recompute.
        source: what proposed the plan: the name of a start, "cut", "mixture" or "local search".
    """

    saved_bytes: int
    traffic_bytes: int
    plan: Plan
    source: str


@dataclass(frozen=True, eq=False)
class TrafficFrontier:
    """Holds the best plans found between the least memory and the least traffic; nothing proves that none is better.

    Attributes:
        points: plans in the order of their saved bytes; the traffic falls from each to the next.
        oracle: the name of the oracle that counted the traffic.
        predicted: how many plans were predicted.
        asked: how many of them the oracle counted; 0 if the prediction is the oracle.
        termination: whether the search came to its end, or what ended it earlier.
    """

    points: tuple[TrafficPoint, ...]
    oracle: str
    predicted: int
    asked: int
    termination: Termination

    def at(self, budget_bytes: int | str) -> TrafficPoint:
        """Returns the point that moves the fewest bytes within a budget of saved bytes (a number, or "8GB").

        Raises:
            InvalidOption: no plan found saves so little.
        """
        fitting = bisect_right(self.points, read_budget(budget_bytes), key=lambda point: point.saved_bytes)
        if not fitting:
            raise InvalidOption(
                f"budget_bytes must be at least {self.points[0].saved_bytes}, the fewest bytes that any plan "
                f"found saves, got {budget_bytes!r}"
            )
        return self.points[fitting - 1]

    def within(self, traffic_bytes: int | str) -> TrafficPoint:
        """Returns the point that saves least of those that move at most some bytes (a number, or a size such as "8GB").

        Raises:
            InvalidOption: no plan found moves so little.
        """
        limit = read_budget(traffic_bytes)
        for point in self.points:
            if point.traffic_bytes <= limit:
                return point
        raise InvalidOption(
            f"traffic_bytes must be at least {self.points[-1].traffic_bytes}, the fewest bytes that any plan found "
            f"moves, got {traffic_bytes!r}"
        )

    def as_frame(self) -> pd.DataFrame:
        """Returns a table with a row for each point."""
        import pandas as pd  # pyright: ignore[reportMissingTypeStubs]

        columns = ("saved_bytes", "traffic_bytes", "source")
        return pd.DataFrame([{column: getattr(point, column) for column in columns} for point in self.points])

    def __repr__(self) -> str:
        first, last = self.points[0], self.points[-1]
        return (
            f"<TrafficFrontier by {self.oracle}: {len(self.points)} plans, from {first.saved_bytes} bytes saved at "
            f"{first.traffic_bytes} moved to {last.saved_bytes} at {last.traffic_bytes}>"
        )


def traffic_frontier(
    graph: Graph,
    budgets: int | Iterable[int | str] = 16,
    *,
    starts: Iterable[Plan] = (),
    oracle: Literal["model", "inductor"] | Oracle = "model",
    device: str | None = None,
    effort: int = 100,
    tries: int = 2,
    seed: int = 0,
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> TrafficFrontier:
    """Searches for the plans that move least at each of some budgets of saved bytes.

    Candidates are the vertices of exact convex hulls, mixtures of neighbours, and what a local search finds from the
    best of them. All are scored by prediction. The oracle then counts the starts, and the best candidates of each
    budget. So no start is better than every point in both saved bytes and traffic, as the oracle counts them.

    Args:
        budgets: how many, evenly spaced; or a list of them, in bytes or sizes ("8GB").
        starts: further plans to begin from, such as PyTorch's own at its memory budgets
            (`remat.pytorch.measure.torch_budgets.torchs_plans_of(graph)`).
        oracle: what counts the traffic: the "model", by prediction; or "inductor", TorchInductor's own schedule, which
            takes seconds for each plan; or an instance.
        device: the device whose kernels are predicted: "cpu", or a GPU by name, such as "a100", which need not be
            present; None takes that of the graph.
        effort: how many plans the local search predicts at each budget; 0 for no local search.
        tries: how many candidates of each budget the oracle counts, if it is not the prediction.
        seed: decides in which order equal moves are tried; the same seed gives the same plans.
        time_limit_s: wall time in seconds, after which the best points so far are returned. PyTorch's default plan, or
            the first start, is always counted, and a computation that has begun is finished.
        progress: called with the number of plans predicted so far, and the fewest bytes that one of them moves.

    Raises:
        InvalidPlan: one of `starts` is not legal, or was made for another graph.
        InvalidOption: `graph` is no graph, the oracle is unknown, or a budget or a number is not as described.
        NotInstalled: the oracle needs torch.
        Infeasible: the graph has no legal plan at all.
        CannotRebuild: Inductor cannot be asked, since an operator of the graph cannot be built again here.
    """
    graph = for_device(checked_graph(graph), device)
    chosen_oracle = find_oracle(oracle, device)
    chosen_oracle.terms(Traffic())
    for name, number, least in (("effort", effort, 0), ("tries", tries, 1), ("seed", seed, 0)):
        if not is_whole(number) or number < least:
            raise InvalidOption(f"{name} must be a whole number of at least {least}, got {number!r}")
    check_time_limit(time_limit_s)
    check_progress(progress)
    deadline_s = None if time_limit_s is None else time.monotonic() + time_limit_s
    default = choose(graph).plan
    assert default is not None  # choose() raises where there is none
    pool = PlanPool(graph, deadline_s, progress)
    starting_candidates: list[Candidate] = []
    with suppress(OutOfTime):
        starting_candidates += (
            pool.add(saved, name) for name, saved in starting_points(graph, default, starts).items()
        )
        pool.add_hulls()
        pool.add_mixtures()
        for size in _sizes(budgets, pool):
            pool.descend(size, int(effort), int(seed))
    termination = (
        ended_early()
        if is_over(deadline_s)
        else Termination(TerminationReason.FEASIBLE, detail="the search came to its end")
    )
    if isinstance(chosen_oracle, Model):
        return TrafficFrontier(_points(graph, pool.front()), chosen_oracle.name, len(pool), 0, termination)
    best = (candidate for size in _sizes(budgets, pool) for candidate in pool.within(size)[: int(tries)])
    counted: list[Candidate] = []
    opinion = chosen_oracle.on(graph, Traffic())
    for candidate in {candidate.state.choice: candidate for candidate in (*starting_candidates, *best)}.values():
        if counted and is_over(deadline_s):
            termination = ended_early()
            break
        counted.append(replace(candidate, traffic_bytes=opinion([candidate.state])[0][0]))
    return TrafficFrontier(
        _points(graph, pareto_front(counted, key=Candidate.costs)),
        chosen_oracle.name,
        len(pool),
        len(counted),
        termination,
    )


def _sizes(budgets: int | Iterable[int | str], pool: PlanPool) -> list[int]:
    sizes = read_budgets(budgets)
    if isinstance(sizes, int):
        front = pool.front()
        sizes = evenly_spaced(front[0].saved_bytes, front[-1].saved_bytes, sizes)
    return sorted(set(sizes))


def _points(graph: Graph, front: Sequence[Candidate]) -> tuple[TrafficPoint, ...]:
    points: list[TrafficPoint] = []
    for candidate in front:
        plan = candidate.state.choice.plan(graph)
        check_plan(base_problem(graph), plan)
        points.append(TrafficPoint(candidate.saved_bytes, candidate.traffic_bytes, plan, candidate.source))
    return tuple(points)
