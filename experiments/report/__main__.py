"""Puts results of the experiments on one page: `python -m experiments.report experiments/results/*.json -o r.html`.

The page is that of `remat report`, which draws frontiers and solver comparisons, with the plots of our own results.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.report.result_readers import READERS
from remat.cli.report_command import write_report


def main(
    results: Annotated[list[Path], typer.Argument(help="what `remat report` reads, and JSON of experiments")],
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file to write")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="heading of the page")] = "remat: results of the experiments",
) -> None:
    """Makes one HTML page of results: plots, tables, and where each number comes from."""
    write_report(results, output, title=title, readers=READERS)


if __name__ == "__main__":
    typer.run(main)
