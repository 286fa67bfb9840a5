"""A plan that exceeds a limit of the peak a little is repaired: some of what it saves is recomputed."""

from __future__ import annotations

import numpy as np
import pytest
from examples import chain

from costmodels import MemoryBudget
from remat import Corpus, Graph
from remat.answer.choice import Choice
from remat.answer.registry import find_solver
from remat.improve.equivalence_classes import equivalence_classes
from remat.improve.limited_search import LimitedSearch
from remat.improve.peak_plans import PeakPlan, PeakPlans
from remat.improve.repairs import Repairs
from remat.improve.step_predictor import StepPredictor
from remat.improve.step_ranking import ByStepTime
from remat.predict.memory import Timeline
from remat.predict.time.known_devices import find_device


class Search:
    """Predicts plans of one graph for an H100, and repairs them."""

    def __init__(self, graph: Graph) -> None:
        self.predictor = StepPredictor.of(graph, find_device("h100"), "h100")
        self.graph = self.predictor.graph
        model = MemoryBudget(of="peak", estimator="roofline:device=h100")
        self.ranking = ByStepTime(model.pose_without_peak(self.graph), self.predictor)
        self.plans = PeakPlans(self.graph, self.ranking.priced_problems[1], find_solver("lagrangian"))
        self.predicted: dict[bytes, PeakPlan] = {}
        self.classes = equivalence_classes(self.graph, 4)[self.graph.plannable]

    def plan(self, choice: Choice, source: str = "") -> PeakPlan:
        del source
        peak_bytes = self.predictor.peak(self.graph.for_all_values(choice.saved))
        return self.predicted.setdefault(choice.key, PeakPlan(choice, 0, peak_bytes))

    def repairs(self, limit_bytes: int) -> Repairs:
        def timeline(choice: Choice) -> Timeline:
            return self.predictor.timeline(self.graph.for_all_values(choice.saved))

        return Repairs(LimitedSearch(limit_bytes, self.plans, self.plan, self.ranking, timeline, self.classes))


@pytest.mark.parametrize("name", ["small-bert", "small-resnet"])
def test_a_plan_a_little_above_a_limit_is_repaired_for_little_time(name: str) -> None:
    search = Search(Corpus.open().graph(name))
    fastest = search.plan(search.plans.cheapest.choice)
    limit = int(0.95 * fastest.peak_bytes)
    search.repairs(limit).make(search.predicted.values())
    within = [plan for plan in search.predicted.values() if plan.peak_bytes <= limit]
    best = min(search.ranking.of(plan.choice) for plan in within)
    repaired = [plan.choice for plan in search.predicted.values() if plan is not fastest]
    assert all(choice.keeps_bans(search.ranking.problem) for choice in repaired)
    least = search.plan(search.plans.legal.saving(np.zeros(len(search.plans.problem), np.bool_)))
    fastest_ns, least_ns = search.ranking.of(fastest.choice), search.ranking.of(least.choice)
    assert best - fastest_ns < 0.5 * (least_ns - fastest_ns), "a part of what recomputing everything costs"


def test_no_more_is_predicted_than_may_be_better_than_the_best_plan_within_the_limit() -> None:
    search = Search(Corpus.open().graph("small-bert"))
    fastest = search.plan(search.plans.cheapest.choice)
    search.repairs(fastest.peak_bytes).make(search.predicted.values())
    assert [*search.predicted.values()] == [fastest], "the fastest plan keeps the limit"
    search.repairs(1).make(search.predicted.values())
    assert 1 <= len(search.predicted) <= 1 + 8, "a limit that no plan keeps ends the repairs"


def test_values_could_be_absent_between_their_last_forward_and_first_backward_read() -> None:
    search = Search(chain(6))
    choice = search.plans.legal.saving(np.ones(len(search.plans.problem), np.bool_))
    line = search.predictor.timeline(search.graph.for_all_values(choice.saved))
    moments = search.plans.moments(choice, line)
    n = len(search.graph)
    assert search.plans.problem.save_bytes.any()
    for limit in (0, line.peak_bytes // 2, line.peak_bytes - 1):
        above = search.plans.above_limit(moments, limit, 1000)
        at = np.flatnonzero(moments.alive_bytes > limit)
        assert (above.excess_bytes == moments.alive_bytes[at] - limit).all()
        assert above.excess_bytes.max() == line.peak_bytes - limit
        for i, value in enumerate(search.graph.plannable.tolist()):
            readers = [v for v in range(n) if value in search.graph.operands[v]]
            forward = [v for v in readers if search.graph.in_forward[v]]
            waits = (at > max([value, *forward])) & (at < moments.first_read[value])
            size = search.plans.problem.save_bytes[i]
            assert (above.waiting_bytes[i] == np.where(waits, size, 0)).all()
    few = search.plans.above_limit(moments, 0, 3)
    assert len(few.excess_bytes) <= 4
    assert few.excess_bytes.max() == line.peak_bytes
    assert not search.plans.above_limit(moments, line.peak_bytes, 3).excess_bytes.size


def test_after_a_change_what_is_saved_is_alive_between_its_reads_and_what_is_recomputed_is_not() -> None:
    search = Search(Corpus.open().graph("small-bert"))
    least = search.plans.legal.saving(np.zeros(len(search.plans.problem), np.bool_))
    before = search.plans.moments(least, search.predictor.timeline(search.graph.for_all_values(least.saved)))
    everything = search.plans.above_limit(before, -1, 10**6)
    numbers = np.random.default_rng(0)
    for share in (0, 0.05, 0.5, 1):
        other = search.plans.legal.saving(numbers.random(len(least.saved)) < share)
        after = search.plans.after(before, least, other)
        more = everything.waiting_bytes[other.saved & ~least.saved].sum(0)
        assert (after.alive_bytes[everything.moments] == before.alive_bytes[everything.moments] + more).all()
        assert bool(more.any()) == bool(share)
        assert (search.plans.after(after, other, least).alive_bytes == before.alive_bytes).all()


@pytest.mark.parametrize("part", [0.95, 0.9])
def test_a_repair_can_keep_what_it_would_recompute_first(part: float) -> None:
    search = Search(Corpus.open().graph("small-gpt-fused-attention"))
    fastest = search.plan(search.plans.cheapest.choice)
    least = search.plan(search.plans.legal.saving(np.zeros(len(search.plans.problem), np.bool_)))
    limit, none = int(part * fastest.peak_bytes), np.array([], np.int64)
    repaired = search.repairs(limit).repair(fastest, least, none)
    pinned = np.flatnonzero(fastest.choice.saved & repaired.choice.recomputed)[:3]
    assert len(pinned)
    other = search.repairs(limit).repair(fastest, least, pinned)
    assert other.choice.saved[pinned].all()
    for plan in (repaired, other):
        assert plan.peak_bytes <= limit
        assert search.ranking.of(plan.choice) < search.ranking.of(least.choice)
    assert search.repairs(limit).repair(fastest, repaired, none) is repaired
    assert search.repairs(0).repair(fastest, least, none) is least
