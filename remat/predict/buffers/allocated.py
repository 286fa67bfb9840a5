"""Simulates the code of one pass: when each buffer is allocated, overwritten by another one, and freed.

The rules are those of `remat.predict.buffers`. Classes and methods that are not defined here are Inductor's.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod

from remat.predict.buffers.orders import chosen_order
from remat.predict.buffers.units import PassUnits, Unit
from remat.predict.kernels import rules
from remat.predict.kernels.fuser import ScheduledPass
from remat.predict.kernels.ir import Buffer
from remat.predict.kernels.loop_groups import LoopGroup
from remat.predict.kernels.loops import Nest
from remat.predict.kernels.triton_loops import merged_loops

# Operators that write into a given output buffer; "add" is a sum that includes a product.
_WRITTEN_BY_CALLS = rules.PRODUCTS | {"aten.add"}
# A result must fill this share of the buffer that it overwrites (`can_match_buffer_size`).
_LEAST_SHARE = 0.95


@dataclass(frozen=True, eq=False)
class PassFacts:
    """Holds facts about a pass, in addition to its kernels, that determine its buffers."""

    freeable: Collection[int]  # arguments that the pass may free
    donated: Collection[int]  # those of `freeable` that the pass may overwrite
    # names, ops, dtypes: of every value of the graph.
    names: Sequence[str]
    ops: Sequence[str]
    dtypes: Sequence[str]
    gpu: bool  # whether each kernel is a step; on CPUs, the kernels between two calls are one function
    torchs_order: bool  # whether the kernels have the order that Inductor finds on its own


class AllocatedPass:
    """Simulates one pass: from which step to which step each buffer is in memory.

    Attributes:
        steps: each step is the kernels of one function, or a call.
        start, end: the first and the last step of each buffer that owns memory. A buffer without a start is an argument
            of the pass, one without an end is returned. If the end is before the start, the buffer was never used.
        size: the bytes in memory of each buffer for which `Buffer.storage_bytes` is wrong. These are buffers that
            overwrite a larger buffer, and buffers of copies back that have begun.
    """

    def __init__(self, scheduled: ScheduledPass, facts: PassFacts) -> None:
        self.scheduled = scheduled
        self.steps: list[tuple[LoopGroup, ...]] = []
        self.start: dict[Buffer, int] = {}
        self.end: dict[Buffer, int] = {}
        self.size: dict[Buffer, int] = {}
        self._facts = facts
        planned = PassUnits.of(scheduled, facts.freeable)
        self._order = chosen_order(planned, torchs_order=facts.torchs_order)
        self._planned_bytes = planned.alive_bytes(self._order)
        self._planned_peak = max(self._planned_bytes, default=0)
        self._inside = self._places()
        self._together: dict[Buffer, int] = {}
        self._heir: dict[Buffer, Buffer] = {}
        self._over: dict[Buffer, Buffer] = {}
        self._taken: set[Buffer] = set()
        self._gone: set[Buffer] = set()
        self._free: dict[tuple[str, int], list[tuple[Buffer, int]]] = {}
        self._unaligned: set[Buffer] = set()
        self._waiting: list[LoopGroup] = []
        self._dropped: list[Buffer] = []
        self._completed = 0
        handed = {v: buffer for v, buffer in scheduled.arguments.items() if v in facts.freeable}
        self._handed = set(handed.values())
        donated = {buffer for v, buffer in handed.items() if v in facts.donated}
        written = {buffer for unit in self._order for buffer in unit.defines}
        # The memory also belongs to the buffer with which the copy began, so Inductor does not overwrite it.
        fetched = {loop.writes[0] for loop in scheduled.loops if loop.copy == "copy back ends"}
        not_launched = {buffer for loop in scheduled.loops if not loop.launched for buffer in loop.writes}
        barred = {*self._inside, *self._inside.values(), *fetched, *not_launched}
        self._may_be_written_over = (donated | written) - barred
        self._run()

    def memory(self, buffer: Buffer) -> Buffer:
        """Returns the owner of a buffer's memory: the whole for a part, the target for a scatter, else the buffer."""
        while buffer in self._inside:
            buffer = self._inside[buffer]
        return buffer

    def _places(self) -> dict[Buffer, Buffer]:
        inside: dict[Buffer, Buffer] = {}
        for loop in self.scheduled.loops:
            inside.update(loop.over)
            if loop.mutates is not None:
                inside[loop.writes[0]] = loop.mutates
            elif not loop.launched:
                inside.update((part, loop.writes[0]) for part, _ in loop.reads)
        return inside

    def _run(self) -> None:
        last = self._last_uses()
        for at, unit in enumerate(self._order):
            alone = unit.kind in ("call", "result")
            if alone:
                self._flush(at - 1)
            self._dropped += last.get(unit, ())
            if unit.kind == "kernel":
                self._kernel(unit.group, at)
            elif unit.kind == "call":
                self._call(unit.group, at)
            elif unit.kind == "result":
                # The tuple of the call holds all results until the last one is extracted.
                self._together.update((self.memory(buffer), len(self.steps) - 1) for buffer in unit.group.written)
            elif not unit.group.reads:  # an empty tensor
                self._allocate(self.memory(unit.defines[0]), at, None)
            if alone or self._facts.gpu:
                self._flush(at)
            for nest in unit.group.nests:
                self._completed |= 1 << nest.index
        self._flush(len(self._order) - 1)
        for buffer, step in self._together.items():
            self._hold(buffer, step)

    # Another buffer may reuse the memory by then; if so, the other one is held.
    def _hold(self, buffer: Buffer, step: int) -> None:
        while buffer in self._heir:
            buffer = self._heir[buffer]
        if buffer in self.end:
            self.end[buffer] = max(self.end[buffer], step)

    def _flush(self, at: int) -> None:
        if self._waiting:
            self.steps.append(tuple(self._waiting))
        for buffer in sorted(self._dropped, key=self._name):  # as `Scheduler.free_buffers`
            if buffer not in self._gone:
                self._drop(buffer, at)
        self._waiting.clear()
        self._dropped.clear()

    # Lists the buffers that each unit is the last to access, without returned ones and those of others.
    def _last_uses(self) -> dict[Unit, list[Buffer]]:
        kept = {self.memory(buffer) for buffer in self.scheduled.returned.values()}
        own = {self.memory(buffer) for unit in self._order for buffer in unit.defines} | self._handed
        last: dict[Buffer, Unit] = {}
        for unit in self._order:
            accessed = unit.group.used if unit.kind != "result" else ()
            for buffer in (*unit.defines, *accessed):
                last[self.memory(buffer)] = unit
        freed: dict[Unit, list[Buffer]] = {}
        for buffer, unit in last.items():
            if buffer in own and buffer not in kept:
                freed.setdefault(unit, []).append(buffer)
        return freed

    def _kernel(self, group: LoopGroup, at: int) -> None:
        self._waiting.append(group)
        for nest in group.nests:
            if nest.loop.mutates is not None:
                continue
            (buffer,) = nest.loop.writes
            over = self._written_over(nest, buffer, group)
            if over is not None:
                self._over[buffer] = over
                self._taken.add(over)
            if self._is_stored(buffer, group):
                while over is not None and over not in self.start and over not in self._handed:
                    over = self._over.get(over)  # it stays within the kernel
                self._allocate(self.memory(buffer), at, over)

    # Whether another group, or another part or a later loop of this group, reads the buffer.
    def _is_stored(self, buffer: Buffer, group: LoopGroup) -> bool:
        if self.scheduled.scheduler.is_needed_outside(buffer, group) or buffer in group.read_in_later_loops:
            return True
        return self._crosses(buffer, group) and not self._is_local(buffer, group)

    def _crosses(self, buffer: Buffer, group: LoopGroup) -> bool:
        return group.depth > 0 and sum(buffer in part.used for part in group.parts) > 1

    # A buffer between parts of a group may be an array of one inner loop (`codegen_outer_loop_node`).
    def _is_local(self, buffer: Buffer, group: LoopGroup) -> bool:
        if any(len(part.sizes) + len(part.reduced) != group.depth + 1 for part in group.parts):
            return False
        accesses = {dep for nest in group.nests for dep in (*nest.reads, *nest.writes) if dep[0] is buffer}
        if len(accesses) > 1 or any(nest.is_reduction for nest in group.nests if buffer in nest.loop.writes):
            return False
        ((_, dims, offset),) = accesses
        return offset == 0 and len(dims) == 1 and dims[0][-1][1] == 1

    # As `decide_inplace_update`: the nest reads the old buffer exactly where it writes, and is its last reader.
    def _written_over(self, nest: Nest, buffer: Buffer, group: LoopGroup) -> Buffer | None:
        if self.memory(buffer) is not buffer:
            return None
        (written,) = nest.writes
        before = nest.ancestors | self._completed | 1 << nest.index
        for dep in nest.reads:
            old = dep[0]
            if (
                old in self._may_be_written_over
                and old not in self._taken
                and dep[1:] == written[1:]
                and not old.output
                and not (old in group.written and self._crosses(old, group) and self._is_local(old, group))
                and not self.scheduled.scheduler.readers(old) & ~before
                and _LEAST_SHARE * old.storage_bytes <= buffer.storage_bytes <= old.storage_bytes
                and self._dtype(old) == self._dtype(buffer)
                and len({(merged_loops(dims), start) for read, dims, start in group.deps if read is old}) == 1
            ):
                return old
        return None

    def _call(self, group: LoopGroup, at: int) -> None:
        self._waiting.append(group)
        loop = group.nests[0].loop
        if loop.mutates is not None or "to the host" in loop.copy:
            return
        if loop.copy == "copy back ends":  # the memory was allocated when the copy began
            ((arrived, _),) = loop.reads
            self.end[arrived] = len(self.steps) - 1
            self._gone.add(arrived)
        for buffer in loop.writes:
            memory = self.memory(buffer)
            op = loop.copy or self._facts.ops[buffer.value].rpartition(".")[0]
            if op in _WRITTEN_BY_CALLS:
                self._allocate(memory, at, None)
            else:
                self.start.setdefault(memory, len(self.steps))
                if loop.copy == "copy back begins":
                    self.size[memory] = prod(buffer.shape[1:]) * buffer.itemsize
                if loop.unaligned:
                    self._unaligned.add(memory)

    # As `AllocateLine.plan`: the memory of `over`, that of a freed buffer, or new memory.
    def _allocate(self, buffer: Buffer, at: int, over: Buffer | None) -> None:
        if buffer in self.start:
            return
        self.start[buffer] = len(self.steps)
        if over is not None:
            self._gone.add(over)
            self._heir[over] = buffer
            self.size[buffer] = self.size.get(over, over.storage_bytes)
            self.end[over] = len(self.steps) - 1
            return
        if not (free := self._free.get(self._key(buffer))):
            return
        old, since = free[-1]
        size, planned = buffer.storage_bytes, self._planned_bytes
        if since + 1 == at or max(planned[since + 1 : at], default=0) + size <= self._planned_peak:
            free.pop()
            self._heir[old] = buffer
            self.end[old] = len(self.steps) - 1
            planned[since + 1 : at] = [alive + size for alive in planned[since + 1 : at]]

    def _drop(self, buffer: Buffer, at: int) -> None:
        self.end[buffer] = len(self.steps) - 1
        if buffer in self.start and buffer not in self._unaligned:
            self._free.setdefault(self._key(buffer), []).append((buffer, at))

    def _key(self, buffer: Buffer) -> tuple[str, int]:
        return self._dtype(buffer), buffer.storage_bytes

    def _name(self, buffer: Buffer) -> str:
        return self.scheduled.scheduler.names.get(buffer) or self._facts.names[buffer.value]

    def _dtype(self, buffer: Buffer) -> str:
        # The buffer from which a variance is computed belongs to a tuple, which has no dtype.
        dtype = self._facts.dtypes[buffer.value] or f"float{8 * buffer.itemsize}"
        return "float32" if dtype in rules.HALF and buffer.itemsize == 4 else dtype
