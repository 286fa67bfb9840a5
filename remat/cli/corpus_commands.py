"""Lists, shows and copies the instances of the corpus: `remat corpus`."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from remat.cli.options import command
from remat.cli.output import Answer, table, written
from remat.errors import UnknownName
from remat.facts.corpus import Corpus, Entry
from remat.facts.files import write_file
from remat.facts.graph import Graph, Region
from remat.words import human_bytes, near_of

app = typer.Typer(no_args_is_help=True, help="List, look at and copy the joint graphs of published models.")

_Name = Annotated[str, typer.Argument(metavar="NAME", help="See `remat corpus list`.")]
_FOLDER = "Folder of the corpus; if left out, the corpus that comes with remat."
_Folder = Annotated[Path | None, typer.Option(help=_FOLDER)]


def listed(
    folder: _Folder = None,
    family: Annotated[str | None, typer.Option(help="Only one kind of model, such as `transformer`.")] = None,
) -> Answer:
    """List the instances, with their sizes.

    `saved` is what is saved without recomputation: about what autograd saves.
    `remat corpus show` has the other facts about an instance.

    \b
      remat corpus list --family convolution
    """
    corpus = Corpus.open(folder)
    families = sorted({entry.family for entry in corpus.entries})
    if family is not None and family not in families:
        raise UnknownName(f"no family is named {family!r}{near_of(family, families)}")
    entries = [entry for entry in corpus.entries if family in (None, entry.family)]
    return [asdict(entry) for entry in entries], (table([_row(entry) for entry in entries], "name"),)


def show(name: _Name, folder: _Folder = None) -> Answer:
    """Show the facts about an instance, and where it comes from.

    \b
      remat corpus show resnet50
    """
    corpus = Corpus.open(folder)
    document = asdict(corpus.entry(name)) | _facts(corpus.graph(name))
    rows = [{"": key.replace("_", " "), name: _text(key, value)} for key, value in document.items() if key != "name"]
    return document, (table(rows),)


def get(
    name: _Name,
    output: Annotated[Path, typer.Option("--output", "-o", help="Graph file to write; it is gzipped.")],
    folder: _Folder = None,
) -> Answer:
    """Copy the graph file of an instance.

    \b
      remat corpus get resnet50 -o resnet50.json.gz
      remat solve resnet50.json.gz
    """
    write_file(output, Corpus.open(folder).path(name).read_bytes())
    return {"instance": name, "graph": str(output)}, written(output)


def _facts(graph: Graph) -> dict[str, Any]:
    return {
        "regions": {region.name.lower(): int((graph.region == region).sum()) for region in Region},
        "parameter_bytes": int(graph.bytes[graph.parameter].sum()),
        "flops": int(graph.flops.sum()),
        "random_values": int(graph.random.sum()),
        "compute_bound_values": int(graph.compute_bound.sum()),
        "commonest_operators": dict(Counter(graph.ops).most_common(8)),
        "provenance": dict(graph.meta),
    }


def _row(entry: Entry) -> dict[str, str]:
    return {
        "name": entry.name,
        "values": f"{entry.values:,}",
        "saved": human_bytes(entry.no_recompute_saved_bytes),
        "is": entry.model,
    }


def _text(key: str, value: Any) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{name}: {_text('', part)}" for name, part in value.items())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    if key.endswith("bytes"):
        return human_bytes(value)
    return f"{value:,}" if isinstance(value, int) else str(value)


for name, answer in {"list": listed, "show": show, "get": get}.items():
    app.command(name)(command(answer))
