"""Orders the kernels of a pass for a low peak, like `torch/_inductor/memory.py` of torch 2.13.

Inductor takes the order with the smallest estimated peak among three heuristic orders and the order of the graph. To
graphs that `remat` compiles, `remat.pytorch.seam.kernel_order` offers two more orders.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from remat.facts.graph import Graph
from remat.predict.buffers.units import PassUnits, Unit
from remat.predict.kernels.ir import Buffer
from remat.predict.kernels.schedule import when_ready, with_needs_first

LOWER = 0.98
"""Our orders are taken if the estimated peak falls below this part of that of Inductor's best order.

The estimate is some percents off. At 1, one of 226 plans had a peak that was 0.9% higher.
"""


TORCHS_ORDER = {"kernel_order": "torch"}
"""Stands in `Graph.meta` if the step runs without `remat.pytorch.KernelOrder`."""


def with_torchs_order(graph: Graph) -> Graph:
    """Returns the graph as `torch.compile` runs it: its kernels have the order that Inductor finds on its own."""
    return replace(graph, meta={**graph.meta, **TORCHS_ORDER})


def has_torchs_order(graph: Graph) -> bool:
    """Returns whether the kernels of the graph have the order that Inductor finds on its own."""
    return TORCHS_ORDER.items() <= graph.meta.items()


def chosen_order(pass_units: PassUnits, *, torchs_order: bool = False) -> tuple[Unit, ...]:
    """Returns the units in execution order.

    Args:
        pass_units: the kernels.
        torchs_order: whether the kernels have the order that Inductor finds on its own.
    """

    def best_of(orders: Iterable[Sequence[Unit]]) -> tuple[int, Sequence[Unit]]:
        estimated = [(max(pass_units.alive_bytes(order), default=0), order) for order in orders]
        return min(estimated, key=lambda one: one[0])

    heuristics = (_least_memory_first, _breadth_first, _depth_first)
    peak, best = best_of((pass_units.units, *(sort(pass_units) for sort in heuristics)))
    if not torchs_order:
        our_peak, ours = best_of((_each_when_ready(pass_units), pass_units.by_last_member()))
        best = ours if our_peak < LOWER * peak else best
    return tuple(best)


# Prefers the unit whose first member comes first, of those for which all that they read has been computed.
def _each_when_ready(pass_units: PassUnits) -> list[Unit]:
    return when_ready(pass_units.predecessors, lambda unit, _: (unit.first, unit.index))


# Prefers units that fit under the current peak, then those that add the fewest live bytes (`topological_sort_lpmf`).
def _least_memory_first(pass_units: PassUnits) -> Sequence[Unit]:
    units, readers, free = pass_units.units, pass_units.readers, pass_units.free_bytes
    waiting = {unit: len(earlier) for unit, earlier in pass_units.predecessors.items()}
    ready = {unit: None for unit in units if not waiting[unit]}
    left = {buffer: len(readers.get(buffer, ())) + (buffer in pass_units.results) for buffer in free}
    alive = sum(free[buffer] for buffer in pass_units.freeable)
    most = max(alive, sum(free[buffer] for buffer in pass_units.results))
    frees = {
        unit: sum(free[b] for b in unit.needs if b in left and left[b] == 1)
        + sum(free[b] for b in unit.defines if left[b] == 0)
        for unit in units
    }
    order: list[Unit] = []
    while ready:
        room = most - alive
        unit = min(
            ready, key=lambda u: (u.alloc_bytes if u.alloc_bytes > room else 0, u.alloc_bytes - frees[u], u.index)
        )
        del ready[unit]
        order.append(unit)
        alive += unit.alloc_bytes
        most = max(most, alive)
        alive -= frees[unit]
        for later in pass_units.successors[unit]:
            waiting[later] -= 1
            if not waiting[later]:
                ready[later] = None
        for buffer in unit.needs:
            left[buffer] -= 1
            if left[buffer] == 1:
                for reader in readers[buffer]:
                    frees[reader] += free[buffer]
    return order


# Prefers the unit whose predecessors ran first (`topological_sort_bfs`).
def _breadth_first(pass_units: PassUnits) -> list[Unit]:
    earlier = pass_units.predecessors
    return when_ready(earlier, lambda unit, place: (sorted(place[needed] for needed in earlier[unit]), unit.index))


# Prefers the unit that accesses the least memory, right after all its predecessors (`topological_sort_dfs`).
def _depth_first(pass_units: PassUnits) -> Sequence[Unit]:
    size = {
        unit: unit.alloc_bytes + sum(pass_units.free_bytes[buffer] for buffer in unit.needs)
        for unit in pass_units.units
    }
    defined: dict[Buffer, Unit] = {buffer: unit for unit in pass_units.units for buffer in unit.defines}

    def sorted_by_size(units: Sequence[Unit]) -> list[Unit]:
        return sorted(units, key=lambda unit: (size[unit], unit.index))

    def needed(unit: Unit) -> list[Unit]:
        return sorted_by_size(list({defined[buffer]: None for buffer in unit.needs if buffer in defined}))

    return with_needs_first(sorted_by_size(pass_units.units), needed)
