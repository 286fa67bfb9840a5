"""The experiment that sets the time of a prediction beside that of Inductor's scheduler."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.bench import predictor_speed
from experiments.bench.predictor_speed import PredictorRow, summary


def test_both_are_asked_the_same_and_their_times_are_kept(tmp_path: Path) -> None:
    predictor_speed.main(layers=1, plans=2, repeats=2, output=tmp_path)
    report = json.loads((tmp_path / "predictor_speed.json").read_text())
    assert len(report["rows"]) == 2
    for row in report["rows"]:
        assert len(row["predicted_s"]) == 2
        assert min(*row["predicted_s"], row["inductor_s"]) > 0
        assert row["predicted_bytes"] == row["inductor_bytes"]
        assert row["predicted_kernels"] == row["inductor_kernels"]
    text = (tmp_path / "predictor_speed.md").read_text()
    assert f"{report['graph']['values']:,} values" in text
    assert f"| {report['rows'][0]['plan']} | " in text


def test_ratios_are_of_medians_and_of_the_worst_case() -> None:
    rows = [PredictorRow("a", [1.0, 3.0, 2.0], 40.0, 1, 1, 1, 1), PredictorRow("b", [4.0, 4.0, 9.0], 20.0, 1, 1, 1, 1)]
    found = summary(rows)
    assert found["median_ratio"] == pytest.approx(30 / 3)
    assert found["worst_ratio"] == pytest.approx(20 / 4)
