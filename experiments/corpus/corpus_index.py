"""Makes the index of the corpus, which says what is known of each graph file, and pages from the index alone."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from experiments.report.markdown import bullets, page, section, table
from remat import Graph
from remat.answer.plan_facts import no_recompute_saved_bytes
from remat.errors import InvalidGraph
from remat.facts.corpus import FORMAT, INDEX, Entry
from remat.words import human_bytes

# The introduction, how the graphs were made, and the introduction of the list.
_TEXTS = Path(__file__).with_name("about.txt").read_text().strip().split("\n\n%%\n\n")


def entry_of(path: Path) -> Entry:
    """Describes a graph file whose `meta` says what it is.

    Raises:
        InvalidGraph: it is no graph file, or `meta` does not say so.
    """
    graph, data = Graph.load(path), path.read_bytes()
    about = ("instance", "family", "model", "sizes", "dtype", "cite")
    missing = [key for key in about if key not in graph.meta]
    if missing:
        raise InvalidGraph(f"{path}: meta lacks {', '.join(missing)}; `python -m experiments.corpus` writes them")
    return Entry(
        *(graph.meta[key] for key in about),
        values=len(graph),
        uses=len(graph.producers),
        no_recompute_saved_bytes=no_recompute_saved_bytes(graph),
        file_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
    )


def write_index(folder: Path, entries: tuple[Entry, ...], provenance: Mapping[str, str]) -> None:
    """Writes the index of a corpus, which `remat.facts.corpus.Corpus.open` reads."""
    rows = [asdict(entry) for entry in entries]
    document = {"format": FORMAT, "version": 1, "provenance": dict(provenance), "instances": rows}
    (folder / INDEX).write_text(json.dumps(document, indent=1) + "\n")


def pages(entries: Sequence[Entry]) -> dict[str, str]:
    """Makes the pages, by the names of their files: one about the corpus, and one with a table for each family."""
    size = human_bytes(sum(entry.file_bytes for entry in entries))
    families = {
        family: [entry for entry in entries if entry.family == family]
        for family in dict.fromkeys(entry.family for entry in entries)
    }
    summed = [
        (name, len(of), min(entry.values for entry in of), max(entry.values for entry in of))
        for name, of in families.items()
    ]
    cited = dict.fromkeys(entry.cite for entry in entries if entry.cite)
    models = {cite: ", ".join(f"`{entry.name}`" for entry in entries if entry.cite == cite) for cite in cited}
    about = page(
        "Joint graphs of real models",
        _TEXTS[0],
        f"## {len(entries)} instances, {size}",
        table(("family", "instances", "values, least", "values, most"), summed),
        _TEXTS[1],
        bullets(f"{cite}: {names}" for cite, names in models.items()),
    )
    listed = (section(name, _family(of)) for name, of in families.items())
    return {"README.md": about, "LIST.md": page("Instances of the corpus", _TEXTS[2], *listed)}


def _family(entries: Sequence[Entry]) -> str:
    """Makes a table of the instances of one family."""
    rows = [
        (
            *(f"`{entry.name}`", entry.values, entry.uses, human_bytes(entry.no_recompute_saved_bytes)),
            *(entry.model, f"{entry.sizes}, {entry.dtype}"),
        )
        for entry in entries
    ]
    return table(("name", "values", "uses", "saved", "model", "sizes"), rows)
