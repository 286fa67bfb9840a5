"""The experiment that holds predicted memory traffic against Inductor's count."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import remat
from experiments import kernel_truth, models, traffic_error
from experiments.kernel_truth import Truth, different_plans
from experiments.traffic_error import Row, rank_correlation, summary
from remat.pytorch.scheduled import Scheduled

_ZOO = {"small": lambda: models.perceptron(layers=1, dropout=0.1)}


def test_counts_are_kept_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run asks Inductor nothing, and says the same."""
    monkeypatch.setattr(traffic_error, "KERNEL_ZOO", _ZOO)
    monkeypatch.setattr(kernel_truth, "KERNEL_ZOO", _ZOO)
    monkeypatch.setattr(kernel_truth, "PLANS", 3)
    folder = tmp_path / "truth"
    traffic_error.main(only="", truth=folder, output=tmp_path)
    first = json.loads((tmp_path / "traffic_error.json").read_text())
    assert not first["failed"]
    assert len(first["rows"]) == 3
    kept = Truth.load(folder, "small")
    for row in first["rows"]:
        counted = Scheduled(kept.graph).kernels(kept.plans[row["plan"]])
        assert tuple(counted) == kept.kernels[row["plan"]]
        assert row["inductor_bytes"] == sum(kernel.bytes for kernel in counted)
        assert row["predicted_bytes"] == remat.predict_traffic(kept.graph, kept.plans[row["plan"]]).bytes
    monkeypatch.setattr(kernel_truth, "inductor_kernels", None)
    traffic_error.main(only="sm", truth=folder, output=tmp_path)
    assert json.loads((tmp_path / "traffic_error.json").read_text())["rows"] == first["rows"]
    assert "| small | 3 |" in (tmp_path / "traffic_error.md").read_text()


def test_plans_differ_and_are_legal() -> None:
    torch.manual_seed(0)
    model, args = models.perceptron(layers=2)
    graph = remat.capture(model, *args)
    illegal = remat.Plan((), graph.unpriced.names)
    found = dict(different_plans(graph, {1.0: illegal}))
    assert len(found) == len(set(found.values())) == kernel_truth.PLANS
    assert illegal not in found.values()
    for plan in found.values():
        remat.check_plan(graph.unpriced, plan)


def test_a_summary_names_the_worst_plan() -> None:
    rows = [Row("m", "a", 104, 100, 2, 2), Row("m", "b", 180, 200, 2, 2), Row("m", "c", 400, 400, 3, 3)]
    found = summary("m", rows)
    assert (found["median_error"], found["worst_plan"]) == (pytest.approx(0.04), "b")
    assert found["worst_error"] == pytest.approx(0.1)
    assert found["rank_correlation"] == pytest.approx(1)


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


def test_an_unknown_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no model has 'nothing' in its name; there are GPT"):
        traffic_error.main(only="nothing", truth=None, output=tmp_path)
