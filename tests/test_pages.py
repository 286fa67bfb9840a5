"""The committed pages are what the code makes of the committed rows, which are kept: a run goes on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from experiments.pages import pages
from experiments.report import result_table
from experiments.report.result_table import RESULTS, ResultTable


def test_every_committed_page_is_what_its_data_says() -> None:
    found = dict(pages())
    assert {*RESULTS.rglob("*.md")} - found.keys() == set()
    assert {path.stem for path in RESULTS.glob("*.json")} == {path.stem for path in RESULTS.glob("*.md")} - {
        *("benchmark", "league")
    }
    assert [path.name for path, text in found.items() if text != path.read_text()] == []


@dataclass
class Numbers:
    """An experiment that squares numbers, and notes which ones it was asked about; it fails at some, or is killed."""

    asked: list[int] = field(default_factory=list[int])
    fails_at: set[int] = field(default_factory=set[int])
    killed_at: int = -1

    def measure(self, number: int) -> Iterator[dict[str, Any]]:
        self.asked.append(number)
        if number == self.killed_at:
            raise KeyboardInterrupt
        if number in self.fails_at:
            raise ValueError(f"no {number}\nin many words")
        yield {"square": number**2, "nested": {"half": number / 2}}

    @property
    def table(self) -> ResultTable[int]:
        return ResultTable(
            "experiments.squares",
            "Squares",
            "What squares are.",
            cases=lambda: (3, 1, 2),
            key=str,
            measure=self.measure,
            summary=lambda rows: [f"{len(rows)} numbers"],
        )


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run is of a commit of its own."""
    commits = iter("abcdef")
    facts = {"torch": "2", "machine": "m", "date": "d"}
    monkeypatch.setattr(result_table, "provenance", lambda: facts | {"commit": next(commits)})


def rows(folder: Path) -> list[tuple[str, int, int]]:
    found = json.loads((folder / "squares.json").read_text())
    return [(row["case"], row["square"], row["run"]) for row in found["rows"]]


@pytest.mark.usefixtures("runs")
def test_a_killed_run_keeps_what_it_has_and_the_next_one_goes_on(tmp_path: Path) -> None:
    numbers = Numbers(killed_at=2)
    with pytest.raises(KeyboardInterrupt):
        numbers.table.fill(folder=tmp_path)
    assert rows(tmp_path) == [("3", 9, 0), ("1", 1, 0)]
    again = Numbers()
    again.table.fill(folder=tmp_path)
    assert again.asked == [2]
    assert rows(tmp_path) == [("3", 9, 0), ("1", 1, 0), ("2", 4, 1)], "in the order of the cases, each with its run"
    text = (tmp_path / "squares.md").read_text()
    assert "- 2 of 3 rows: `python -m experiments.squares`: commit a, torch 2, m, d" in text
    assert "- 1 of 3 rows: `python -m experiments.squares`: commit b" in text


@pytest.mark.usefixtures("runs")
def test_a_case_that_fails_is_named_hides_no_other_and_is_tried_again(tmp_path: Path) -> None:
    Numbers(fails_at={3}).table.fill(folder=tmp_path)
    assert [case for case, *_ in rows(tmp_path)] == ["1", "2"]
    assert "- 3: ValueError: no 3\n" in (tmp_path / "squares.md").read_text()
    again = Numbers()
    again.table.fill(folder=tmp_path)
    assert again.asked == [3]
    assert "ValueError" not in (tmp_path / "squares.md").read_text()
