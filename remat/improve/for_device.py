"""Says for which device a search is."""

from __future__ import annotations

from dataclasses import replace

from remat.facts.graph import Graph
from remat.predict.time.known_devices import backend_of


def for_device(graph: Graph, device: str | None) -> Graph:
    """Returns a graph whose kernels are predicted as those of a device; plans for it are plans for the given one.

    Args:
        graph: captured for whatever device.
        device: "cpu", or a GPU by name, such as "a100"; None for that of the graph.

    Raises:
        InvalidOption: the device is no name.
        UnknownName: no device is known by this name.
    """
    if device is None:
        return graph
    return replace(graph, meta={**graph.meta, "device": "cpu" if backend_of(device) == "cpu" else "cuda"})
