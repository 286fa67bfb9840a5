"""A frontier of steps: within each limit a plan that keeps it, and none slower than what PyTorch gives in one line."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from depth import deep_except
from examples import cosines

import remat
from costmodels import MemoryBudget
from remat import Corpus, Graph, InvalidOption, LimitReached
from remat.improve.byte_budgets import default_plan, evenly_spaced
from remat.improve.one_liners import one_liners
from remat.improve.progress import is_over
from remat.improve.step_search import StepPlans
from remat.predict.time import modelled_time

GRAPH = Corpus.open().graph("small-dropout-mlp")


@pytest.fixture(scope="module")
def curve() -> remat.StepFrontier:
    return remat.step_frontier(GRAPH, 6, device="h100")


def test_points_have_the_peaks_and_times_that_are_predicted_for_their_plans(curve: remat.StepFrontier) -> None:
    for point in curve.points:
        assert point.peak_bytes == remat.timeline(GRAPH, point.plan, device="h100").peak_bytes
        kernels = remat.predict_traffic(GRAPH, point.plan, device="h100").kernels
        assert point.step_ns == pytest.approx(modelled_time(GRAPH, kernels, "h100").ns)


def test_steps_get_faster_as_peaks_rise(curve: remat.StepFrontier) -> None:
    peaks, times = zip(*((point.peak_bytes, point.step_ns) for point in curve.points), strict=True)
    assert [*peaks] == sorted(set(peaks))
    assert [*times] == sorted(set(times), reverse=True)


@pytest.mark.parametrize(
    "name", deep_except(["small-dropout-mlp"], ["small-dropout-mlp", "small-gpt-fused-attention", "small-resnet"])
)
def test_within_a_limit_no_plan_of_choose_is_faster_in_whatever_order_limits_are_named(
    name: str, curve: remat.StepFrontier
) -> None:
    graph = Corpus.open().graph(name)
    # Of larger graphs, the search for the smallest peak takes long.
    least = curve.points[0].peak_bytes if name == "small-dropout-mlp" else 3 * default_peak(graph) // 4
    limits = evenly_spaced(least, default_peak(graph), 3)
    curves = [remat.step_frontier(graph, some, device="h100") for some in (limits, limits[::-1])]
    assert curves[0].points == curves[1].points
    for limit in limits:
        alone = remat.choose(graph, MemoryBudget(limit, of="peak"), device="h100")
        assert curves[0].at(limit).step_ns <= alone.step.ns
        assert curves[0].at(limit).peak_bytes <= limit


def default_peak(graph: Graph) -> int:
    plan = default_plan(graph)
    assert plan is not None
    return remat.timeline(graph, plan, device="h100").peak_bytes


def test_a_limit_that_no_plan_keeps_has_no_point(curve: remat.StepFrontier) -> None:
    known = remat.step_frontier(GRAPH, [10, curve.points[-1].peak_bytes], device="h100")
    assert len(known.points) == 1
    with pytest.raises(LimitReached, match=r"at most 10 bytes; the smallest found is \d+; raise the limits"):
        remat.step_frontier(GRAPH, [10], device="h100")


def test_what_pytorch_gives_in_one_line_is_there_once_and_beaten_where_a_limit_allows_it(
    curve: remat.StepFrontier,
) -> None:
    distinct = {saved.tobytes(): name for name, saved in reversed([*one_liners(GRAPH)])}
    assert sorted(point.source for point in curve.one_liners) == sorted(distinct.values())
    theirs = remat.step_frontier(GRAPH, [point.peak_bytes for point in curve.one_liners], device="h100")
    for rival in curve.one_liners:
        assert theirs.at(rival.peak_bytes).step_ns <= rival.step_ns * 1.001


def test_a_limit_between_two_points_gets_the_point_below_it(curve: remat.StepFrontier) -> None:
    first, second = curve.points[:2]
    assert curve.at(second.peak_bytes - 1) is first
    assert curve.at("1GB") is curve.points[-1]
    with pytest.raises(InvalidOption, match=rf"must be at least {first.peak_bytes}, the smallest peak found, got 1024"):
        curve.at(1024)


def test_the_picture_and_the_table_have_all_points(curve: remat.StepFrontier, tmp_path: Path) -> None:
    assert len(curve.as_frame()) == len(curve.points) + len(curve.one_liners)
    (axes,) = curve.plot(tmp_path / "steps.png").axes
    assert (tmp_path / "steps.png").stat().st_size > 1000
    shown = np.concatenate([line.get_xydata() for line in axes.lines]) * (2**20, 1e3)
    points = [(point.peak_bytes, point.step_ns) for point in (*curve.points, *curve.one_liners)]
    np.testing.assert_allclose(sorted(map(tuple, shown)), sorted(points))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("peak of activations and gradients, MiB", "step time, µs")


@pytest.mark.parametrize(
    ("graph", "budgets", "told"),
    [
        (cosines(), 4, "graph must record its calls"),
        (GRAPH, "8GB", "budgets must be a number of budgets, or a list"),
        (GRAPH, ["8GB", "much"], r"budgets\[1\] must be"),
        (GRAPH, [], r"budgets must name at least one limit, got \[\]"),
        (GRAPH, 0, "budgets must name at least one limit, got 0"),
    ],
)
def test_bad_input_is_refused_with_one_clear_error(graph: Graph, budgets: object, told: str) -> None:
    with pytest.raises(InvalidOption, match=told):
        remat.step_frontier(graph, budgets)  # type: ignore[arg-type]


def test_a_search_that_one_limit_cut_short_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    within, calls = StepPlans.within, list[int]()

    def slow_at_first(plans: StepPlans, limit_bytes: int) -> object:
        while not calls and not is_over():
            time.sleep(0.01)
        calls.append(limit_bytes)
        return within(plans, limit_bytes)

    monkeypatch.setattr(StepPlans, "within", slow_at_first)
    graph = Corpus.open().graph("small-layernorm-gelu-mlp")
    found = remat.step_frontier(graph, ["8MB", "9MB"], device="h100", time_limit_s=2)
    assert calls == [8_000_000, 9_000_000]
    assert found.termination.limit == "time"
    assert remat.step_frontier(graph, ["9MB"], device="h100").termination.limit is None
