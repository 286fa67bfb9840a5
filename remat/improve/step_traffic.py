"""Prices saving and recomputing by what they move: where a search for memory at little traffic begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from remat.facts.graph import Graph
from remat.predict.time.work import Work
from remat.problem.costmodel import CostModel, Terms


@dataclass(frozen=True)
class StepTraffic(CostModel):
    """Bytes for saving a value, and bytes for computing it again, whatever it is.

    Saving v costs its read and, where the forward pass would not write it anyway, its write: as in the classic price
    (`costmodels.ByteTraffic`). Recomputing is not banned but priced: what computing v again reads, and writes if it is
    a kernel of its own (`remat.predict.time.work`). So a matrix product may run again where memory is scarce.
    """

    name: ClassVar[str] = "step-traffic"
    unit: ClassVar[str] = "bytes"

    def terms(self, graph: Graph) -> Terms:
        """Prices both; random numbers and what else cannot run twice are banned by the graph itself."""
        work, nothing = Work.of(graph), Terms.nothing(graph)
        save = np.where(graph.materialized, graph.moved_bytes, 2 * graph.moved_bytes)
        redo = np.where(graph.in_tangents, 0, work.read_bytes + work.written_bytes)
        return Terms(save, redo, nothing.cannot_save, nothing.cannot_recompute)
