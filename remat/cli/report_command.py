"""The command that makes a page of results."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remat.answer.registry import DEFAULT_ESTIMATOR
from remat.cli.options import Budgets, EstimatorName, Json
from remat.cli.output import print_json
from remat.words import human_bytes


def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULTS...",
            help="Graph files; what `frontier --json` and `compare --json` print; CSV or parquet of solver runs; "
            "JSON of experiments.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "remat report",
    estimator: EstimatorName = DEFAULT_ESTIMATOR,
    budgets: Budgets = 16,
    as_json: Json = False,
) -> None:
    """Make one HTML page of results: plots, tables, and where each number comes from.

    The content of a file says what it is. A graph file becomes a frontier: -e and --refine are for those. The page
    needs no network. The same files give the same page.

    \b
      remat report gpt2.json.gz -o gpt2.html
      remat report experiments/results/*.json -o results.html
      remat compare *.json.gz --json > solvers.json && remat report solvers.json
      remat report solvers.csv gpt2.json.gz -e roofline:device=h200 --refine 32
    """
    from remat.views.report import Page  # here: the other commands need not wait for it

    if not output.parent.is_dir():  # now, not after the frontiers of large graphs were found
        raise typer.BadParameter(f"-o {output} must be in a folder that exists, got {output.parent}: make it first")
    if output.exists() and any(path.exists() and path.samefile(output) for path in results):
        raise typer.BadParameter(f"-o {output} is one of the RESULTS, and would be lost: name another file")
    page = Page.of(results, title=title, estimator=estimator, refine=budgets)
    size_bytes = page.save(output)
    if as_json:
        files = [
            {
                "file": entry.name,
                "sha256": entry.sha256,
                "kind": entry.section.kind,
                "figures": len(entry.section.figures),
                "tables": len(entry.section.tables),
            }
            for entry in page.entries
        ]
        return print_json({"report": str(output), "bytes": size_bytes, "files": files})
    for entry in page.entries:
        figures, tables = len(entry.section.figures), len(entry.section.tables)
        counts = f"{_count(figures, 'figure')}, {_count(tables, 'table')}"
        typer.echo(f"{entry.name}: {entry.section.kind.lower()}, {counts}")
    return typer.echo(f"written to {output} ({human_bytes(size_bytes)})")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
