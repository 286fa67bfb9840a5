"""Computes minimum cuts by NetworkX's maximum flow: pure Python, any capacity, several algorithms."""

# networkx ships few types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from remat.plugin import SINK, SOURCE, FlowSolver, IntArray, InvalidOption, Network, Sides

FLOW_FUNCS = ("preflow_push", "boykov_kolmogorov", "dinitz", "edmonds_karp", "shortest_augmenting_path")


@dataclass(frozen=True)
class NetworkX(FlowSolver):
    """Computes a maximum flow with `networkx.algorithms.flow`, which PyTorch itself uses up to torch 2.13.

    Attributes:
        flow_func: name of the algorithm, one of `FLOW_FUNCS`.
    """

    name: ClassVar[str] = "networkx"
    requires: ClassVar[tuple[str, ...]] = ("networkx",)

    flow_func: str = "preflow_push"

    def __post_init__(self) -> None:
        if self.flow_func not in FLOW_FUNCS:
            raise InvalidOption(f"NetworkX.flow_func must be one of {', '.join(FLOW_FUNCS)}, got {self.flow_func!r}")

    def _max_flow(self, network: Network) -> tuple[IntArray, Sides | None]:
        import networkx
        from networkx.algorithms import flow as algorithms

        # NetworkX leaves arcs without capacity out of its residual network.
        open_arcs = np.flatnonzero(network.capacities)
        ends = list(zip(network.tails[open_arcs].tolist(), network.heads[open_arcs].tolist(), strict=True))
        graph: Any = networkx.DiGraph()
        graph.add_nodes_from((SOURCE, SINK))
        for (tail, head), capacity in zip(ends, network.capacities[open_arcs].tolist(), strict=True):
            graph.add_edge(tail, head, capacity=capacity)
        residual: Any = getattr(algorithms, self.flow_func)(graph, SOURCE, SINK, value_only=False)
        flow = np.zeros(len(network.tails), np.int64)
        # The residual network reports a negative flow if the net flow runs against an arc.
        flow[open_arcs] = [max(residual[tail][head]["flow"], 0) for tail, head in ends]
        return flow, None
