"""Solves with SciPy's maximum flow: compiled, 30-bit capacities."""

# SciPy ships few types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from remat.plugin import SINK, SOURCE, BoolArray, FlowSolver, IntArray, InvalidOption, Network, Sides

Method = Literal["dinic", "edmonds_karp"]


@dataclass(frozen=True)
class SciPy(FlowSolver):
    """Computes a maximum flow with `scipy.sparse.csgraph.maximum_flow`.

    SciPy casts capacities to int32 silently (SciPy 1.17: 6442450949 gave a flow of 0), and a flow against an arc of
    capacity c gives it a residual capacity of up to 2c. So sums that could reach 2**31 are refused.

    Attributes:
        method: "dinic" or "edmonds_karp".
    """

    name: ClassVar[str] = "scipy"
    requires: ClassVar[tuple[str, ...]] = ("scipy",)
    largest_capacity: ClassVar[int | None] = 2**30 - 1

    method: Method = "dinic"

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise InvalidOption(f"SciPy.method must be one of {', '.join(get_args(Method))}, got {self.method!r}")

    def _max_flow(self, network: Network) -> tuple[IntArray, Sides | None]:
        from scipy.sparse import csr_array
        from scipy.sparse.csgraph import maximum_flow

        if not len(network.capacities):  # SciPy would return a sparse array for no indices, not a dense one
            return np.zeros(0, np.int64), None
        shape = (network.num_vertices, network.num_vertices)
        matrix = csr_array((network.capacities.astype(np.int32), (network.tails, network.heads)), shape=shape)
        matrix.sum_duplicates()
        result = maximum_flow(matrix, SOURCE, SINK, method=self.method)
        # The flow matrix is antisymmetric: two opposite arcs have the net flow. Only networks with merged
        # vertices have opposite arcs, and there the net flow is a maximum flow, too.
        net = np.asarray(result.flow[network.tails, network.heads]).ravel()
        flow = np.maximum(net, 0).astype(np.int64)
        return flow, _sides(network, flow)


def _sides(network: Network, flow: IntArray) -> Sides:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order

    slack, carrying = flow < network.capacities, flow > 0
    tails = np.concatenate([network.tails[slack], network.heads[carrying]])
    heads = np.concatenate([network.heads[slack], network.tails[carrying]])
    shape = (network.num_vertices, network.num_vertices)
    residual = csr_array((np.ones(len(tails), np.int8), (tails, heads)), shape=shape)

    def reached(graph: csr_array, start: int) -> BoolArray:
        mask = np.zeros(network.num_vertices, np.bool_)
        mask[breadth_first_order(graph, start, return_predecessors=False)] = True
        return mask

    return Sides(reached(residual, SOURCE), reached(csr_array(residual.T), SINK))
