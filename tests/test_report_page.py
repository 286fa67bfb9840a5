"""The page of `remat report`: what it reads, and that nothing breaks out of it."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from depth import drawn
from examples import chain, cosines
from hypothesis import given
from hypothesis import strategies as st
from report_samples import (
    EVIL,
    LONG,
    ORIGIN,
    RESULTS,
    evil_files,
    solver_run,
    solver_runs,
    strict,
    write_csv,
    write_json,
)
from typer.testing import CliRunner

import remat
from experiments.report.bars_and_axes import byte_axis, categories
from experiments.report.result_readers import READERS
from remat.answer.registry import solver_names
from remat.cli.app import app
from remat.errors import InvalidOption, NotInstalled, RematError
from remat.improve.landmarks import EAGER, PYTORCH
from remat.views.report import (
    Options,
    Page,
    Reader,
    cells,
    colours,
    content,
    frontier_charts,
    plots,
    render,
    solver_charts,
    solver_rows,
    source,
)
from remat.views.report.origins import device, separated
from remat.views.report.section import Section


def only(path: Path) -> Any:
    """The section of a single file."""
    (file,) = Page.of([path], refine=4).files
    return file.section


def command(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result


# What a file is


@pytest.mark.parametrize("name", ["graph.json", "graph.json.gz"])
def test_a_graph_becomes_its_frontier(tmp_path: Path, name: str) -> None:
    chain(6).save(tmp_path / name)
    section = only(tmp_path / name)
    assert section.kind == "Frontier"
    (figure,) = section.figures
    names = [trace["name"] for trace in figure.data]
    assert (names[0], *names[-3:]) == ("proven bound", "hull vertices, optimal", PYTORCH, EAGER)
    assert [row["found by"] for row in section.tables[0].rows[:2]] == [PYTORCH, EAGER]
    assert len(section.tables[0].rows) >= 2


def test_a_frontier_that_was_printed_is_drawn_as_the_graph_is(tmp_path: Path) -> None:
    chain(6).save(tmp_path / "graph.json")
    printed = command("frontier", tmp_path / "graph.json", "--refine", 4, "--json").stdout
    (tmp_path / "frontier.json").write_text(printed)
    ours, theirs = only(tmp_path / "graph.json").figures[0], only(tmp_path / "frontier.json").figures[0]
    assert [(trace["x"], trace["y"]) for trace in ours.data] == [(trace["x"], trace["y"]) for trace in theirs.data]


def test_the_bound_of_a_hull_that_may_lack_vertices_is_drawn_as_steps_that_no_plan_is_below() -> None:
    rows = [(0, 90, 90, True), (40, 70, 50, False), (100, 0, 0, True)]
    points = [
        {"budget_bytes": size, "saved_bytes": size, "cost": cost, "bound": bound, "is_vertex": is_vertex, "solver": "x"}
        for size, cost, bound, is_vertex in rows
    ]
    document = {"graph": "g", "estimator": "flops", "unit": "flops", "points": points}
    known = frontier_charts.Curve.from_document(document | {"is_exact": True}, "f")
    unknown = frontier_charts.Curve.from_document(document, "f")
    assert known.bound() == [(0, 90), (100, 0)]
    assert unknown.bound() == [(0, 90), (40, 50), (100, 0)]
    shapes = [frontier_charts.section(curve).figures[0].data[0]["line"]["shape"] for curve in (known, unknown)]
    assert shapes == ["linear", "vh"]


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet"])
def test_runs_of_solvers_in_three_formats_say_the_same(tmp_path: Path, suffix: str) -> None:
    rows, path = solver_runs(), tmp_path / f"solvers.{suffix}"
    if suffix == "csv":
        write_csv(path, rows)
    elif suffix == "json":
        write_json(path, rows)
    else:
        pytest.importorskip("pyarrow", reason="pyarrow is not installed: parquet is not read")
        import pandas as pd

        pd.DataFrame(rows).astype({"objective": "Int64", "bound": "Int64"}).to_parquet(path)
    section = only(path)
    assert section.kind == "Solver comparison"
    scaling, _ = section.figures
    assert [view.label for view in scaling.views] == ["byte-traffic", LONG]
    assert {trace["name"] for trace in scaling.data} == {"ortools", "scipy", "pulp"}
    assert section.tables[1].rows[0]["objective"] == 2**60  # exact: no float in between
    assert section.tables[1].rows[0]["plan"] == "12e45"  # a digest, not a number
    summary = {(row["cost_model"], row["solver"]): row for row in section.tables[0].rows}
    assert summary[LONG, "pulp"]["solved"] == 3
    assert summary["byte-traffic", "pulp"]["solved"] == 4
    assert device(section.provenance[0]) == "CPU"


def test_the_table_of_compare_is_read(tmp_path: Path) -> None:
    chain(3).save(tmp_path / "a.json")
    cosines().save(tmp_path / "b.json")
    solvers = ["-s", "ortools", "-s", "scipy"]
    printed = command("compare", tmp_path / "a.json", tmp_path / "b.json", *solvers, "--json").stdout
    (tmp_path / "compared.json").write_text(printed)
    section = only(tmp_path / "compared.json")
    assert len(section.figures) == 2
    assert [row["certified"] for row in section.tables[1].rows] == [True] * 4
    remat.compare([chain(3), cosines()], solvers=["ortools"]).to_csv(tmp_path / "compared.csv", index=False)
    assert len(only(tmp_path / "compared.csv").tables[1].rows) == 2


def test_an_instance_is_solved_by_a_plan_as_good_as_the_best_bound_of_any_solver() -> None:
    exact = solver_run("g", 10, "cpsat", 1.0, objective=1000, bound=1000)
    near = solver_run("g", 10, "lagrangian", 0.1, objective=1001, bound=900, status="feasible")
    far = solver_run("g", 10, "knapsack-greedy", 0.1, objective=1002, bound=900, status="feasible")
    none = solver_run("g", 10, "pulp", None, objective=None, bound=None, status="timeout")
    assert [run["solved"] for run in solver_rows.normalized([exact, near, far, none])] == [True, True, False, False]
    alone = solver_run("g", 10, "knapsack-greedy", 0.1, objective=1002, bound=None, status="feasible")
    assert [run["solved"] for run in solver_rows.normalized([alone])] == [False]  # nobody knows a bound


def test_an_instance_in_another_file_is_another_one() -> None:
    former = solver_run("g", 10, "cpsat", 1.0, objective=1000, bound=1000, graph="a")
    later = solver_run("g", 10, "lagrangian", 0.1, objective=1001, bound=900, status="feasible", graph="b")
    runs = [former, later, later | {"solver": "ortools", "bound": 1001}]
    assert [run["solved"] for run in solver_rows.normalized([former, later])] == [True, False]
    assert {row["solver"]: row["instances"] for row in solver_rows.summary([*runs, former | {"graph": "b"}])} == {
        "cpsat": 2,
        "lagrangian": 1,
        "ortools": 1,
    }
    _, profile = solver_charts.charts(runs)
    steps = {trace["name"]: trace["y"][0] for trace in profile.data}
    assert steps == {"cpsat": 0.5, "lagrangian": 0.5, "ortools": 0.5}, "each is the fastest on one of two graphs"


def test_a_performance_profile_is_the_share_of_instances_within_a_factor_of_the_fastest() -> None:
    rows = [solver_run(name, 10, "ortools", taken) for name, taken in (("a", 1.0), ("b", 4.0))]
    rows += [solver_run(name, 10, "scipy", taken) for name, taken in (("a", 3.0), ("b", 2.0))]
    _, profile = solver_charts.charts(rows)
    steps = {trace["name"]: list(zip(trace["x"], trace["y"], strict=True))[:-1] for trace in profile.data}
    assert steps == {"ortools": [(1.0, 0.5), (2.0, 1.0)], "scipy": [(1.0, 0.5), (3.0, 1.0)]}

    late = solver_charts.charts([*rows, solver_run("c", 10, "ortools", 1.0), solver_run("c", 10, "pulp", 5.0)])[1]
    pulp = next(trace for trace in late.data if trace["name"] == "pulp")
    assert list(zip(pulp["x"], pulp["y"], strict=True))[:-1] == [(1.0, 0.0), (5.0, 1 / 3)]


def test_results_that_nobody_draws_become_tables_with_their_provenance(tmp_path: Path) -> None:
    document = {"provenance": ORIGIN, "rows": [{"model": "a", "strategy": "b", "bytes": 1024}], "seed": 0}
    section = only(write_json(tmp_path / "r.json", document))
    assert section.figures == ()
    assert [part.title for part in section.parts] == ["Rows", "Settings"]
    assert section.provenance == (ORIGIN,)
    assert "1.0 KiB" in Page.of([tmp_path / "r.json"]).html()


def test_a_reader_of_ones_own_is_asked_before_those_of_the_library(tmp_path: Path) -> None:
    def read(source: source.Source, options: Options) -> Section:
        return Section("Losses", f"{len(source.content['losses'])} steps, {options.estimator}", ())

    own = Reader('losses ({"losses": [...]})', lambda found: content.has(found, "losses"), read)
    path = write_json(tmp_path / "r.json", {"losses": [3, 2, 1], "provenance": {}})
    (file,) = Page.of([path], estimator="flops", readers=[own]).files
    assert (file.section.kind, file.section.text) == ("Losses", "3 steps, flops")
    assert only(path).kind == "Results"
    with pytest.raises(RematError, match=re.escape('It reads: losses ({"losses": [...]}); graph files')):
        Page.of([write_json(tmp_path / "x.json", {"x": 1})], readers=[own])


def test_a_run_that_is_repeated_counts_once() -> None:
    rows = [solver_run("a", 10, "ortools", 1.0), solver_run("a", 10, "scipy", 4.0), solver_run("b", 20, "scipy", 1.0)]
    again = [*rows, solver_run("a", 10, "ortools", 3.0)]
    profile = {trace["name"]: (trace["x"][:-1], trace["y"][:-1]) for trace in solver_charts.charts(again)[1].data}
    assert profile == {"ortools": ([1.0], [0.5]), "scipy": ([1.0, 2.0], [0.5, 1.0])}  # 4 s beside the median, 2 s
    totals = {row["solver"]: row for row in solver_rows.summary(again)}
    assert [totals["ortools"][key] for key in ("instances", "solved", "certified", "with a plan")] == [1] * 4


def test_objects_of_a_row_that_hold_the_same_names_keep_both(tmp_path: Path) -> None:
    rows = [{"model": "a", "before": {"bytes": 2, "s": 1}, "after": {"bytes": 1}, "kept": {"ratio": 0.5}}]
    section = only(write_json(tmp_path / "r.json", {"provenance": ORIGIN, "rows": rows}))
    assert section.tables[0].rows == [{"model": "a", "before: bytes": 2, "s": 1, "after: bytes": 1, "ratio": 0.5}]


@pytest.mark.parametrize("lacking", ["commit", "date", "machine"])
def test_what_the_provenance_lacks_is_said(tmp_path: Path, lacking: str) -> None:
    origin = {key: value for key, value in ORIGIN.items() if key != lacking}
    text = Page.of([write_json(tmp_path / "r.json", {"provenance": origin, "rows": [{"x": 1}]})]).html()
    assert text.count("not stated") == 1
    name = "device" if lacking == "machine" else lacking
    assert f"<dt>{name}</dt><dd>not stated in the file</dd>" in text


def test_the_day_of_a_capture_is_the_date_of_a_graph(tmp_path: Path) -> None:
    meta = {"commit": "0", "device": "cpu, fake tensors", "captured": "2026-01-02", "cite": ""}
    replace(chain(4), meta=meta).save(tmp_path / "graph.json")
    text = Page.of([tmp_path / "graph.json"], refine=0).html()
    assert "not stated" not in text
    assert "<dt>cite</dt>" not in text


def test_a_long_name_leaves_room_for_the_plot() -> None:
    axis = categories(["1", "0", "x" * 500, "1", "<" * 41])
    assert axis["tickvals"] == axis["categoryarray"] == ["1", "0", "x" * 500, "&lt;" * 41]
    assert axis["ticktext"] == ["1", "0", "x" * 26 + "\u2026" + "x" * 13, "&lt;" * 26 + "\u2026" + "&lt;" * 13]


def test_bytes_as_far_apart_as_floats_can_be_have_an_axis() -> None:
    axis = byte_axis("bytes", [5e-324, 10**299, 1e308])
    assert math.log10(axis["tickvals"][-1]) < axis["range"][1]


def test_a_unit_is_shown_unless_prices_carry_it(tmp_path: Path) -> None:
    rows = [{"name": "a", "value": 3, "unit": "ms"}, {"name": "b", "value": 4, "unit": "MB"}]
    same = [{"name": name, "value": 3, "unit": "percent"} for name in "abc"]
    document = {"provenance": ORIGIN, "rows": rows, "same": same}
    text = Page.of([write_json(tmp_path / "r.json", document)]).html()
    assert "<td>ms</td>" in text
    assert "unit: percent" in text
    assert '<button type="button">unit</button>' not in Page.of([write_json(tmp_path / "s.json", solver_runs())]).html()


def test_columns_that_all_rows_share_keep_names_that_tell_them_apart(tmp_path: Path) -> None:
    rows = [{"plan": name, "predicted_s": 1.0, "predicted_bytes": 1024} for name in "abc"]
    text = Page.of([write_json(tmp_path / "r.json", {"provenance": ORIGIN, "rows": rows})]).html()
    assert "In all rows: predicted_s: 1.00 s; predicted_bytes: 1.0 KiB." in text


def test_the_index_of_a_table_is_no_column(tmp_path: Path) -> None:
    written = write_csv(tmp_path / "solvers.csv", solver_runs()).read_text().splitlines()
    indexed = "\n".join([f",{written[0]}", *(f"{i},{line}" for i, line in enumerate(written[1:]))])
    (tmp_path / "indexed.csv").write_text(indexed, encoding="utf-8-sig")
    assert only(tmp_path / "indexed.csv").tables[1].rows == only(tmp_path / "solvers.csv").tables[1].rows


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "find_spec", lambda name: None)
    (tmp_path / "r.parquet").write_bytes(b"PAR1")
    with pytest.raises(NotInstalled, match=re.escape("pip install pyarrow (or give the CSV)")):
        Page.of([tmp_path / "r.parquet"])


# What is none


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"a": 1, "b": 2}', "JSON with 'a', 'b', which a report does not understand. It reads: graph files"),
        (b"[]", "a table of 0 rows"),
        (b"[1, 2]", "JSON that is no object: list"),
        (b"x,y\n1,2\n", "a table of 1 rows with the columns x, y"),
        (b"", "neither JSON, CSV nor parquet"),
        (b"# A text\n\nwith words, and commas.\n", "neither JSON, CSV nor parquet, which a report does not understand"),
        (b"null", "neither JSON, CSV nor parquet"),
        (b'{"format": "remat.plan"}', "JSON with 'format'"),
        (b'{"points": [{"cost": 1}], "unit": "ns"}', "points[0] of a frontier must have"),
        (b'{"points": [1], "unit": "ns"}', "does not understand"),
        (b"{", "not JSON, or truncated"),
        (b"\xff\xfe\x00", "neither text"),
        (b"\x1f\x8b\x00", "the gzip data is damaged"),
        (b"instance,solver\na,b,c\n", "if it is CSV, row 2 must have 2 cells"),
        (b"instance;values;solver\na;1;b\n", "CSV must be separated by commas, got semicolons"),
        (b"instance,solver,solver\na,b,c\n", "a column must have a name of its own, got 'solver' twice"),
        (b"instance,values\na," + b"9" * 5000, "at most 300 digits, got one of 5000"),
        (b'{"rows": [{"a": ' + b"9" * 5000 + b"}]}", "at most 300 digits, got one of 5000"),
        (b'{"rows": [{"a": -1' + b"0" * 400 + b"}]}", "at most 300 digits"),
        (b'{"models": {"a": {"provenance": "b", "rows": []}}}', "JSON with 'models', which a report does not under"),
        (b"PAR1 and no more", "damaged parquet"),
        (b'{"format": "remat.graph", "version": 2}', "must be an object"),
    ],
)
def test_what_is_not_understood_is_named_in_one_error(tmp_path: Path, content: bytes, says: str) -> None:
    if content.startswith(b"PAR1"):
        pytest.importorskip("pyarrow", reason="pyarrow is not installed: parquet is not read")
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(RematError, match=re.escape(says)) as error:
        Page.of([tmp_path / "file"])
    assert str(tmp_path / "file") in str(error.value)


def test_no_file_a_directory_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="at least one file"):
        Page.of([])
    with pytest.raises(IsADirectoryError, match="Is a directory"):
        Page.of([tmp_path])
    assert "missing.json: No such file" in command("report", "missing.json", code=1).stderr


def test_what_is_missing_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    with pytest.raises(NotInstalled, match=re.escape("plotly and jinja2: pip install 'remat[report]'")):
        Page.of([write_json(tmp_path / "r.json", solver_runs())])


# What comes out


class Elements(HTMLParser):
    """Counts elements, and keeps what is in scripts with data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.counts: dict[str, int] = {}
        self.data: list[str] = []
        self.policy = ""
        self._in_data = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        about = dict(attrs)
        assert not [name for name in about if name.startswith("on")], attrs
        self._in_data = tag == "script" and about.get("type") == "application/json"
        if about.get("http-equiv") == "Content-Security-Policy":
            self.policy = about["content"] or ""

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.data.append(data)
            self._in_data = False


@pytest.mark.parametrize(("readers", "count"), [((), 3), (READERS, 6)])
def test_no_name_breaks_out_of_the_page(tmp_path: Path, readers: Sequence[Reader], count: int) -> None:
    page = Page.of(evil_files(tmp_path), title=EVIL, refine=2, readers=readers)
    elements = Elements(page.html())
    figures = sum(len(file.section.figures) for file in page.files)
    assert figures == count
    assert elements.counts["script"] == figures + 2
    assert not elements.counts.keys() & {"img", "b"}
    assert len([strict(data) for data in elements.data]) == figures
    assert not set("<>&\u2028") & set("".join(elements.data))


def test_plots_know_no_nan_and_no_infinity() -> None:
    trace = plots.points("a", [1.0, math.nan], [math.inf, 2.0], None)
    drawn = plots.figure("t", "alt", [trace], x=plots.axis("x"), y=plots.axis("y", range=[0, math.inf]))
    assert (drawn.data[0]["x"], drawn.data[0]["y"]) == ([1.0, None], [None, 2.0])
    assert drawn.layout["yaxis"]["range"] == [0, None]


def test_the_page_allows_its_own_scripts_and_no_others(tmp_path: Path) -> None:
    text = Page.of([write_json(tmp_path / "r.json", solver_runs())]).html()
    policy = Elements(text).policy
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.partition("style-src")[0]


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_same_files_give_the_same_bytes_in_every_process(tmp_path: Path, seed: str) -> None:
    chain(5).save(tmp_path / "graph.json")
    others = [solver_run("graph-100", 100, f"a stranger's {number}", 1.0) for number in range(4)]  # no colour of theirs
    solvers = write_csv(tmp_path / "solvers.csv", solver_runs() + others)
    files = [tmp_path / "graph.json", solvers, RESULTS / "budgets.json"]
    here = Page.of(files, refine=3).html()
    code = "import sys; from remat.views.report import Page; Page.of(sys.argv[2:], refine=3).save(sys.argv[1])"
    arguments = [sys.executable, "-c", code, str(tmp_path / "there.html"), *map(str, files)]
    subprocess.run(arguments, check=True, env=os.environ | {"PYTHONHASHSEED": seed})
    assert (tmp_path / "there.html").read_bytes() == here.encode()


ANY = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.lists(st.integers(), max_size=2)
)


@drawn(50)
@given(st.lists(st.dictionaries(st.text(max_size=8), ANY, max_size=4), max_size=5))
def test_tables_of_any_rows_lose_no_value(rows: list[dict[str, Any]]) -> None:
    same = cells.constants(rows)
    columns = [column for column in cells.columns(rows) if column not in same]
    for row in rows:
        assert set(row) == {column for column in columns if column in row} | set(same)
        assert all(repr(row[column]) == repr(value) for column, value in same.items())
    for row in rows:
        for column, value in row.items():
            cell = cells.cell(row, column)
            assert cell.text
            if isinstance(value, float) and math.isfinite(value):
                assert float(cell.key) == value
            assert cell.text != "nan"


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"saved_bytes": 1536}, "1.5 KiB"),
        ({"bytes": 3 * 2**20}, "3.0 MiB"),
        ({"objective": 2_000_000, "unit": "ns"}, "2.0 ms"),
        ({"objective": 2_000_000}, "2,000,000"),
        ({"ours": 1500, "estimator": "roofline:device=h200"}, "1.5 µs"),
        ({"gap": 0.0123}, "1.23%"),
        ({"solve_s": 0.0144}, "14.4 ms"),
        ({"peak_GiB": 0.5}, "512.0 MiB"),
        ({"peak_GiB": 1e308}, "1e+308 GiB"),
        ({"samples_per_s": 123.4}, "123.4"),
        ({"saved_bytes_per_element": 2.125}, "2.125"),
        ({"error": 3e-7}, "3e-05%"),
        ({"error": 0.0}, "0.00%"),
        ({"value": 0.012, "what": "predicted_s: median"}, "12.0 ms"),
        ({"ratio": 1.21023}, "1.21"),
        ({"solve_s": None}, cells.MISSING),
        ({"solve_s": math.nan}, "not a number"),
        ({"solve_s": math.inf}, "∞"),
        ({"certified": False}, "no"),
        ({"models": ["a", "b"]}, "a, b"),
        ({"models": []}, "none"),
        ({"value": 0.0123, "what": "overall: worst_error"}, "1.23%"),
        ({"inductor_bytes": [1024, 2048]}, "1.0 KiB, 2.0 KiB"),
    ],
)
def test_cells_read_by_the_name_of_their_column(row: dict[str, Any], text: str) -> None:
    assert cells.cell(row, next(iter(row))).text == text


def test_rows_without_numbers_make_a_table_and_no_plot(tmp_path: Path) -> None:
    rows = [run | {"solve_s": None, "status": "refused", "objective": None, "bound": None} for run in solver_runs()]
    section = only(write_json(tmp_path / "r.json", [run | {"stopped": False} for run in rows]))
    assert section.figures == ()
    assert len(section.tables[1].rows) == len(rows)
    empty = only(write_json(tmp_path / "e.json", {"provenance": ORIGIN, "rows": []}))
    assert empty.parts == ()
    assert "There are no results in this file." in Page.of([tmp_path / "e.json"]).html()


def test_provenance_says_once_what_all_runs_share_and_marks_what_no_commit_holds() -> None:
    common, differing = separated([ORIGIN | {"seconds": "1"}, ORIGIN | {"seconds": "2"}])
    assert common["commit"] == "0123456789ab-dirty (uncommitted changes)"
    assert common["device"] == "CPU"
    assert differing == ({"seconds": "1"}, {"seconds": "2"})


def luminance(colour: str) -> float:
    """Relative luminance, as WCAG defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("page", ["#ffffff", "#14171c"])
def test_colours_stand_out_from_light_and_dark_pages(page: str) -> None:
    style = (Path(render.__file__).parent / "page.css").read_text()
    assert f"--page: {page}" in style
    for colour in (*colours.PALETTE, colours.GREY):
        low, high = sorted((luminance(colour), luminance(page)))
        assert (high + 0.05) / (low + 0.05) >= 3, colour


def test_solvers_keep_their_looks_and_share_none() -> None:
    looks = {(colours.colour(name), colours.marker(name)) for name in solver_names()}
    assert len(looks) == len(solver_names())


def test_the_command_writes_the_page_and_says_so(tmp_path: Path) -> None:
    path = write_json(tmp_path / "r.json", solver_runs())
    text = command("report", path, "-o", tmp_path / "page.html").stdout
    assert "r.json: solver comparison, 2 figures, 2 tables" in text
    assert f"written to {tmp_path / 'page.html'} (" in text
    kept = path.read_bytes()
    assert "would be lost" in command("report", path, "-o", path, code=2).stderr
    os.link(path, tmp_path / "the same.json")
    assert "would be lost" in command("report", path, "-o", tmp_path / "the same.json", code=2).stderr
    assert path.read_bytes() == kept
    assert "folder that exists" in command("report", path, "-o", tmp_path / "none" / "page.html", code=2).stderr
    document = json.loads(command("report", path, "-o", tmp_path / "page.html", "--json").stdout)
    assert document["bytes"] == (tmp_path / "page.html").stat().st_size
    assert document["files"][0]["figures"] == 2
