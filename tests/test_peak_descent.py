"""The peak of a plan is lowered by changes of what is alive at it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from costmodels import RecomputeTime
from remat import Corpus, Graph, GraphBuilder
from remat.answer.choice import Choice
from remat.answer.registry import find_solver
from remat.improve.one_liners import one_liners
from remat.improve.peak_descent import lowered
from remat.improve.peak_plans import PeakPlan, PeakPlans
from remat.improve.step_predictor import predictor_on
from remat.improve.step_search import StepPlans

WIDE, NARROW = 100, 10


def wide_and_narrow() -> Graph:
    """Returns a graph with two wide values; a narrow one is computed from the second, and all are read backward."""
    g = GraphBuilder()
    x = g.input("x", bytes=WIDE)
    waiting, computed = (g.op("wide", x, bytes=WIDE, name=name) for name in ("waiting", "computed"))
    narrow = g.op("narrow", computed, bytes=NARROW, name="narrow")
    g.output(g.op("sum", waiting, narrow, bytes=4))
    g.gradient(g.op("back", g.tangent("dy", bytes=4), waiting, narrow, bytes=WIDE))
    return g.build()


class Toy:
    """Has `waiting` alive at the peak if it is saved, and `computed` unless `narrow` is saved; counts predictions."""

    def __init__(self, saved: set[str], rises: frozenset[str] = frozenset()) -> None:
        graph = wide_and_narrow()
        self.plans = PeakPlans(graph, RecomputeTime("flops").pose(graph), find_solver("lagrangian"))
        self.names, self.rises, self.predictions = self.plans.problem.names, rises, 0
        start = self.predicted(self.plans.legal.saving(np.array([name in saved for name in self.names])))
        self.predictions = 0
        self.lowest = lowered(start, self.plans, self.predicted, self.timeline, np.arange(len(self.names)))

    @property
    def saved(self) -> set[str]:
        return {name for name, saved in zip(self.names, self.lowest.choice.saved, strict=True) if saved} - {"x"}

    def predicted(self, choice: Choice, _source: str = "") -> PeakPlan:
        self.predictions += 1
        return PeakPlan(choice, 0, self.timeline(choice).peak_bytes)

    def timeline(self, choice: Choice) -> Any:
        saved = {name for name, is_saved in zip(self.names, choice.saved, strict=True) if is_saved}
        alive = [
            SimpleNamespace(name=name, bytes=size, why="saved", backward=False)
            for name, size in (("waiting", WIDE), ("narrow", NARROW))
            if name in saved
        ]
        if "narrow" not in saved:
            alive.append(SimpleNamespace(name="computed", bytes=WIDE, why="transient", backward=True))
        elsewhere = 1000 * len(self.rises & saved) if self.rises else 0
        return SimpleNamespace(peak_tensors=alive, peak_bytes=elsewhere + sum(tensor.bytes for tensor in alive))


def test_what_waits_is_recomputed_and_what_is_computed_from_it_is_saved_in_place_of_a_recomputed_storage() -> None:
    toy = Toy({"waiting"})
    assert toy.saved == {"narrow"}
    assert toy.lowest.peak_bytes == NARROW


def test_a_change_that_raises_the_peak_elsewhere_is_not_made() -> None:
    toy = Toy({"waiting"}, rises=frozenset({"narrow"}))
    assert toy.saved == set()
    assert toy.lowest.peak_bytes == WIDE


def test_a_change_that_can_free_no_more_than_the_best_one_is_not_predicted() -> None:
    """The first step drops `waiting`, which frees 100 bytes; to save `narrow` would free 90, and is tried next."""
    toy = Toy({"waiting"})
    assert toy.predictions == 3  # at the end, dropping `narrow` again is tried in vain


def test_the_smallest_peak_of_compiled_steps_is_below_those_of_one_liners_and_of_the_best_simulated_plan() -> None:
    step = predictor_on(Corpus.open().graph("vgg16"), "h100")
    assert step is not None
    graph = step.graph
    simulated = PeakPlans(graph, RecomputeTime().pose(graph), find_solver("lagrangian"))
    smallest = StepPlans(simulated, step).smallest
    assert step.peak(graph.for_all_values(smallest.choice.saved)) == smallest.peak_bytes
    rivals = [*(saved for _, saved in one_liners(graph)), graph.for_all_values(simulated.lowest.choice.saved)]
    assert smallest.peak_bytes < 0.95 * min(map(step.peak, rivals))
