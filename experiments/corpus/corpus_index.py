"""Makes the index of the corpus: what is written down about each graph file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from remat import Graph, InvalidGraph
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


def no_recompute_saved_bytes(graph: Graph) -> int:
    """Counts the bytes between the passes if no operator of the forward pass runs twice: about what autograd keeps.

    That is all activations of the region FORWARD that the others read, or that are gradients; those
    that share a storage count once. On the ten small models of the corpus: 0.75 to 1.42 times what
    eager autograd keeps, whose operators are other ones.

    >>> from remat import GraphBuilder
    >>> g = GraphBuilder()
    >>> y = g.op("exp", g.input("x", bytes=4))
    >>> g.output(y)
    >>> g.gradient(g.op("mul", g.tangent("dy", bytes=4), y))
    >>> no_recompute_saved_bytes(g.build())
    4
    """
    forward = graph.in_forward
    handed_over = graph.gradient & forward
    handed_over[graph.producers[forward[graph.producers] & ~forward[graph.consumers]]] = True
    storages = np.unique(graph.base[handed_over & ~graph.input[graph.base]])
    return int(graph.activation_bytes[storages].sum())


def write_index(folder: Path, entries: tuple[Entry, ...], provenance: Mapping[str, str]) -> None:
    """Writes the index of a corpus, which `remat.facts.corpus.Corpus.open` reads."""
    rows = [asdict(entry) for entry in entries]
    document = {"format": FORMAT, "version": 1, "provenance": dict(provenance), "instances": rows}
    (folder / INDEX).write_text(json.dumps(document, indent=1) + "\n")
