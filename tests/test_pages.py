"""Markdown pages: how the writer writes, and that the committed pages are what the code makes of the committed data."""

from __future__ import annotations

import pytest

from experiments.pages import pages
from experiments.report.markdown import cell, cited, table
from experiments.report.result_table import RESULTS


def test_every_committed_page_is_what_its_data_says() -> None:
    found = dict(pages())
    assert {*RESULTS.rglob("*.md")} - found.keys() == set()
    assert {path.stem for path in RESULTS.glob("*.json")} == {path.stem for path in RESULTS.glob("*.md")} - {
        *("benchmark", "league")
    }
    assert [path.name for path, text in found.items() if text != path.read_text()] == []


def test_columns_of_numbers_are_aligned_to_the_right() -> None:
    rows = [("a", 1, "1.5 %", "**2**", "no", ""), ("b", 2000, "-3e-05", "none", "2", "")]
    head, marks, first, second = table(("name", "n", "share", "most", "half", "empty"), rows).splitlines()
    assert head == "| name | n | share | most | half | empty |"
    assert marks == "|---|--:|--:|---|---|---|"
    assert (first, second) == ("| a | 1 | 1.5 % | **2** | no |  |", "| b | 2,000 | -3e-05 | none | 2 |  |")
    assert table(("a", "b"), []) == "| a | b |\n|---|---|"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (True, "True"), (12345, "12,345"), (0.123456, "0.1235"), ("a\n| b <c>", "a \\| b \\<c>")],
)
def test_a_value_stays_one_cell(value: object, text: str) -> None:
    assert cell(value) == text


def test_a_run_is_cited_by_the_command_of_today() -> None:
    origin = {"command": "python -m experiments.former", "commit": "0", "torch": "2", "machine": "m", "date": "d"}
    assert cited(origin, "experiments.bench.now") == "`python -m experiments.bench.now`: commit 0, torch 2, m, d"
