"""The tables of the sources: what is kept of a run, what is shown of it, and what happens when one ends early."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from experiments.paper import measure_table, row_file
from experiments.paper.measure_table import command, measure
from experiments.paper.row_file import Rows, TableRow, WrongFile, cell
from experiments.paper.table import Figures, PaperTable, Setting, TableCase, Unavailable
from experiments.paper.table_page import NOT_MEASURED, page_of

SMALL = Setting("cpu", "small", 1)
PUBLISHED = Setting("cpu", "published", 1)


class Counter:
    """Measures nothing, and notes what it was asked for; fails on demand."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.failing: dict[str, BaseException] = {}

    def case(self, name: str, **published: float) -> TableCase:
        return TableCase(name, self.measure(name), published)

    def measure(self, name: str) -> Callable[[Setting], Figures]:
        def measured(setting: Setting) -> Figures:
            self.calls.append(name)
            if name in self.failing:
                raise self.failing[name]
            return {"time_ms": 1.5 * len(name), "kernels": len(name)}

        return measured

    def table(self, name: str = "example") -> PaperTable:
        cases = [self.case("one", time_ms=0.25), self.case("two", kernels=7), self.case("three")]
        figures = {"time_ms": "time (ms)", "kernels": "kernels"}
        return PaperTable(name, "An example", "a source; one GPU", figures, cases, "- A note.")


@pytest.fixture
def counter() -> Counter:
    return Counter()


@pytest.fixture(autouse=True)
def cleared(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices that were cleared, in name only: to collect the garbage of all other tests takes a second a case."""
    devices: list[str] = []
    monkeypatch.setattr(measure_table, "_clear", devices.append)
    return devices


def line_of(text: str, figure: str, case: str = "") -> list[str]:
    """The cells of a line of the Markdown table: the first of this figure, from the line of a case on."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    start = next(i for i, found in enumerate(cells) if not case or found[0] == case)
    return next(found for found in cells[start:] if found[1] == figure)


@pytest.mark.parametrize("killed", ["one", "two", "three"])
def test_a_killed_run_loses_one_case_and_the_next_goes_on(
    counter: Counter, cleared: list[str], tmp_path: Path, killed: str
) -> None:
    counter.failing[killed] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        measure(counter.table(), SMALL, tmp_path)
    names = ["one", "two", "three"]
    assert counter.calls == names[: names.index(killed) + 1]
    counter.failing.clear()
    counter.calls.clear()
    rows = measure(counter.table(), SMALL, tmp_path)
    assert counter.calls == names[names.index(killed) :]
    assert [row.case for row in Rows.open(rows.path, "example").rows.values()] == names
    counter.calls.clear()
    measure(counter.table(), SMALL, tmp_path)
    assert counter.calls == []
    cleared.clear()
    measure(counter.table(), SMALL, tmp_path, again=True)
    assert counter.calls == names
    assert cleared == ["cpu"] * 3, "each begins with nothing compiled"


def test_a_run_that_is_killed_while_it_writes_leaves_the_file_as_it_was(
    counter: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure(counter.table(), SMALL, tmp_path, only="one")
    file = tmp_path / "example.json"
    before = file.read_text()

    def killed(*paths: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            measure(counter.table(), SMALL, tmp_path)
    assert file.read_text() == before
    assert len(measure(counter.table(), SMALL, tmp_path).rows) == 3


def test_only_some_cases_are_measured_and_an_unknown_name_is_refused(counter: Counter, tmp_path: Path) -> None:
    measure(counter.table(), SMALL, tmp_path, only="o")
    assert counter.calls == ["one", "two"]
    with pytest.raises(ValueError, match=r"no case of example has 'four' in its name: \['one', 'two', 'three'\]"):
        measure(counter.table(), SMALL, tmp_path, only="four")


def test_no_case_is_begun_when_the_time_is_over(counter: Counter, tmp_path: Path) -> None:
    rows = measure(counter.table(), SMALL, tmp_path, minutes=0)
    assert counter.calls == []
    assert rows.rows == {}
    assert NOT_MEASURED in (tmp_path / "example.md").read_text()
    measure(counter.table(), SMALL, tmp_path, minutes=5)
    assert len(counter.calls) == 3


def test_what_fails_or_is_measured_again_does_not_keep_the_others_waiting(
    counter: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run has the time for one case."""
    clock = SimpleNamespace(monotonic=lambda: 60.0 * len(counter.calls), perf_counter=time.perf_counter)
    monkeypatch.setattr(measure_table, "time", clock)

    def measured(**options: Any) -> str:
        before = len(counter.calls)
        measure(counter.table(), SMALL, tmp_path, minutes=0.5, **options)
        (name,) = counter.calls[before:]
        return name

    counter.failing["one"] = RuntimeError("only after a minute")
    assert [measured() for _ in range(5)] == ["one", "two", "three", "one", "one"]
    counter.failing.clear()
    assert measured() == "one"
    assert [measured(again=True) for _ in range(4)] == ["two", "three", "one", "two"]


def test_rows_of_cases_that_the_table_no_longer_has_do_not_count(counter: Counter, tmp_path: Path) -> None:
    """They would go into summaries, and a failed one would fail the command for ever."""
    counter.failing["two"] = RuntimeError("no such luck")
    measure(counter.table(), SMALL, tmp_path)
    seen: list[str] = []

    def summary(rows: Rows, folder: Path) -> list[str]:
        del folder
        seen.extend(row.case for row in rows.of("cpu", "small"))
        return []

    renamed = replace(counter.table(), cases=[counter.case("one"), counter.case("second")], summary=summary)
    code, said = invoke(renamed, "--device", "cpu", "--output", str(tmp_path))
    assert code == 0, said
    assert "three" not in said
    assert seen == ["one", "second"]
    assert [row.case for row in Rows.open(tmp_path / "example.json", "example").rows.values()] == ["one", "second"]


def test_an_error_of_any_text_stays_in_its_cell_and_is_shown_as_it_is(counter: Counter, tmp_path: Path) -> None:
    counter.failing["one"] = RuntimeError("closing [/tmp] of [bold]text[int], got <class 'int'>")
    counter.failing["two"] = Unavailable("needs a GPU\n| of 80 GB")
    code, said = invoke(counter.table(), "--device", "cpu", "--output", str(tmp_path))
    assert code == 1
    assert "failed: one: RuntimeError: closing [/tmp] of [bold]text[int], got <class 'int'>" in said
    text = (tmp_path / "example.md").read_text()
    assert "| RuntimeError: closing [/tmp] of [bold]text[int], got \\<class 'int'> |" in text
    assert "| needs a GPU \\| of 80 GB |" in text
    counter.failing.clear()
    worded = replace(
        counter.table(), cases=[TableCase("one", lambda setting: {"time_ms": "a | b"}, {"time_ms": "c | d"})]
    )
    measure(worded, SMALL, tmp_path, again=True)
    assert "| c \\| d | not yet measured | a \\| b |" in (tmp_path / "example.md").read_text()


def test_a_failure_is_a_row_the_others_still_count_and_it_is_measured_again(counter: Counter, tmp_path: Path) -> None:
    counter.failing["one"] = RuntimeError("a | b\nand a trace")
    counter.failing["two"] = Unavailable("needs a GPU of 80 GB")
    rows = measure(counter.table(), SMALL, tmp_path)
    kinds = {row.case: (row.kind, row.problem) for row in rows.rows.values()}
    assert kinds == {
        "one": ("error", "RuntimeError: a | b"),
        "two": ("unavailable", "needs a GPU of 80 GB"),
        "three": ("", ""),
    }
    text = (tmp_path / "example.md").read_text()
    assert "RuntimeError: a \\| b" in text
    assert line_of(text, "kernels", "two")[-1] == "needs a GPU of 80 GB"
    counter.failing = {"three": RuntimeError("of which nothing was published")}
    measure(counter.table(), SMALL, tmp_path, only="three", again=True)
    text = (tmp_path / "example.md").read_text()
    assert line_of(text, "time (ms)", "three")[2:] == ["", NOT_MEASURED, "RuntimeError: of which nothing was published"]
    counter.failing.clear()
    counter.calls.clear()
    measure(counter.table(), SMALL, tmp_path)
    assert counter.calls == ["one", "two", "three"]


def test_what_was_not_measured_on_cuda_is_said_in_words(counter: Counter, tmp_path: Path) -> None:
    measure(counter.table(), SMALL, tmp_path)
    text = (tmp_path / "example.md").read_text()
    assert line_of(text, "figure") == ["case", "figure", "published", "CUDA, published size", "CPU, small size"]
    assert line_of(text, "time (ms)") == ["one", "time (ms)", "0.25", NOT_MEASURED, "4.5"]
    assert line_of(text, "kernels", "two")[2:] == ["7", NOT_MEASURED, "3"]
    assert "- A note." in text
    assert "Published: a source; one GPU." in text
    assert "Seed 0, for weights and inputs" in text


def test_a_size_that_the_source_does_not_say_is_not_called_published(counter: Counter, tmp_path: Path) -> None:
    measure(replace(counter.table(), full_size="full"), PUBLISHED, tmp_path, only="one")
    text = (tmp_path / "example.md").read_text()
    assert line_of(text, "figure")[3:] == ["CUDA, full size", "CPU, full size", "CPU, small size"]
    assert "- cpu, full size: 1 of the rows" in text


def test_two_settings_stand_side_by_side(counter: Counter, tmp_path: Path) -> None:
    table = counter.table()
    measure(table, SMALL, tmp_path)
    rows = measure(table, PUBLISHED, tmp_path, only="one")
    rows.add(TableRow("one", "cuda", "published", {"time_ms": 0.125, "kernels": 2}))
    text = page_of(table, rows)
    headings = ["CUDA, published size", "CPU, published size", "CPU, small size"]
    assert line_of(text, "figure")[3:] == headings
    assert line_of(text, "time (ms)") == ["one", "time (ms)", "0.25", "0.125", "4.5", "4.5"]
    assert line_of(text, "time (ms)", "three")[3:] == [NOT_MEASURED, NOT_MEASURED, "7.5"]
    assert len(rows.of("cpu", "small")) == 3


def test_each_row_knows_the_run_that_measured_it(
    counter: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(commit: str, **options: Any) -> dict[str, str]:
        known = {"commit": commit, "date": "today", "torch": "2", "machine": "m", "command": f"at {commit}"}
        monkeypatch.setattr(row_file, "provenance", lambda: known)
        measure(counter.table(), SMALL, tmp_path, **options)
        document = json.loads((tmp_path / "example.json").read_text())
        return {row["case"]: document["runs"][row["run"]]["commit"] for row in document["rows"]}

    assert run("a") == dict.fromkeys(["one", "two", "three"], "a")
    assert run("b", only="two", again=True) == {"one": "a", "two": "b", "three": "a"}
    text = (tmp_path / "example.md").read_text()
    assert "- cpu, small size: 2 of the rows by `python -m experiments.paper.example`: commit a," in text
    assert "- cpu, small size: 1 of the rows by `python -m experiments.paper.example`: commit b," in text
    assert run("c", again=True) == dict.fromkeys(["one", "two", "three"], "c")
    document = json.loads((tmp_path / "example.json").read_text())
    assert [known["commit"] for known in document["runs"]] == ["c"], "no run that no row is from"
    assert run("d") == dict.fromkeys(["one", "two", "three"], "c"), "a run that measures nothing leaves no trace"


def test_the_file_of_another_table_is_refused_and_so_is_what_is_no_table(counter: Counter, tmp_path: Path) -> None:
    measure(counter.table("example"), SMALL, tmp_path)
    (tmp_path / "example.json").rename(tmp_path / "other.json")
    with pytest.raises(ValueError, match=r"other.json holds 'example', expected 'other'; name another folder"):
        measure(counter.table("other"), SMALL, tmp_path)
    for text in ("{", "[]", "3", '{"runs": []}', '{"table": "other"}', '{"table": "other", "runs": [], "rows": [{}]}'):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(WrongFile, match=r"other.json is not the file of a table \(.*\); remove it"):
            measure(counter.table("other"), SMALL, tmp_path)
    assert counter.calls == ["one", "two", "three"]


def invoke(table: PaperTable, *options: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(command(table))
    result = CliRunner().invoke(app, [*options], env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_the_command_shows_what_it_measured_and_fails_on_an_error(counter: Counter, tmp_path: Path) -> None:
    folder = ["--device", "cpu", "--output", str(tmp_path)]
    code, said = invoke(counter.table(), *folder)
    assert code == 0
    assert "4.5" in said
    assert "example.json and .md" in said
    counter.failing["two"] = Unavailable("needs more")
    assert invoke(counter.table(), *folder, "--again")[0] == 0
    counter.failing["two"] = RuntimeError("no such luck")
    code, said = invoke(counter.table(), *folder)
    assert code == 1
    assert "failed: two: RuntimeError: no such luck" in said
    assert invoke(counter.table(), *folder, "--only", "one")[0] == 0, "not asked for the one that failed"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--device", "tpu"], "--device: 'tpu': expected cpu or cuda"),
        (["--device", "cpu", "--size", "huge"], "--size: 'huge': expected small or published"),
        (["--device", "cpu", "--only", "four"], "--only: no case of example has 'four' in its name"),
        (["--device", "cpu", "--repeats", "0"], "--repeats"),
        (["--device", "cpu", "--output", __file__], "is a file"),
    ],
)
def test_a_wrong_option_is_named(counter: Counter, tmp_path: Path, options: list[str], complaint: str) -> None:
    code, said = invoke(counter.table(), "--output", str(tmp_path), *options)
    assert code == 2
    assert complaint in " ".join(said.split())
    assert counter.calls == []


def test_a_folder_with_the_file_of_another_table_is_named(counter: Counter, tmp_path: Path) -> None:
    (tmp_path / "example.json").write_text('{"table": "other"}')
    code, said = invoke(counter.table(), "--device", "cpu", "--output", str(tmp_path))
    assert code == 2
    assert "--output" in said
    assert "holds 'other', expected 'example'" in " ".join(said.split())


def test_a_summary_that_fails_is_not_blamed_on_an_option(counter: Counter, tmp_path: Path) -> None:
    def summary(rows: Rows, folder: Path) -> list[str]:
        raise ValueError("the mean of nothing")

    failing = replace(counter.table(), summary=summary)
    with pytest.raises(ValueError, match="the mean of nothing"):
        invoke(failing, "--device", "cpu", "--output", str(tmp_path))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        (0.12345, "0.123"),
        (999.4, "999"),
        (999.7, "1,000"),
        (1234.5, "1,234"),
        (1234567, "1,234,567"),
        ("about 25", "about 25"),
        (0, "0"),
    ],
)
def test_a_figure_has_three_digits_and_a_count_all_of_them(value: object, shown: str) -> None:
    assert cell(value) == shown
