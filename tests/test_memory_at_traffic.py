"""Memory at little traffic: the objectives with a limit on what kernels move, and the whole curve."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from commands import answer, run
from depth import deep

import remat
from experiments.models.workloads import KERNEL_ZOO
from remat import Corpus, Graph, InvalidOption, Plan, TrafficFrontier
from remat.answer.plan_facts import PlanFacts
from remat.improve.refine import Peak, SavedBytes, Traffic
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.measure.torch_budgets import torchs_plans, torchs_plans_of

EXTRA = (0.0, 0.05, 0.5)


@pytest.fixture(scope="module")
def graph() -> Graph:
    return Corpus.open().graph("small-dropout-mlp")


@pytest.fixture(scope="module")
def torchs(graph: Graph) -> dict[float, Plan]:
    return torchs_plans_of(graph, (0.9, 1.0))


def moved(graph: Graph, plan: Plan) -> int:
    return remat.predict_traffic(graph, plan).bytes


def saved(graph: Graph, plan: Plan) -> int:
    return PlanFacts.of(graph, plan).saved_bytes


def peak(graph: Graph, plan: Plan) -> int:
    return remat.timeline(graph, plan).peak_bytes


def test_least_saved_bytes_keep_to_the_limit_and_fall_as_it_grows(graph: Graph, torchs: dict[float, Plan]) -> None:
    given, starts = torchs[1.0], list(torchs.values())
    found = [remat.refine(graph, given, SavedBytes(extra), starts=starts) for extra in EXTRA]
    for extra, refined in zip(EXTRA, found, strict=True):
        remat.check_plan(remat.plugin.base_problem(graph), refined.plan)
        assert refined.after[:2] == (saved(graph, refined.plan), moved(graph, refined.plan))
        assert refined.after[1] <= moved(graph, given) * (1 + extra)
        assert refined.after[0] <= saved(graph, given)
    assert found[-1].after[0] < found[0].after[0]


def test_the_lowest_peak_keeps_to_the_limit(graph: Graph, torchs: dict[float, Plan]) -> None:
    given = torchs[1.0]
    refined = remat.refine(graph, given, Peak(extra_traffic=0.05), starts=list(torchs.values()))
    assert refined.terms == ("peak_bytes", "traffic_bytes", "saved_bytes")
    assert refined.after[0] == peak(graph, refined.plan) < peak(graph, given)
    assert moved(graph, given) < refined.after[1] == moved(graph, refined.plan) <= 1.05 * moved(graph, given)


def test_saved_is_a_name_and_means_no_more_traffic(graph: Graph, torchs: dict[float, Plan]) -> None:
    refined = remat.refine(graph, torchs[1.0], "saved", time_limit_s=2)
    assert refined.objective == "saved"
    assert refined.after[1] <= refined.before[1]


def test_without_a_limit_nothing_is_saved_that_can_be_computed_again(graph: Graph, torchs: dict[float, Plan]) -> None:
    least = remat.frontier(graph).points[0]
    assert remat.refine(graph, torchs[1.0], SavedBytes(None), starts=[least.plan]).after[0] == least.saved_bytes


def test_a_limit_in_bytes_that_no_plan_keeps_is_an_error(graph: Graph, torchs: dict[float, Plan]) -> None:
    with pytest.raises(InvalidOption, match="no plan was found within the limits of SavedBytes"):
        remat.refine(graph, torchs[1.0], SavedBytes(most_traffic_bytes=1), time_limit_s=1)


@pytest.mark.parametrize("extra", [-0.1, float("nan"), float("inf"), "5%", True])
def test_a_limit_that_is_none_is_refused(extra: object) -> None:
    with pytest.raises(InvalidOption, match=r"SavedBytes.extra_traffic must be a number, not negative, or None"):
        SavedBytes(extra)  # type: ignore[arg-type]


def test_the_command_takes_the_limit_and_the_device(graph: Graph, torchs: dict[float, Plan], tmp_path: Path) -> None:
    graph.save(tmp_path / "graph.json")
    torchs[1.0].save(tmp_path / "plan.json")
    refined = (
        "refine",
        tmp_path / "graph.json",
        "--plan",
        tmp_path / "plan.json",
        "--time-limit",
        60,
        "--device",
        "a100",
    )
    found = answer(*refined, "--objective", "saved:extra_traffic=0.05")
    before, after = (dict(zip(found["terms"], found[when], strict=True)) for when in ("before", "after"))
    assert before["traffic_bytes"] == remat.predict_traffic(graph, torchs[1.0], device="a100").bytes
    assert after["traffic_bytes"] <= 1.05 * before["traffic_bytes"]
    assert after["saved_bytes"] < before["saved_bytes"]
    assert "extra_traffic" in run(*refined, "--objective", "saved:extra=0.05", code=2).output


@pytest.fixture(scope="module")
def curve(graph: Graph, torchs: dict[float, Plan]) -> TrafficFrontier:
    return remat.traffic_frontier(graph, 4, starts=torchs.values(), effort=20)


def test_the_curve_is_never_worse_than_a_start(graph: Graph, torchs: dict[float, Plan], curve: TrafficFrontier) -> None:
    for plan in torchs.values():
        assert curve.at(saved(graph, plan)).traffic_bytes <= moved(graph, plan)
        assert curve.within(moved(graph, plan)).saved_bytes <= saved(graph, plan)
    assert any(curve.at(saved(graph, plan)).traffic_bytes < moved(graph, plan) for plan in torchs.values())


def test_the_curve_says_what_its_plans_save_and_move_and_falls(graph: Graph, curve: TrafficFrontier) -> None:
    pairs = [(point.saved_bytes, point.traffic_bytes) for point in curve.points]
    assert pairs == [(saved(graph, point.plan), moved(graph, point.plan)) for point in curve.points]
    assert pairs == sorted(set(pairs))
    assert [traffic for _, traffic in pairs] == sorted({traffic for _, traffic in pairs}, reverse=True)
    assert curve.as_frame()["saved_bytes"].tolist() == [point.saved_bytes for point in curve.points]
    assert curve.asked == 0 < curve.predicted


def test_more_effort_and_the_same_seed_give_no_worse_and_the_same_curve(graph: Graph) -> None:
    quick, long, again = (remat.traffic_frontier(graph, 3, effort=effort) for effort in (0, 30, 30))
    assert all(long.at(point.saved_bytes).traffic_bytes <= point.traffic_bytes for point in quick.points)
    assert [point.plan for point in long.points] == [point.plan for point in again.points]


def test_on_a_gpu_that_is_not_there_the_schedule_confirms_the_curve(graph: Graph) -> None:
    (plan,) = torchs_plans_of(graph, (1.0,), device="a100").values()
    size = saved(graph, plan)
    curve = remat.traffic_frontier(graph, [size], starts=[plan], oracle="inductor", device="a100", effort=0, tries=1)
    point = curve.at(size)
    kernels = Scheduled(graph, device="a100").kernels(point.plan)
    assert point.traffic_bytes == sum(kernel.bytes for kernel in kernels)
    assert point.traffic_bytes <= sum(kernel.bytes for kernel in Scheduled(graph, device="a100").kernels(plan))
    assert point.traffic_bytes != sum(kernel.bytes for kernel in Scheduled(graph).kernels(point.plan))


def test_inductors_own_count_has_the_last_word_on_a_curve(graph: Graph, torchs: dict[float, Plan]) -> None:
    starts = [torchs[0.9]]
    curve = remat.traffic_frontier(
        graph, [saved(graph, starts[0])], starts=starts, oracle="inductor", effort=0, tries=1
    )
    assert curve.oracle == "inductor"
    assert len(curve.points) <= curve.asked < curve.predicted
    asked = remat.refine(graph, starts[0], Traffic(), "inductor", time_limit_s=0.01).before
    assert curve.at(saved(graph, starts[0])).traffic_bytes <= asked[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budgets": "8GB"}, "budgets must be a number of budgets"),
        ({"budgets": [-1]}, "a budget must be a whole number of bytes"),
        ({"effort": -1}, "effort must be a whole number of at least 0"),
        ({"tries": 0}, "tries must be a whole number of at least 1"),
        ({"oracle": "device"}, "the oracle 'device' measures only time"),
        ({"device": 3}, "device must be"),
    ],
)
def test_bad_options_of_a_curve_are_one_clear_error(graph: Graph, options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        remat.traffic_frontier(graph, **options)  # type: ignore[arg-type]


def test_what_no_plan_of_a_curve_reaches_is_refused(curve: TrafficFrontier) -> None:
    with pytest.raises(InvalidOption, match="the fewest bytes that any plan found moves"):
        curve.within(1)


@deep
def test_a_stored_graph_with_an_operator_of_inductor_is_made_again_before_anything_is_compiled() -> None:
    code = (
        "from remat import Corpus; from remat.pytorch.measure.torch_budgets import torchs_plans_of;"
        "print(len(torchs_plans_of(Corpus.open().graph('small-resnet'), [1.0])))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"


def test_torchs_plans_of_a_graph_are_those_of_its_model() -> None:
    torch.manual_seed(0)
    model, args = KERNEL_ZOO["LayerNorm-GeLU MLP"]()
    ((captured, plans),) = torchs_plans(model, *args, budgets=(0.2, 0.5, 1.0))
    assert torchs_plans_of(captured, (0.2, 0.5, 1.0)) == plans
