"""Makes a page of results: `remat report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remat.answer.registry import DEFAULT_ESTIMATOR
from remat.cli.inputs import graph_file
from remat.cli.options import Budgets, EstimatorName, Json
from remat.cli.output import print_json, waiting
from remat.words import human_bytes


def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULTS...",
            help="Graph files, or names of `remat corpus list`; what `compare --json` prints, or the same as CSV.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Heading of the page.")] = "remat report",
    estimator: EstimatorName = DEFAULT_ESTIMATOR,
    budgets: Budgets = 16,
    as_json: Json = False,
) -> None:
    """Make one HTML page: frontiers of graphs with their proven bound, and comparisons of solvers.

    A graph file becomes a frontier: -e and --refine are for those. The page needs no network.

    \b
      remat report gpt2.json.gz -o gpt2.html
      remat compare *.json.gz --json > solvers.json && remat report solvers.json
      remat report solvers.csv gpt2.json.gz -e roofline:device=h200 --refine 32
    """
    from remat.views.report import Page  # here: the other commands need not wait for it

    if not output.parent.is_dir():  # now, not after the frontiers of large graphs were found
        raise typer.BadParameter(f"-o {output} must be in a folder that exists, got {output.parent}: make it first")
    if output.exists() and any(path.exists() and path.samefile(output) for path in results):
        raise typer.BadParameter(f"-o {output} is one of the RESULTS, and would be lost: name another file")
    with waiting("reading", quiet=as_json):
        page = Page.of(map(graph_file, results), title=title, estimator=estimator, refine=budgets)
    size_bytes = page.save(output)
    kinds = [{"file": section.name, "kind": section.kind} for section in page.sections]
    if as_json:
        return print_json({"report": str(output), "bytes": size_bytes, "files": kinds})
    for line in kinds:
        typer.echo(f"{line['file']}: {line['kind'].lower()}")
    return typer.echo(f"written to {output} ({human_bytes(size_bytes)})")
