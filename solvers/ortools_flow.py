"""Solves with OR-Tools' push-relabel maximum flow: C++, 64-bit capacities."""

# OR-Tools ships few types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from remat import RematError
from remat.plugin import SINK, SOURCE, BoolArray, FlowSolver, IntArray, Network, Sides


@dataclass(frozen=True)
class ORTools(FlowSolver):
    """Computes a maximum flow with `ortools.graph.python.max_flow.SimpleMaxFlow`, through numpy arrays."""

    name: ClassVar[str] = "ortools"
    requires: ClassVar[tuple[str, ...]] = ("ortools",)
    largest_capacity: ClassVar[int | None] = 2**62

    def _max_flow(self, network: Network) -> tuple[IntArray, Sides | None]:
        from ortools.graph.python import max_flow

        backend: Any = max_flow.SimpleMaxFlow()
        arcs = backend.add_arcs_with_capacity(
            network.tails.astype(np.int32), network.heads.astype(np.int32), network.capacities
        )
        status = backend.solve(SOURCE, SINK)
        # Overflow is a status here, not an exception (OR-Tools 9.15).
        if status != backend.OPTIMAL and len(arcs):
            raise RematError(f"ortools: maximum flow ended with status {status!r}, not OPTIMAL")
        flow = np.asarray(backend.flows(arcs), np.int64)
        source = _mask(backend.get_source_side_min_cut(), network.num_vertices)
        sink = _mask(backend.get_sink_side_min_cut(), network.num_vertices)
        source[SOURCE] = sink[SINK] = True
        return flow, Sides(source, sink)


def _mask(vertices: list[int], length: int) -> BoolArray:
    mask = np.zeros(length, np.bool_)
    # OR-Tools omits vertices without arcs, but keeps the numbers of the others.
    mask[np.array(vertices, np.int64)] = True
    return mask
