"""Makes the index of the corpus: what is written down about each graph file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from remat import Graph
from remat.answer.plan_facts import no_recompute_saved_bytes
from remat.errors import InvalidGraph
from remat.facts.corpus import FORMAT, INDEX, Entry


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
