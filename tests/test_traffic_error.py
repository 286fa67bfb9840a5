"""The experiment that holds predicted memory traffic against Inductor's count."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import remat
from experiments.accuracy import kernel_truth, traffic_error
from experiments.accuracy.kernel_truth import PlanSelection, Truth, different_plans, find_truth
from experiments.accuracy.traffic_error import ModelGroup, TrafficErrorRow, overall, rank_correlation, summary
from experiments.models import workloads
from experiments.models.held_out import HELD_OUT, MENDED, images, others, sequences
from experiments.models.workloads import KERNEL_ZOO, Sample
from remat.errors import CannotRebuild
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.inductor.traffic_count import InductorKernel

_THREE = PlanSelection(3, on_the_frontier=0, budgets=(1.0,), every_plan_through_the_model=False)


_main: Callable[..., None] = traffic_error.main


def small() -> Sample:
    return workloads.perceptron(layers=1, dropout=0.1)


def broken() -> Sample:
    raise RuntimeError("no such thing")


def two_graphs() -> Sample:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos() * y

    return function, (torch.randn(8, requires_grad=True),)  # type: ignore[return-value]


def test_counts_are_kept_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run asks Inductor nothing, and says the same."""
    parts = {"zoo": ModelGroup({"small": small}, replace(_THREE, every_plan_through_the_model=True))}
    monkeypatch.setattr(traffic_error, "PARTS", parts | {"held-out": ModelGroup({"small, too": small}, _THREE)})
    folder = tmp_path / "truth"
    _main(only="", part=None, truth=folder, jobs=1, output=tmp_path)
    first = json.loads((tmp_path / "traffic_error.json").read_text())
    assert [about["asked"] for name in ("zoo", "held-out") for about in first[name]["summary"]] == ["model", "graph"]
    kept = Truth.load(folder, "small")
    for row in first["zoo"]["rows"]:
        counted = Scheduled(kept.graph).kernels(kept.plans[row["plan"]])
        assert tuple(counted) == kept.kernels[row["plan"]]
        assert row["inductor_bytes"] == sum(kernel.bytes for kernel in counted)
        assert row["predicted_bytes"] == remat.predict_traffic(kept.graph, kept.plans[row["plan"]]).bytes
    found = [[{**row, "model": ""} for row in first[name]["rows"]] for name in ("zoo", "held-out")]
    assert found[0] == found[1]  # whoever is asked
    assert len(found[0]) == 3
    monkeypatch.setattr(kernel_truth, "torchs_plans", None)
    _main(only="sm", part=None, truth=folder, jobs=1, output=tmp_path)
    again = json.loads((tmp_path / "traffic_error.json").read_text())
    assert again | {"provenance": first["provenance"]} == first
    _main(only="", part="held-out", truth=folder, jobs=1, output=tmp_path)
    assert "zoo" not in json.loads((tmp_path / "traffic_error.json").read_text())
    assert "| small, too | " in (tmp_path / "traffic_error.md").read_text()


def test_counts_for_a_gpu_go_on_where_they_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that was counted is not counted again; a page of its own says that the kernels are Triton's."""
    monkeypatch.setattr(traffic_error, "TRITON_PARTS", {"zoo": ModelGroup({"small": small}, _THREE)})
    _main(only="", part=None, backend="triton", truth=tmp_path / "truth", jobs=1, output=tmp_path)
    first = json.loads((tmp_path / "traffic_error_triton.json").read_text())
    assert first["zoo"]["overall"]["worst_error"] <= 0.01
    kept = Truth.load(tmp_path / "truth" / "zoo", "small")
    name = next(iter(kept.kernels))
    del kept.kernels[name]
    kept.save(tmp_path / "truth" / "zoo", "small")
    asked: list[remat.Plan] = []
    ask = Scheduled.kernels
    monkeypatch.setattr(Scheduled, "kernels", lambda self, plan: asked.append(plan) or ask(self, plan))
    _main(only="", part=None, backend="triton", truth=tmp_path / "truth", jobs=1, output=tmp_path)
    assert asked == [kept.plans[name]]
    again = json.loads((tmp_path / "traffic_error_triton.json").read_text())
    assert again | {"provenance": first["provenance"]} == first
    assert "Triton schedule, without a device" in (tmp_path / "traffic_error_triton.md").read_text()


def test_what_is_kept_for_other_plans_is_not_used(tmp_path: Path) -> None:
    find_truth("small", small, _THREE, tmp_path)
    found = find_truth("small", small, replace(_THREE, plans=2), tmp_path)
    assert len(found.plans) == len(Truth.load(tmp_path, "small").plans) == 2


class Wrong:
    """A scheduler of graphs that finds nothing."""

    def __init__(self, graph: remat.Graph) -> None:
        del graph

    def kernels(self, plan: remat.Plan) -> list[InductorKernel]:
        del plan
        return []


def refused(graph: remat.Graph) -> None:
    raise CannotRebuild(f"no operators of {len(graph)}")


@pytest.mark.parametrize("scheduler", [Wrong, refused])
def test_a_graph_alone_is_believed_only_if_it_gives_the_models_kernels(
    scheduler: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_truth, "Scheduled", scheduler)
    found = find_truth("small", small, replace(_THREE, plans=1), tmp_path)
    assert found.graph.meta["asked"] == "model"
    assert all(found.kernels.values())


def test_a_model_that_fails_is_named_and_hides_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"held-out": ModelGroup({"broken": broken, "two": two_graphs, "small": small}, replace(_THREE, plans=1))}
    monkeypatch.setattr(traffic_error, "PARTS", parts)
    _main(only="", part=None, truth=None, jobs=1, output=tmp_path)
    found = json.loads((tmp_path / "traffic_error.json").read_text())["held-out"]
    assert found["failed"]["broken"] == "RuntimeError: no such thing"
    assert "must have one joint graph, got 2" in found["failed"]["two"]
    assert [row["model"] for row in found["rows"]] == ["small"]
    assert "- broken: RuntimeError: no such thing" in (tmp_path / "traffic_error.md").read_text()
    with pytest.raises(Exception, match=r"all models failed.*no such thing"):
        _main(only="broken", part=None, truth=None, jobs=1, output=tmp_path)


def test_plans_differ_and_are_legal() -> None:
    torch.manual_seed(0)
    model, args = workloads.perceptron(layers=2)
    graph = remat.capture(model, *args)
    illegal = remat.Plan((), remat.plugin.base_problem(graph).names)
    for selection in (PlanSelection(), _THREE):
        found = dict(different_plans(graph, {1.0: illegal}, selection))
        assert len(found) == len(set(found.values())) == selection.plans
        assert illegal not in found.values()
        for plan in found.values():
            remat.check_plan(remat.plugin.base_problem(graph), plan)
        assert any(name.startswith("frontier") for name in found) == bool(selection.on_the_frontier)


@pytest.mark.parametrize("name", (images.MODELS | sequences.MODELS | others.MODELS).keys())
def test_held_out_models_train(name: str) -> None:
    """They do something: a finite loss, and a gradient for most parameters, not all of them zero."""
    torch.manual_seed(0)
    model, args = HELD_OUT[name]()
    loss = model(*args)
    loss.backward()
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert loss.isfinite()
    assert 2 * len(gradients) > len(list(model.parameters()))
    assert any(gradient.count_nonzero() for gradient in gradients)


def test_no_model_is_both_held_out_and_in_the_zoo() -> None:
    assert not HELD_OUT.keys() & KERNEL_ZOO.keys()
    assert MENDED.keys() <= HELD_OUT.keys()
    files = {kernel_truth._file_name(name) for name in (*HELD_OUT, *KERNEL_ZOO)}
    assert len(files) == len(HELD_OUT) + len(KERNEL_ZOO)


_ROWS = [
    TrafficErrorRow("m", "a", 104, 100, 2, 2),
    TrafficErrorRow("m", "b", 180, 200, 2, 2),
    TrafficErrorRow("m", "c", 400, 400, 3, 3),
]


def test_a_summary_names_the_worst_plan() -> None:
    found = summary("m", _ROWS)
    assert (found["median_error"], found["worst_plan"]) == (pytest.approx(0.04), "b")
    assert found["worst_error"] == pytest.approx(-0.1)
    assert found["rank_correlation"] == pytest.approx(1)
    assert found["within_1_percent"] == pytest.approx(1 / 3)
    assert summary("m", _ROWS[:1])["rank_correlation"] is None


def test_all_models_together_are_counted_plan_by_plan() -> None:
    found = overall([*_ROWS, TrafficErrorRow("n", "a", 301, 300, 2, 2)])
    counts = [found[key] for key in ("models", "plans", "exact", "within_1_percent", "within_6_percent")]
    assert counts == [2, 4, 1, 2, 3]
    assert found["worst_error"] == pytest.approx(0.1)
    assert (found["worst_model"], found["worst_plan"]) == ("m", "b")


def test_models_that_led_to_a_rule_are_marked_and_counted_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MENDED, "mended", "padding reads no border")
    monkeypatch.setattr(traffic_error, "PARTS", {"held-out": ModelGroup({"mended": small, "other": small}, _THREE)})
    _main(only="", part=None, truth=tmp_path, jobs=1, output=tmp_path)
    found, text = (tmp_path / "traffic_error.json").read_text(), (tmp_path / "traffic_error.md").read_text()
    assert json.loads(found)["held-out"]["overall"]["models"] == 1
    assert "| mended (*) | " in text
    assert "| other | " in text
    assert "- mended: padding reads no border" in text


_numbers = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=12)


@given(_numbers)
def test_rank_correlation_is_spearmans(pairs: list[tuple[int, int]]) -> None:
    stats: Any = pytest.importorskip("scipy.stats")
    left, right = (list(side) for side in zip(*pairs, strict=True))
    if len(set(left)) == 1 or len(set(right)) == 1:
        assert math.isnan(rank_correlation(left, right))
    else:
        assert rank_correlation(left, right) == pytest.approx(stats.spearmanr(left, right).statistic, abs=1e-9)
        order = np.argsort(np.random.default_rng(0).random(len(left)))
        shuffled = [left[i] for i in order], [right[i] for i in order]
        assert rank_correlation(*shuffled) == pytest.approx(rank_correlation(left, right), abs=1e-9)


def test_unknown_models_and_parts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no model has 'nothing' in its name; there are GPT"):
        _main(only="nothing", part=None, truth=None, jobs=1, output=tmp_path)
    with pytest.raises(Exception, match="--part must be zoo or held-out, got 'heldout'; did you mean 'held-out'"):
        _main(only="", part="heldout", truth=None, jobs=1, output=tmp_path)
