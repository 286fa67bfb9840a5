"""Writes the Markdown pages of the results again, from the data that lies beside them: `python -m experiments.pages`.

Nothing is measured. A change of how a page reads, or of what a command is called, so reaches results that would take
hours to make again; the figures stay. `solvers.md` is not among them: it names the command of its run, which its rows
do not know. `python -m experiments.compare_solvers` writes that page from the rows that it has kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer

from experiments.accuracy import (
    compiled_peaks,
    compiled_zoo,
    forecast_error,
    foreign_peaks,
    gpu_compared,
    peak_budgets,
    peak_error_page,
    traffic_error_report,
)
from experiments.bench import (
    budget_gap,
    budget_kernels,
    budget_steps,
    budgets,
    default_plan,
    gpu_plans_page,
    offloading,
    predictor_speed,
)
from experiments.benchmark.manifest import FOLDER
from experiments.benchmark.page import markdown as benchmark_page
from experiments.corpus import readme
from experiments.paper.measure_table import written
from experiments.paper.row_file import Rows
from experiments.paper.table import PaperTable
from experiments.recipes import table as recipes
from experiments.report.result_files import RESULTS
from experiments.rivals import page as rivals
from experiments.traffic_study import duplicate_table, traffic_report
from remat.facts.corpus import Corpus

INSTANCES = Path(__file__).parent / "instances"

WRITERS: Mapping[str, Callable[[dict[str, Any]], str]] = {
    "budget_gap": budget_gap.markdown,
    "budget_kernels": budget_kernels.markdown,
    "budget_steps": budget_steps.markdown,
    "budgets": budgets.markdown,
    "compiled_peaks": compiled_peaks.markdown,
    "default_plan": default_plan.markdown,
    "duplicate": duplicate_table.markdown,
    "forecast_error": forecast_error.markdown,
    "foreign_peaks": foreign_peaks.markdown,
    "gpu_compared": gpu_compared.markdown,
    "gpu_plans": gpu_plans_page.markdown,
    "offloading": offloading.markdown,
    "peak_budgets": peak_budgets.markdown,
    "peak_error": peak_error_page.markdown,
    "predictor_speed": predictor_speed.markdown,
    "recipes": recipes.markdown,
    "rivals": rivals.markdown,
    "traffic": lambda document: traffic_report.markdown(document["models"]),
    "traffic_error": traffic_error_report.markdown,
    "traffic_error_triton": traffic_error_report.markdown,
    "triton_code": compiled_zoo.markdown,
}
"""The functions that make a page of a document, by the name of its file."""


def pages(pictures: Path) -> Iterator[tuple[Path, str]]:
    """Makes each page anew, with the path at which it lies.

    Args:
        pictures: a folder for those of `experiments.paper`, which are drawn on the way.
    """
    for name, markdown in WRITERS.items():
        yield RESULTS / f"{name}.md", markdown(json.loads((RESULTS / f"{name}.json").read_text()))
    for path in sorted((RESULTS / "paper").glob("*.json")):
        table: PaperTable = import_module(f"experiments.paper.{path.stem}").TABLE
        yield path.with_suffix(".md"), written(table, Rows.open(path, table.name), pictures)
    yield RESULTS / "benchmark.md", benchmark_page(FOLDER)
    yield INSTANCES / "README.md", readme.markdown(Corpus.open(INSTANCES).entries)


def main() -> None:
    """Writes all pages, and says which of them have changed; pictures stay as they are."""
    with TemporaryDirectory() as folder:
        for path, text in pages(Path(folder)):
            if text != path.read_text():
                path.write_text(text)
                typer.echo(f"{path.relative_to(Path(__file__).parent)} has changed")


if __name__ == "__main__":
    typer.run(main)
