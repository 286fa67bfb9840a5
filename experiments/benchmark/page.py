"""Writes the best known answers of a release: all rows as a table for programs, and a page for people."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.benchmark.answers import Answers, difficulty
from experiments.benchmark.manifest import Manifest
from experiments.report.markdown import bullets, page, section, table

_COLUMNS = (
    *("instance", "budget", "bytes", "objective", "bound", "difficulty"),
    *("proof", "solver", "version", "date", "seconds"),
)

_WORDS = ("easy", "hard", "open", "not reached")


def answer_rows(folder: Path) -> list[dict[str, Any]]:
    """A row for each instance and budget of a release."""
    manifest, answers = Manifest.open(folder), Answers(folder / "answers")
    rows: list[dict[str, Any]] = []
    for name in manifest.instances:
        known = answers.of(name)
        for budget in manifest.budgets(name):
            found = known.get(budget.name)
            about = {"instance": name, "budget": budget.name, "bytes": budget.bytes, "difficulty": difficulty(found)}
            rows.append({**(found or {}), **about})
    return rows


def as_csv(rows: list[dict[str, Any]]) -> str:
    """All rows, for programs; what is not known is empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def markdown(folder: Path) -> str:
    """The page of a release."""
    manifest, rows = Manifest.open(folder), answer_rows(folder)
    cells: dict[str, dict[str, str]] = {}
    for row in rows:
        cells.setdefault(row["instance"], {})[row["budget"]] = _cell(row)
    budgets = list(dict.fromkeys(row["budget"] for row in rows))
    lines = [
        [f"**{name}**" if entry["benchmark"] else name, entry["values"], *(cells[name][budget] for budget in budgets)]
        for name, entry in manifest.instances.items()
    ]
    return page(
        f"The benchmark {folder.name}: best known answers",
        "[The benchmark](../../docs/benchmark.md) says what is asked, and how to answer it. `python -m "
        "experiments.benchmark run` and `anneal` found these answers, and `check.py` agrees with each of them. "
        f"`experiments/benchmark/{folder.name}/answers.csv` has all rows, with objectives, bounds, how they are known, "
        "and who found them when, in how many seconds.",
        bullets(_counts(rows, of) for of in ("saved", "peak")),
        section(
            "Rows",
            "*easy*: the default solver proved the optimum within a minute. *hard*: the proof took longer, or needed "
            "another solver, or CP-SAT that began at the best known answer. A percentage: the row is open, and this "
            "share of the objective is above the best known bound. "
            "Names in bold are the *benchmark*, the others the rest of the *collection*.",
            table(["instance", "values", *budgets], lines),
        ),
    )


def _cell(row: Mapping[str, Any]) -> str:
    if row["difficulty"] != "open":
        return str(row["difficulty"])
    gap = (row["objective"] - row["bound"]) / row["objective"]
    return "<0.01%" if gap < 1e-4 else f"{100 * gap:.2f}%"


def _counts(rows: list[dict[str, Any]], of: str) -> str:
    """How many rows are how hard, counting budgets of one instance that are the same once."""
    mine = {(row["instance"], row["bytes"]): row["difficulty"] for row in rows if row["budget"].startswith(of)}
    counts = Counter(mine.values())
    every = sum(row["budget"].startswith(of) for row in rows)
    found = ", ".join(f"{counts[word]} {word}" for word in _WORDS if counts[word])
    same = f" ({len(mine)} that differ in bytes)" if len(mine) < every else ""
    return f"Budgets of {'saved bytes' if of == 'saved' else 'the peak'}: {every} rows{same}: {found}."
