"""Writes answers of rivals that are the cheapest known as solution files: `python -m experiments.bench.hand_in_rivals`.

`python -m experiments.benchmark submit FILE` then takes each file, as anybody's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.bench.rivals import TABLE
from experiments.benchmark.answers import solution_document
from experiments.benchmark.manifest import FOLDER, Manifest
from experiments.report.result_table import Results, Row


def solutions(rows: Iterable[Row], dates: list[str], manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Returns, by instance, a solution with the cheapest answer to each budget that costs less than the known one.

    Args:
        rows: of the table of rivals.
        dates: of the runs that the rows name.
        manifest: of the release.
    """
    best = dict[tuple[str, str], Row]()
    for row in rows:
        place = row["instance"], row["budget"]
        if "saved" in row and (place not in best or row["objective"] < best[place]["objective"]):
            best[place] = row
    answers = dict[str, list[dict[str, Any]]]()
    for (name, budget), row in best.items():
        answer = {"budget": budget, "saved": row["saved"], "objective": row["objective"], "solver": row["method"]}
        when = {"date": dates[row["run"]][:10], "seconds": math.ceil(row["seconds"])}
        answers.setdefault(name, []).append(answer | when)
    return {name: solution_document(name, manifest.instances[name]["sha256"], own) for name, own in answers.items()}


def main(output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the solution files.")]) -> None:
    """Writes rivals' answers that cost less than the best known ones, a solution file for each instance."""
    results, manifest = Results.read(TABLE.path), Manifest.open(FOLDER)
    output.mkdir(parents=True, exist_ok=True)
    for name, document in solutions(results.rows, [run["date"] for run in results.runs], manifest).items():
        (output / f"{name}.json").write_text(json.dumps(document))
        typer.echo(f"{output / name}.json: {len(document['answers'])} answers")


if __name__ == "__main__":
    typer.run(main)
