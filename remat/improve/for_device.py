"""Sets the device for which a search predicts kernels."""

from __future__ import annotations

from dataclasses import replace

from remat.facts.graph import Graph
from remat.predict.time.known_devices import backend_of


def for_device(graph: Graph, device: str | None) -> Graph:
    """Returns the graph with another device: its kernels are predicted as that device would run them.

    A plan for the returned graph is a plan for the original one, too.

    Args:
        graph: the joint graph, captured on any device.
        device: "cpu", or the name of a GPU, such as "a100"; None keeps the device of the graph.

    Raises:
        InvalidOption: `device` is no string.
        UnknownName: no device is known by this name.
    """
    if device is None:
        return graph
    return replace(graph, meta={**graph.meta, "device": "cpu" if backend_of(device) == "cpu" else "cuda"})
