"""Writes the cheapest answers of rivals and of simple searches as solution files.

`python -m experiments.bench.hand_in_rivals -o FOLDER` takes the answers that cost less than the best known ones.

`python -m experiments.benchmark submit FOLDER` then takes them, as anybody's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.bench import rivals, simple_searches
from experiments.benchmark.answers import solution_document
from experiments.benchmark.manifest import FOLDER, Manifest
from experiments.report.result_table import Results, Row


def solutions(dated: Iterable[tuple[Row, str]], manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Returns, by instance, a solution with the cheapest answer to each budget that costs less than the known one.

    Args:
        dated: rows of a table, each with the date of its run.
        manifest: of the release.
    """
    best = dict[tuple[str, str], tuple[Row, str]]()
    for row, date in dated:
        place = row["instance"], row["budget"]
        if "saved" in row and (place not in best or row["objective"] < best[place][0]["objective"]):
            best[place] = row, date
    answers = dict[str, list[dict[str, Any]]]()
    for (name, budget), (row, date) in best.items():
        answer = {"budget": budget, "saved": row["saved"], "objective": row["objective"], "solver": _name(row)}
        when = {"date": date[:10], "seconds": math.ceil(row["seconds"])}
        answers.setdefault(name, []).append(answer | when)
    return {name: solution_document(name, manifest.instances[name]["sha256"], own) for name, own in answers.items()}


def _name(row: Row) -> str:
    is_simple = row["method"] in simple_searches.SEARCHES
    return f"{row['method']}, from the best known answer" if is_simple else row["method"]


def main(output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the solution files.")]) -> None:
    """Writes answers that cost less than the best known ones, a solution file for each instance."""
    results = [Results.read(table.path) for table in (rivals.TABLE, simple_searches.TABLE)]
    dated = [(row, of.runs[row["run"]]["date"]) for of in results for row in of.rows]
    output.mkdir(parents=True, exist_ok=True)
    for name, document in solutions(dated, Manifest.open(FOLDER)).items():
        (output / f"{name}.json").write_text(json.dumps(document))
        typer.echo(f"{output / name}.json: {len(document['answers'])} answers")


if __name__ == "__main__":
    typer.run(main)
