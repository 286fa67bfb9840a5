"""Writes the pages of the results again, from the data that lies beside them: `python -m experiments.pages`.

Nothing is measured. A change of how a page reads, or of what a command is called, so reaches results that would take
hours to make again; the figures stay.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from experiments.benchmark.league import markdown as league_page
from experiments.benchmark.manifest import FOLDER
from experiments.benchmark.page import markdown as benchmark_page
from experiments.corpus.corpus_index import pages as corpus_pages
from experiments.report.result_table import RESULTS, Results, ResultTable
from remat.facts.corpus import Corpus

INSTANCES = Path(__file__).parent / "instances"

_TABLES = {
    "accuracy": "attention_rate attention_workspaces compiled_peaks eager_peaks forecast_error foreign_peaks "
    "gpu_compared gpu_peaks gpu_training traffic_error traffic_error_triton",
    "bench": "acquisition greedy largest_batches least_overhead measured_batches measured_copies measured_steps "
    "rivals simple_searches speed users_table",
    "recipes": "recipe_losses",
}
MODULES = [*(f"{of}.{name}" for of, names in _TABLES.items() for name in names.split()), "compare_solvers", "sources"]
"""Where the tables are; each is the `TABLE` of its module."""


def tables() -> Iterator[ResultTable[object]]:
    """Lists the tables of all experiments."""
    for name in MODULES:
        yield import_module(f"experiments.{name}").TABLE


def pages() -> Iterator[tuple[Path, str]]:
    """Makes each page anew, with the path at which it lies."""
    for table in tables():
        yield table.path.with_suffix(".md"), table.page(Results.read(table.path))
    yield RESULTS / "benchmark.md", benchmark_page(FOLDER)
    yield RESULTS / "league.md", league_page(FOLDER)
    for name, text in corpus_pages(Corpus.open(INSTANCES).entries).items():
        yield INSTANCES / name, text


def main() -> None:
    """Writes all pages and charts, and says which pages have changed."""
    for table in tables():
        if table.draw is not None:
            table.draw(Results.read(table.path).rows, table.path.with_suffix(".svg"))
    for path, text in pages():
        if not path.exists() or text != path.read_text():
            path.write_text(text)
            print(f"{path.relative_to(Path(__file__).parent)} has changed")


if __name__ == "__main__":
    main()
