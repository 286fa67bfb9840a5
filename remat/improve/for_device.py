"""Says for which device a search is."""

from __future__ import annotations

from dataclasses import replace

from remat.errors import InvalidOption
from remat.facts.graph import Graph
from remat.predict.time.known_devices import backend_of


def for_device(graph: Graph, device: str | None) -> Graph:
    """Returns a graph whose kernels are predicted as those of a device; plans for it are plans for the given one.

    Args:
        graph: captured for whatever device.
        device: "cpu", or a GPU by name, such as "a100"; None for that of the graph.

    Raises:
        InvalidOption: the device is no text.
        UnknownName: no device is known by this name.
    """
    if device is None:
        return graph
    if not isinstance(device, str):  # pyright: ignore[reportUnnecessaryIsInstance]  # users are untyped
        raise InvalidOption(f'device must be "cpu", or a GPU by name such as "a100", got {device!r}')
    return replace(graph, meta={**graph.meta, "device": "cpu" if backend_of(device) == "cpu" else "cuda"})
