"""Makes the corpus: `python -m experiments.corpus` captures what is missing, then writes index and pages.

Nothing is downloaded, and no model runs: tensors have sizes, but no contents (`remat.capture` of fake
tensors), so that published sizes need no memory. An interrupted run goes on where it was; with `--again`, too, as long
as the commit is the same and has no changes.
"""

from __future__ import annotations

import platform
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from experiments.corpus.catalogue import recipes
from experiments.corpus.corpus_index import entry_of, pages, write_index
from experiments.models.recipe import Recipe, capture
from experiments.report.provenance import provenance, version_of
from remat import Graph
from remat.errors import InvalidGraph
from remat.words import near

INSTANCES = Path(__file__).parents[1] / "instances"

console = Console()


def main(
    only: Annotated[list[str] | None, typer.Option(help="an instance to make again; repeatable")] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="make all again; what this very commit and these versions made already stays, if nothing in the code "
            "has changed since: so a run that is stopped goes on",
        ),
    ] = False,
    output: Annotated[Path, typer.Option(help="folder for the graphs, the index and the pages")] = INSTANCES,
) -> None:
    """Captures what is missing, or what is named; then writes the index and the pages of the whole corpus."""
    known = recipes()
    for name in only or ():
        if name not in known:
            raise typer.BadParameter(f"--only must name an instance, got {name!r}{near(name, known)}")
    output.mkdir(parents=True, exist_ok=True)
    names = only or [name for name, recipe in known.items() if not _is_there(recipe, output, again=again)]
    for i, name in enumerate(names):
        with console.status(f"{i + 1}/{len(names)} {name}"):
            start = time.perf_counter()
            graph = graph_of(known[name])
            part = output / f"{name}.part.json.gz"  # an interrupted run leaves no half of a graph behind
            graph.save(part)
            part.replace(output / f"{name}.json.gz")
        console.print(f"{i + 1}/{len(names)} {name}: {graph!r}, {time.perf_counter() - start:.0f} s")
    files = [output / f"{name}.json.gz" for name in known]
    entries = tuple(entry_of(file) for file in files if file.is_file())
    write_index(output, entries, provenance() | {"command": "python -m experiments.corpus"})
    for name, text in pages(entries).items():
        (output / name).write_text(text)
    families = Counter(entry.family for entry in entries)
    size = sum(entry.file_bytes for entry in entries)
    console.print(f"{len(entries)} instances ({dict(families)}), {size / 2**20:.1f} MiB; {output}/LIST.md lists them")


def _is_there(recipe: Recipe, output: Path, *, again: bool) -> bool:
    """Tells whether a recipe has its file; if all are made again, whether this commit has made it already."""
    path = output / f"{recipe.name}.json.gz"
    if not again or not path.is_file():
        return path.is_file()
    about = origin(recipe)
    if about["commit"] == "unknown" or about["commit"].endswith("-dirty"):
        return False  # code that is not committed may have changed since
    try:
        return about.items() <= Graph.load(path).meta.items()
    except InvalidGraph:
        return False


def graph_of(recipe: Recipe) -> Graph:
    """Makes the graph of a recipe, with its provenance."""
    graph = capture(recipe)
    return replace(graph, meta=dict(graph.meta) | origin(recipe))


def origin(recipe: Recipe) -> dict[str, str]:
    """Says where a graph comes from that a recipe makes here and now, without the date."""
    return {
        "instance": recipe.name,
        "family": recipe.family,
        "model": recipe.model,
        "sizes": recipe.sizes,
        "dtype": recipe.dtype_name,
        "cite": recipe.cite,
        "code": f"{recipe.package} {version_of(recipe.package)}" if recipe.package else "experiments",
        "device": "cuda" if recipe.device else "cpu, fake tensors",
        "python": platform.python_version(),
        "commit": provenance()["commit"],
        "command": f"python -m experiments.corpus --only {recipe.name}",
        "torch": torch.__version__,
    }


if __name__ == "__main__":
    typer.run(main)
