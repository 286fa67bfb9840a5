"""The report page of the experiments: our results get our plots, and say on what they were measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from report_samples import ORIGIN, RESULTS, drawn, solver_run, strict, write_json
from typer.testing import CliRunner

from experiments.report import charts
from experiments.report.__main__ import main
from experiments.report.result_readers import READERS
from remat.cli.app import app
from remat.views.report import Page
from remat.views.report.origins import device


def page(paths: list[Path], **options: Any) -> Page:
    return Page.of(paths, readers=READERS, **options)


def only(path: Path) -> Any:
    """The section of a single file."""
    (file,) = page([path], refine=4).files
    return file.section


def test_results_with_their_provenance(tmp_path: Path) -> None:
    document = {
        "provenance": ORIGIN,
        "summary": {"rows": 2, "worst": {"a": 0.5}},
        "rows": [{"model": "a", "predicted_bytes": 10, "inductor_bytes": 12}] * 2,
        "part": {"overall": {"models": 1}, "rows": [{"x": 1, "figures": {"y": 2}}]},
        "seeds": "0",
        "failed": {},
    }
    section = only(write_json(tmp_path / "r.json", document))
    assert [part.title for part in section.parts] == ["Summary", "Rows", "Part: overall", "Part: rows", "Settings"]
    assert len(section.figures) == 1
    assert section.parts[3].tables[0].rows == [{"x": 1, "y": 2}]
    assert section.provenance == (ORIGIN,)


def test_results_of_several_runs_say_on_what_their_rows_were_measured(tmp_path: Path) -> None:
    gpu = ORIGIN | {"machine": "x86_64, 8 cores, NVIDIA H200"}
    rows = [{"case": "a", "device": "cpu", "run": 0}, {"case": "a", "device": "cuda", "run": 1}]
    section = only(write_json(tmp_path / "t.json", {"table": "1", "runs": [gpu, gpu], "rows": rows}))
    assert [device(run) for run in section.provenance] == ["CPU", "NVIDIA H200"]


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.json")), ids=lambda path: str(path.relative_to(RESULTS)))
def test_every_committed_result_is_read(path: Path) -> None:
    (file,) = page([path]).files
    assert file.section.tables
    for figure in file.section.figures:
        assert drawn(figure)
    for table in file.section.tables:
        assert table.rows


def test_the_plots_of_committed_results_are_there() -> None:
    expected = {"budgets": 3, "traffic": 2, "speed": 4, "compile_speed": 4, "peak_error": 2}
    found = {name: len(only(RESULTS / f"{name}.json").figures) for name in expected}
    assert found == expected


def test_results_measured_on_the_cpu_of_a_machine_with_a_gpu_say_so(tmp_path: Path) -> None:
    gpu = ORIGIN | {"machine": "x86_64, 8 cores, NVIDIA H200"}
    rows = [{"step": "a", "median_s": 1.0}]
    of_rows = write_json(tmp_path / "a.json", {"provenance": gpu, "rows": [rows[0] | {"device": "cpu"}]})
    of_all = write_json(tmp_path / "b.json", {"provenance": gpu, "device": "cpu", "rows": rows})
    models = {"models": {"m": {"provenance": gpu, "device": "CPU", "rows": rows}}}
    of_model = write_json(tmp_path / "c.json", models)
    for path in (of_rows, of_all, of_model):
        assert device(only(path).provenance[0]) == "CPU"
        assert "Run on CPU.</figcaption>" in page([path]).html()
    neither = write_json(tmp_path / "d.json", {"provenance": gpu, "rows": rows})
    assert device(only(neither).provenance[0]) == "NVIDIA H200"


def test_a_table_of_several_runs_says_which_is_which_and_where_published_figures_are(tmp_path: Path) -> None:
    runs = [ORIGIN, ORIGIN | {"commit": "0"}]
    rows = [{"case": name, "figures": {"samples_per_s": 2.0}, "run": i} for i, name in enumerate("ab")]
    section = only(write_json(tmp_path / "t.json", {"table": "throughput", "runs": runs, "rows": rows}))
    assert [run["run"] for run in section.provenance] == ["0", "1"]
    assert "throughput.md shows both" in section.text


def test_names_may_be_anything(tmp_path: Path) -> None:
    strange: list[Any] = [None, 1, ["a"], "\ud800", "x" * 500]
    documents: list[Any] = [
        [solver_run("a", 10, "x", 1.0) | {"solver": name} for name in strange],
        {"provenance": ORIGIN, "rows": [{"model": name, "strategy": name, "bytes": 3} for name in strange]},
        {"provenance": ORIGIN, "rows": [{"step": name, "median_s": 1.0} for name in strange]},
        {
            "provenance": ORIGIN,
            "rows": [
                {"model": name, "estimator": "flops", "budget": 1, "pytorch": 2, "ours": 1, "unit": "flops"}
                for name in strange
            ],
        },
        {"models": {"a": {"provenance": ORIGIN, "rows": [{"x": 1}], "failed": ["all of it"]}}},
    ]
    files = [write_json(tmp_path / f"{i}.json", document) for i, document in enumerate(documents)]
    found = page(files)
    assert [len(file.section.figures) for file in found.files] == [1, 1, 1, 2, 0]
    found.save(tmp_path / "page.html")
    assert "\\ud800" in (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "all of it" in found.html()


def test_predictions_within_a_byte_do_not_look_far_apart() -> None:
    rows = [{"predicted_bytes": 10**9 + i, "inductor_bytes": 10**9} for i in range(3)]
    (figure,) = charts.figures(rows)
    assert figure.layout["xaxis"]["range"] == figure.layout["yaxis"]["range"]
    low, high = (10**end for end in figure.layout["yaxis"]["range"])
    assert high / low > 2
    assert any(low < mark < high for mark in figure.layout["yaxis"]["tickvals"])
    assert figure.data[0]["x"] == figure.data[0]["y"] == pytest.approx([low, high])


@given(st.sampled_from(charts.CHARTS), st.data())
def test_rows_of_any_values_give_plots_without_nan(chart: charts.Chart, data: st.DataObject) -> None:
    numbers = st.one_of(st.none(), st.floats(), st.integers(-(2**70), 2**70))
    names = st.sampled_from(["a", "<b>", "PyTorch"])
    text = {"model", "strategy", "estimator", "solver", "prices", "step", "statement", "partitioner"}
    row = st.fixed_dictionaries({key: names if key in text else numbers for key in sorted(chart.needs)})
    figures = chart.draw(data.draw(st.lists(row, min_size=1, max_size=4)))
    for figure in figures:
        spec = strict(json.dumps({"data": figure.data, "layout": figure.layout}))
        assert all(len(trace["x"]) == len(trace["y"]) == len(trace.get("text", trace["x"])) for trace in spec["data"])


def test_the_command_draws_what_the_command_of_the_library_shows_as_tables(tmp_path: Path) -> None:
    files = [str(RESULTS / "speed.json"), "-o", str(tmp_path / "page.html")]
    own = typer.Typer()
    own.command()(main)
    assert "speed.json: results, 4 figures," in CliRunner().invoke(own, files).stdout
    assert "speed.json: results, 0 figures," in CliRunner().invoke(app, ["report", *files]).stdout
