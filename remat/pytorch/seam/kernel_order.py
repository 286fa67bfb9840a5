"""Offers TorchInductor two more orders of a graph's kernels. `remat.predict.buffers.orders` predicts the one it takes.

Inductor places a fused kernel where its first member was. A kernel that adds up gradients of all layers, such as those
of a conditioning vector or of position biases, is then placed near the beginning of the backward pass, and all
gradients that it reads are computed before it. Weight gradients come after it, and until then the activations that
they need stay in memory. None of the three other orders that Inductor tries repairs this reliably.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha256
from operator import attrgetter
from pathlib import Path
from typing import Any

from remat.predict.buffers.orders import LOWER, TORCHS_ORDER
from remat.predict.kernels.schedule import when_ready, with_needs_first
from remat.pytorch.seam.internals import internals
from remat.pytorch.seam.torch_names import CustomSchedulerPass

_OPTION = "_post_fusion_custom_pass"
_CONDITIONALS = ("Conditional", "Switch")
"""What Inductor calls the node of `torch.cond`; the second name is that of torch 2.15."""


def with_kernel_order(options: Mapping[str, Any]) -> dict[str, Any]:
    """Adds the pass to options of Inductor, unless they, or Inductor's settings, have a pass at its place."""
    config = internals("torch._inductor.config")
    sorts = options.get("reorder_for_peak_memory", config.reorder_for_peak_memory)
    is_free = getattr(config, _OPTION) is None and sorts
    return {_OPTION: KernelOrder(), **options} if is_free else dict(options)


@contextmanager
def kernel_order(*, torchs_order: bool = False) -> Generator[None]:
    """Applies the pass to graphs that are lowered in the block; or leaves it out, even where it is set."""
    without = {_OPTION: None} if _is_set() else {}
    with internals("torch._inductor.config").patch(without if torchs_order else with_kernel_order({})):
        yield


def meta_of_order() -> dict[str, str]:
    """Returns what `Graph.meta` says of the order of kernels under Inductor's settings: nothing if our pass is set."""
    return {} if _is_set() else TORCHS_ORDER


def _is_set() -> bool:
    return isinstance(getattr(internals("torch._inductor.config"), _OPTION), KernelOrder)


@cache
def _source_key() -> str:
    sources = (__file__, inspect.getsourcefile(with_needs_first) or "")
    return sha256(b"".join(Path(source).read_bytes() for source in sources)).hexdigest()


@dataclass(frozen=True)
class KernelOrder(CustomSchedulerPass):
    """Sorts the kernels of a graph after fusion, by `each_when_ready` or by `by_last_member`.

    The kernels are sorted only if the peak falls by more than 2 %, by Inductor's own estimate, below the peaks of
    Inductor's four orders; otherwise Inductor sorts them. `remat.compile` and the backend "remat" use this pass. It
    also works without a plan::

        torch.compile(model, options={"_post_fusion_custom_pass": KernelOrder()})

    Attributes:
        key: of the source code, for Inductor's caches.
    """

    key: str = field(default_factory=_source_key)

    def __call__(self, nodes: list[Any]) -> list[Any]:
        # Inductor keeps conditionals in the order in which it finds them, because collectives in them must not change
        # places.
        if len(nodes) < 2 or sum(type(node.node).__name__ in _CONDITIONALS for node in nodes) > 1:
            return nodes
        scheduler, graph = nodes[0].scheduler, internals("torch._inductor.virtualized").V.graph
        memory, ordered_set = internals("torch._inductor.memory"), internals("torch.utils._ordered_set").OrderedSet
        outputs, buffers = ordered_set(graph.get_output_names()), scheduler.name_to_buf
        peak, freeable = memory.prepare_planning_info(
            nodes, buffers, scheduler.name_to_fused_node, ordered_set(graph.graph_inputs), outputs
        )

        def estimated(order: list[Any]) -> int:
            return memory.estimate_peak_memory(order, freeable, outputs)[0]

        inductors = [
            memory.topological_sort_lpmf(nodes, freeable, buffers, outputs),
            memory.topological_sort_bfs(nodes),
            memory.topological_sort_dfs(nodes),
        ]
        best = min((each_when_ready(nodes), by_last_member(nodes)), key=estimated)
        return best if estimated(best) < LOWER * min(peak, *map(estimated, inductors)) else nodes

    def uuid(self) -> str:
        """Returns the key for Inductor's caches."""
        return self.key


def each_when_ready(nodes: Sequence[Any]) -> list[Any]:
    """Sorts kernels by their first members, but none comes before all that it reads has been computed."""
    return when_ready(_needed(nodes), lambda node, _: node.min_order)  # no two have the same first member


def by_last_member(nodes: Sequence[Any]) -> list[Any]:
    """Sorts kernels by their last members; what a kernel needs comes before it."""
    return with_needs_first(sorted(nodes, key=attrgetter("max_order")), _needed(nodes).__getitem__)


# Inductor's `topological_sort_schedule` is recursive, and a chain of gradients may be a thousand kernels long.
def _needed(nodes: Sequence[Any]) -> dict[Any, list[Any]]:
    writers = {name: node for node in nodes for name in node.get_buffer_names()}
    names = {node: sorted(dependency.name for dependency in node.unmet_dependencies) for node in nodes}
    return {
        node: [writers[name] for name in needed if writers.get(name, node) is not node]
        for node, needed in names.items()
    }
