"""Prices saving and recomputing by the bytes that they move: the first candidates of `traffic_frontier`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from remat.facts.graph import Graph
from remat.predict.time.work import Work
from remat.problem.costmodel import CostModel, Terms


@dataclass(frozen=True)
class StepTraffic(CostModel):
    """Counts the bytes that a step moves to save a value, and those that it moves to compute it again.

    To save v costs its read in the backward pass and, unless the forward pass writes it anyway, its write; so does
    `costmodels.ByteTraffic`. No operator is banned from recomputation for its arithmetic: to recompute v costs what it
    reads, and what it writes if it is a kernel of its own (`remat.predict.time.work`). So a matrix product may run
    again where memory is scarce.
    """

    name: ClassVar[str] = "step-traffic"
    unit: ClassVar[str] = "bytes"

    def terms(self, graph: Graph) -> Terms:
        """Prices each value; random numbers and what else cannot run twice are banned by the graph itself."""
        work, nothing = Work.of(graph), Terms.nothing(graph)
        save = graph.save_traffic
        recompute = np.where(graph.in_tangents, 0, work.read_bytes + work.written_bytes)
        return Terms(save, recompute, nothing.cannot_save, nothing.cannot_recompute)
