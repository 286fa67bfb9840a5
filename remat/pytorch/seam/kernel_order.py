"""Offers TorchInductor two more orders of a graph's kernels. `remat.predict.buffers.orders` predicts the one it takes.

Inductor places a fused kernel where its first member was. A kernel that adds up gradients of all layers, such as those
of a conditioning vector or of position biases, is then placed near the beginning of the backward pass, and all
gradients that it reads are computed before it. Weight gradients come after it, and until then the activations that
they need stay in memory. None of the three other orders that Inductor tries repairs this reliably.
"""

# networkx has partial types.
# pyright: reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import Any

import networkx as nx

from remat.pytorch.seam.internals import internals
from remat.pytorch.seam.torch_names import CustomSchedulerPass

_OPTION = "_post_fusion_custom_pass"


def with_kernel_order(options: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the pass to options of Inductor, unless they, or Inductor's settings, have a pass at its place."""
    config = internals("torch._inductor.config")
    is_free = getattr(config, _OPTION) is None and config.reorder_for_peak_memory
    return {_OPTION: KernelOrder(), **options} if is_free else dict(options)


@contextmanager
def kernel_order() -> Generator[None]:
    """Applies the pass to graphs that are lowered in the block."""
    with internals("torch._inductor.config").patch(with_kernel_order({})):
        yield


class KernelOrder(CustomSchedulerPass):
    """Sorts the kernels of a graph after fusion: takes the order with the smallest peak by Inductor's estimate, of six.

    Four are Inductor's; of equal ones, the first is taken, so that nothing changes without need. Inductor then sorts
    again, and finds none better. `remat.compile` and the backend "remat" use this pass. It also works without a plan:

        torch.compile(model, options={"_post_fusion_custom_pass": KernelOrder()})
    """

    def __call__(self, nodes: list[Any]) -> list[Any]:
        if len(nodes) < 2:
            return nodes
        scheduler, graph = nodes[0].scheduler, internals("torch._inductor.virtualized").V.graph
        ordered_set = internals("torch.utils._ordered_set").OrderedSet
        memory = internals("torch._inductor.memory")
        inductors = [memory.topological_sort_lpmf, memory.topological_sort_bfs, memory.topological_sort_dfs]
        return memory.reorder_for_peak_memory(
            nodes,
            scheduler.name_to_buf,
            scheduler.name_to_fused_node,
            ordered_set(graph.graph_inputs),
            ordered_set(graph.get_output_names()),
            methods=[*inductors, each_when_ready, by_last_member],
        )

    def uuid(self) -> str:
        """Returns the key for Inductor's caches: a hash of this file."""
        return sha256(Path(__file__).read_bytes()).hexdigest()


def each_when_ready(nodes: Sequence[Any]) -> list[Any]:
    """Sorts kernels by their first members, but none comes before all that it reads has been computed."""
    writers = {name: node for node in nodes for name in node.get_buffer_names()}
    graph: Any = nx.DiGraph()
    graph.add_nodes_from(nodes)
    for node in nodes:
        names = [dependency.name for dependency in node.unmet_dependencies]
        graph.add_edges_from((writers[name], node) for name in names if name in writers)
    return [*nx.lexicographical_topological_sort(graph, key=attrgetter("min_order"))]


def by_last_member(nodes: Sequence[Any]) -> list[Any]:
    """Sorts kernels by their last members; what a kernel needs comes before it."""
    return nodes[0].scheduler.topological_sort_schedule(sorted(nodes, key=attrgetter("max_order")))
