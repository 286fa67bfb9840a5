"""Models what TorchInductor knows about one pass when it orders the kernels for a low peak.

Source: `torch/_inductor/memory.py` of torch 2.13. Its estimate, which decides the order, counts some buffers that are
never allocated: buffers that stay within a kernel, and parts of a concatenation in addition to the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Literal

import numpy as np

from remat.facts.columns import IntArray
from remat.predict.kernels.fuser import ScheduledPass
from remat.predict.kernels.ir import Buffer
from remat.predict.kernels.loop_groups import LoopGroup
from remat.predict.kernels.schedule import with_needs_first

Kind = Literal["kernel", "call", "result", "whole"]


@dataclass(eq=False, slots=True)
class Unit:
    """Represents a unit of the order: a kernel, a call, one of several results of a call, or a concatenation."""

    group: LoopGroup
    first: int  # the place of its first member in the order in which the graph was lowered
    last: int  # that of its last member
    index: int  # its place in the order of the graph
    defines: tuple[Buffer, ...]  # the buffers that exist once it has run
    kind: Kind
    alloc_bytes: int = 0  # by Inductor's estimate
    # the buffers that it reads: those that other units define, and arguments that the pass may free.
    needs: dict[Buffer, None] = field(default_factory=dict[Buffer, None])


@dataclass(frozen=True, eq=False)
class PassUnits:
    """Holds the units of one pass with the buffers between them.

    Units do not refer to each other: in such cycles, all objects of a plan would wait for Python's cyclic garbage
    collector, which took a third of the time of a search.
    """

    scheduled: ScheduledPass
    units: tuple[Unit, ...]  # in the order of the graph
    predecessors: dict[Unit, dict[Unit, None]]  # the units that each one waits for
    successors: dict[Unit, dict[Unit, None]]  # the units that wait for each one
    # the units that read each buffer; the readers of a result also read the buffer that it overwrote.
    readers: dict[Buffer, dict[Unit, None]]
    free_bytes: dict[Buffer, int]  # bytes that are freed after the last reader of a buffer, by Inductor's estimate
    freeable: tuple[Buffer, ...]  # the arguments that the pass may free
    results: frozenset[Buffer]  # the buffers that it returns

    @classmethod
    def of(cls, scheduled: ScheduledPass, freeable: Collection[int]) -> PassUnits:
        renamed = {loop.writes[0]: loop.mutates for loop in scheduled.loops if loop.mutates is not None}
        over = {after: target for loop in scheduled.loops for after, target in loop.over.items()}
        renamed |= over
        units, free_bytes = _units(scheduled, renamed)
        arguments = {buffer for v, buffer in scheduled.arguments.items() if v in freeable}
        defined = {buffer: unit for unit in units for buffer in unit.defines}
        readers: dict[Buffer, dict[Unit, None]] = {}
        for unit in units:
            for buffer in list(unit.needs):
                if buffer in defined or buffer in arguments:
                    readers.setdefault(buffer, {})[unit] = None
                else:
                    del unit.needs[buffer]
        for after, target in reversed(list(renamed.items())):
            readers.setdefault(target, {}).update(readers.get(after, {}))
        predecessors: dict[Unit, dict[Unit, None]] = {unit: {} for unit in units}
        successors: dict[Unit, dict[Unit, None]] = {unit: {} for unit in units}
        for buffer, unit in defined.items():
            for reader in readers.get(buffer, {}):
                if reader is not unit:
                    successors[unit][reader] = predecessors[reader][unit] = None
                    reader.needs[buffer] = None
        handed = tuple(buffer for buffer in arguments if buffer in readers)
        # Inductor counts an argument with the bytes of its last access, even if others read more of it.
        for unit in units:
            free_bytes.update((dep[0], size) for dep, size in unit.group.reads.items() if dep[0] in arguments)
        kept = {buffer for unit in units for buffer in unit.defines if buffer.output}
        kept.update(target for after, target in over.items() if after.output)
        kept.update(set(handed) & set(scheduled.returned.values()))
        return cls(scheduled, tuple(units), predecessors, successors, readers, free_bytes, handed, frozenset(kept))

    def by_last_member(self) -> list[Unit]:
        """Returns the units sorted by their last members; what a unit needs comes before it."""
        return _sorted(self.units, self.scheduled, lambda unit: unit.last)

    def alive_bytes(self, order: Sequence[Unit]) -> list[int]:
        """Returns the live bytes at each unit of an order, and after the last one (`estimate_peak_memory`)."""
        step = np.zeros(len(order) + 1, np.int64)
        step[[unit.index for unit in order]] = range(len(order))
        change = np.array([*(unit.alloc_bytes for unit in order), 0], np.int64)
        change[0] += sum(self.free_bytes[buffer] for buffer in self.freeable)
        size, users, first = self._freed
        np.subtract.at(change, np.maximum.reduceat(step[users], first) + 1, size)
        return change.cumsum().tolist()

    @cached_property
    def _freed(self) -> tuple[IntArray, IntArray, IntArray]:
        """Returns three arrays about the m buffers that the pass frees.

        The first has the bytes of each buffer (m,). The second has the indices of the units that use the first buffer,
        then of those that use the second one, and so on: its readers, or its writer if nothing reads it. The third has
        the place (m,) in the second array where the indices of each buffer begin.
        """
        users: dict[Buffer, Iterable[Unit]] = {buffer: (unit,) for unit in self.units for buffer in unit.defines}
        users |= {buffer: readers for buffer, readers in self.readers.items() if readers and buffer in users}
        users |= {buffer: self.readers[buffer] for buffer in self.freeable}
        freed = [buffer for buffer in users if buffer not in self.results]
        # No unit uses an unread argument. Its index comes after those of all units; `alive_bytes` gives it step 0.
        unread = [len(self.units)]
        indices = [[unit.index for unit in users[buffer]] or unread for buffer in freed]
        first = np.cumsum([0, *map(len, indices)], dtype=np.int64)[:-1]
        size = np.array([self.free_bytes[buffer] for buffer in freed], np.int64)
        return size, np.array([*chain(*indices)], np.int64), first


def _units(scheduled: ScheduledPass, renamed: Collection[Buffer]) -> tuple[list[Unit], dict[Buffer, int]]:
    units: list[Unit] = []
    free_bytes: dict[Buffer, int] = {}
    read = {dep[0] for group in scheduled.groups for dep in group.reads}

    number = scheduled.scheduler.number

    def add(group: LoopGroup, defines: tuple[Buffer, ...], kind: Kind, total: int, needs: dict[Buffer, None]) -> None:
        first, last = (number[defines[0]],) * 2 if kind == "result" else (group.first, group.last)
        units.append(Unit(group, first, last, len(units), defines, kind, total, needs))
        free_bytes.update((buffer, 0 if buffer in renamed else buffer.bytes) for buffer in defines)

    for group in scheduled.groups:
        loop = group.nests[0].loop
        needs = {dep[0]: None for dep in group.reads if dep[0] not in group.written}
        written = tuple(buffer for nest in group.nests for buffer in nest.loop.writes)
        total = sum(buffer.bytes for buffer in written if buffer not in renamed)
        if loop.generated or not loop.launched:
            add(group, written, "kernel" if loop.generated else "whole", total, needs)
        elif not loop.several:
            add(group, written, "call", total, needs)
        else:
            results = [buffer for buffer in written if buffer.output or buffer in read]
            several = Buffer(-1, (0,), 1)
            add(group, (several,), "call", sum(b.bytes for b in results if b not in renamed), needs)
            for buffer in results:
                add(group, (buffer,), "result", 0, {several: None})
    ordered = _sorted(units, scheduled, lambda unit: unit.first)
    for index, unit in enumerate(ordered):
        unit.index = index
    return ordered, free_bytes


# Sorted like the scheduler's groups, except that each result has its own place, or comes before its first reader.
def _sorted(units: Sequence[Unit], scheduled: ScheduledPass, place: Callable[[Unit], int]) -> list[Unit]:
    needs = scheduled.scheduler.needs
    defined = {buffer: unit for unit in units for buffer in unit.defines}

    def needed(unit: Unit) -> list[Unit]:
        buffers = unit.needs if unit.kind == "result" else needs(unit.group)
        return [defined[buffer] for buffer in buffers]

    return with_needs_first(sorted(units, key=place), needed)
