"""Makes a page of results: `remat report`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remat.answer.registry import DEFAULT_ESTIMATOR
from remat.cli.inputs import graph_file
from remat.cli.options import Budgets, EstimatorName, Json
from remat.cli.output import counted, print_json, waiting
from remat.words import human_bytes

if TYPE_CHECKING:
    from remat.views.report import Reader


def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            metavar="RESULTS...",
            help="Graph files, or names of `remat corpus list`; what `frontier --json` and `compare --json` print; CSV "
            "or parquet of solver runs; JSON of other results with their provenance.",
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
      remat compare *.json.gz --json > solvers.json && remat report solvers.json
      remat report solvers.csv gpt2.json.gz -e roofline:device=h200 --refine 32
    """
    write_report(results, output, as_json=as_json, title=title, estimator=estimator, refine=budgets)


def write_report(
    results: Sequence[Path],
    output: Path,
    *,
    title: str,
    estimator: str = DEFAULT_ESTIMATOR,
    refine: int = 16,
    readers: Sequence[Reader] = (),
    as_json: bool = False,
) -> None:
    """Writes the page of files of results, and prints what it shows of each; the arguments are those of `Page.of`.

    Raises:
        typer.BadParameter: the output cannot be written there, or is one of the results.
    """
    from remat.views.report import Page  # here: the other commands need not wait for it

    if not output.parent.is_dir():  # now, not after the frontiers of large graphs were found
        raise typer.BadParameter(f"-o {output} must be in a folder that exists, got {output.parent}: make it first")
    if output.exists() and any(path.exists() and path.samefile(output) for path in results):
        raise typer.BadParameter(f"-o {output} is one of the RESULTS, and would be lost: name another file")
    with waiting("reading", quiet=as_json):
        page = Page.of(map(graph_file, results), title=title, estimator=estimator, refine=refine, readers=readers)
    size_bytes = page.save(output)
    shown = [(file, len(file.section.figures), len(file.section.tables)) for file in page.files]
    if as_json:
        files = [
            {"file": file.name, "sha256": file.sha256, "kind": file.section.kind, "figures": figures, "tables": tables}
            for file, figures, tables in shown
        ]
        return print_json({"report": str(output), "bytes": size_bytes, "files": files})
    for file, figures, tables in shown:
        typer.echo(
            f"{file.name}: {file.section.kind.lower()}, {counted(figures, 'figure')}, {counted(tables, 'table')}"
        )
    return typer.echo(f"written to {output} ({human_bytes(size_bytes)})")
