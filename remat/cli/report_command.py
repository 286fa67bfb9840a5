"""The command that makes a page of results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from remat.answer.registry import DEFAULT_ESTIMATOR
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
    estimator: Annotated[
        str,
        typer.Option(
            "--estimator", "-e", metavar="NAME[:KEY=VALUE,...]", help="For graph files; see `remat estimators`."
        ),
    ] = DEFAULT_ESTIMATOR,
    refine: Annotated[
        int, typer.Option(min=0, help="For graph files: how many budgets to solve between the ends of the frontier.")
    ] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Make one HTML page of results: plots, tables, and where each number comes from.

    What a file is, its content says. The page needs no network. The same files give the same page.

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
    page = Page.of(results, title=title, estimator=estimator, refine=refine)
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
        return typer.echo(json.dumps({"report": str(output), "bytes": size_bytes, "files": files}, indent=1))
    for entry in page.entries:
        figures, tables = len(entry.section.figures), len(entry.section.tables)
        counts = f"{_count(figures, 'figure')}, {_count(tables, 'table')}"
        typer.echo(f"{entry.name}: {entry.section.kind.lower()}, {counts}")
    return typer.echo(f"written to {output} ({human_bytes(size_bytes)})")


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
