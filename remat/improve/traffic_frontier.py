"""Implements `remat.traffic_frontier`: saved bytes against the bytes that the kernels of a step move.

Candidates are plans between the least memory and the least traffic. All are scored by prediction; the oracle counts the
bytes of the best. No bound is known: traffic is no sum over values, so no minimum cut proves anything about it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.answer.solution import Termination, TerminationReason
from remat.answer.solver import check_time_limit
from remat.errors import InvalidOption
from remat.facts.argument_checks import checked_bytes, checked_number
from remat.facts.columns import BoolArray
from remat.facts.graph import Graph, checked_graph
from remat.improve.byte_budgets import evenly_spaced, read_budgets
from remat.improve.choose import choose
from remat.improve.for_device import for_device
from remat.improve.frontier import frontier
from remat.improve.pareto_front import pareto_front
from remat.improve.progress import OutOfTime, Progress, check_progress, ended_early, ending_within, go_on, is_over
from remat.improve.refine.descent import Acceptance, Descent, Evaluator
from remat.improve.refine.equivalence_classes import equivalence_classes
from remat.improve.refine.moves import Neighbourhood
from remat.improve.refine.objectives import Score, Traffic
from remat.improve.refine.oracles import Model, Oracle, find_oracle
from remat.improve.refine.starts import starting_points
from remat.improve.refine.states import Space, State
from remat.improve.step_traffic import StepTraffic
from remat.predict.time.flops import Flops
from remat.predict.time.roofline import Roofline
from remat.problem.constraints import base_problem
from remat.proof.certify import check_plan

if TYPE_CHECKING:
    import pandas as pd  # pyright: ignore[reportMissingTypeStubs]  # pandas ships none

# At most this many vertices of each hull are predicted, evenly chosen.
_VERTICES = 40
# At most this many plans of the front are joined with their neighbours, evenly chosen.
_MIXED = 20
# Two neighbours are joined at this many positions of the graph, and in either order.
_MIXTURES = 6
# Values are decided about together if their surroundings are equal up to this distance, as in `refine`.
_ROUNDS = 4


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
        limit = checked_bytes("budget_bytes", budget_bytes)
        fitting = bisect_right(self.points, limit, key=lambda point: point.saved_bytes)
        if not fitting:
            raise InvalidOption(
                f"budget_bytes must be at least {self.points[0].saved_bytes}, the fewest bytes that any plan "
                f"found saves, got {budget_bytes!r}"
            )
        return self.points[fitting - 1]

    def within(self, traffic_bytes: int | str) -> TrafficPoint:
        """Returns the point with the fewest saved bytes that moves at most `traffic_bytes` (a number, or "8GB").

        Raises:
            InvalidOption: no plan found moves so little.
        """
        limit = checked_bytes("traffic_bytes", traffic_bytes)
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
    """Searches for the plan that moves the fewest bytes, at each of several budgets of saved bytes.

    Candidates are the vertices of exact convex hulls, mixtures of neighbours, and what a local search finds from the
    best of them. All are scored by prediction. The oracle then counts the starts, and the best candidates of each
    budget. So for each start there is a point that neither saves nor moves more bytes, as the oracle counts them.

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
    effort, seed = checked_number("effort", effort), checked_number("seed", seed)
    tries = checked_number("tries", tries, 1)
    check_time_limit(time_limit_s)
    check_progress(progress)
    candidates = _Candidates(graph, progress)
    first: list[_Candidate] = []
    with ending_within(time_limit_s):
        default = choose(graph).plan
        assert default is not None  # choose() raises where there is none
        with suppress(OutOfTime):
            first += (candidates.add(saved, name) for name, saved in starting_points(graph, default, starts).items())
            candidates.add_hulls()
            candidates.add_mixtures()
            for size in _sizes(budgets, candidates):
                candidates.descend(size, effort, seed)
        ended = Termination(TerminationReason.FEASIBLE, detail="the search came to its end")
        termination = ended_early() if is_over() else ended
        front, counted = candidates.front(), list[_Candidate]()
        if not isinstance(chosen_oracle, Model):
            best = (one for size in _sizes(budgets, candidates) for one in candidates.within(size)[:tries])
            count = chosen_oracle.on(graph, Traffic())
            for candidate in {one.state.choice: one for one in (*first, *best)}.values():
                if counted and is_over():
                    termination = ended_early()
                    break
                counted.append(candidate._replace(traffic_bytes=count([candidate.state])[0][0]))
            front = pareto_front(counted, key=_costs)
    return TrafficFrontier(_points(graph, front), chosen_oracle.name, len(candidates), len(counted), termination)


def _sizes(budgets: int | Iterable[int | str], candidates: _Candidates) -> list[int]:
    sizes = read_budgets(budgets)
    if isinstance(sizes, int):
        front = candidates.front()
        sizes = evenly_spaced(front[0].saved_bytes, front[-1].saved_bytes, sizes)
    return sorted(set(sizes))


def _points(graph: Graph, front: Sequence[_Candidate]) -> tuple[TrafficPoint, ...]:
    points: list[TrafficPoint] = []
    for candidate in front:
        plan = candidate.state.choice.plan(graph)
        check_plan(base_problem(graph), plan)
        points.append(TrafficPoint(candidate.saved_bytes, candidate.traffic_bytes, plan, candidate.source))
    return tuple(points)


class _Candidate(NamedTuple):
    saved_bytes: int
    traffic_bytes: int  # by prediction, or as the oracle has counted it
    state: State
    score: Score
    source: str


def _costs(candidate: _Candidate) -> tuple[int, int]:
    return candidate.saved_bytes, candidate.traffic_bytes


class _Enough(Exception):
    """Stops a descent that has predicted as many plans as it may."""


# Predicts each choice of a graph once. The first one is predicted even if the time is up, so that there is an answer.
class _Candidates:
    def __init__(self, graph: Graph, progress: Progress | None) -> None:
        self._space, self._progress, self._score = Space(graph), progress, Traffic().scorer(graph)
        self._known: dict[bytes, _Candidate] = {}
        self._neighbourhood: Neighbourhood | None = None

    def __len__(self) -> int:
        return len(self._known)

    def add(self, saved: BoolArray, source: str) -> _Candidate:
        return self._entry(self._space.state(saved), source)

    def front(self) -> list[_Candidate]:
        return pareto_front(self._known.values(), key=_costs)

    def within(self, budget_bytes: int) -> list[_Candidate]:
        fitting = [candidate for candidate in self._known.values() if candidate.saved_bytes <= budget_bytes]
        return sorted(fitting, key=lambda one: (one.traffic_bytes, one.saved_bytes))

    # Each vertex of a convex hull is optimal for some Lagrange multiplier on memory.
    def add_hulls(self) -> None:
        graph = self._space.graph
        costs: list[dict[str, Any]] = [{"estimator": Roofline()}, {"estimator": Flops()}, {"cost_model": StepTraffic()}]
        for options in costs:
            vertices = frontier(graph, **options).vertices
            for i in _evenly(len(vertices), _VERTICES):
                self.add(Choice.from_plan(graph, vertices[i].plan).saved, "cut")

    # A mixture follows one plan of two neighbours up to some value, and the other one from there on.
    def add_mixtures(self) -> None:
        front, position = self.front(), np.arange(len(self._space.graph))
        for fewer, more in pairwise(front[i] for i in _evenly(len(front), _MIXED)):
            fewer_saved, more_saved = fewer.state.choice.saved, more.state.choice.saved
            differences = np.flatnonzero(fewer_saved != more_saved)
            pieces = min(_MIXTURES, len(differences) - 1)
            for boundary in [int(differences[len(differences) * i // (pieces + 1)]) for i in range(1, pieces + 1)]:
                self.add(np.where(position < boundary, fewer_saved, more_saved), "mixture")
                self.add(np.where(position < boundary, more_saved, fewer_saved), "mixture")

    # Searches locally from the best candidate within a budget; `effort` is how many plans it may predict.
    def descend(self, budget_bytes: int, effort: int, seed: int) -> None:
        within = self.within(budget_bytes)
        if not within or not effort:
            return
        if self._neighbourhood is None:
            self._neighbourhood = Neighbourhood(self._space, equivalence_classes(self._space.graph, _ROUNDS))
        limit = len(self) + effort

        def score(state: State) -> Score:
            if len(self) >= limit:
                raise _Enough
            return self._entry(state, "local search").score

        with suppress(_Enough):
            Descent(Acceptance(Evaluator(score, budget_bytes)), within[0].state, seed).run(self._neighbourhood)

    def _entry(self, state: State, source: str) -> _Candidate:
        key = state.choice.key
        if key not in self._known:
            if self._known:
                go_on()
            score = self._score(state)
            self._known[key] = _Candidate(state.saved_bytes, score[0], state, score, source)
            if self._progress is not None:
                self._progress(len(self), (min(candidate.traffic_bytes for candidate in self._known.values()),))
        return self._known[key]


def _evenly(among: int, count: int) -> list[int]:
    chosen: list[int] = np.unique(np.linspace(0, among - 1, count).round()).astype(int).tolist()
    return chosen
