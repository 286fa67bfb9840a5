"""Combines the buffers of both passes into the buffers of a training step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from remat.answer.handover import externally_visible
from remat.facts.collection import collection_paused
from remat.facts.columns import BoolArray
from remat.facts.graph import Graph
from remat.predict.buffers.allocated import AllocatedPass, PassFacts
from remat.predict.buffers.orders import has_torchs_order
from remat.predict.buffers.workspaces import workspace_bytes
from remat.predict.kernels import Fuser, Kernel
from remat.predict.kernels.fuser import ScheduledPass
from remat.predict.kernels.ir import Buffer
from remat.predict.kernels.loop_groups import LoopGroup
from remat.predict.memory.lifetimes import Lifetimes
from remat.predict.memory.simulator import Simulator, timeline_of
from remat.predict.memory.timeline import Timeline


def records_calls(graph: Graph) -> bool:
    """Returns whether a graph records the calls of its operators, as a captured graph does."""
    return any(graph.arguments)


def memory_of(graph: Graph) -> StepMemory | Simulator:
    """Returns the simulator of the compiled step; for a graph without recorded calls, one that runs value by value."""
    return StepMemory(graph) if records_calls(graph) else Simulator(graph)


@dataclass(frozen=True)
class Exchanged:
    """Names outputs of a graph that other graphs of the same run consume, and tangents that other graphs compute.

    Attributes:
        dropped: names of outputs that no caller holds when the backward pass begins; for a view, the name of the value
            that owns the storage.
        gradients: names of tangents that are freed after their last reader in the backward pass. All other tangents
            belong to the caller and are not counted.
    """

    dropped: frozenset[str] = frozenset()
    gradients: frozenset[str] = frozenset()


ALONE = Exchanged()


class StepMemory:
    """Simulates the memory of compiled steps; what does not depend on the plan is computed once.

    A plan of a GPT-2 of 12 layers takes 0.3 s on one shared CPU core.

    Args:
        backend: "cpu" or "triton"; None chooses by the graph's device.
        holds_outputs: whether the caller holds the forward outputs until the end of the backward pass.
        copy_stream: whether offloaded values are copied in a CUDA stream of their own (see `remat.compile`).

    Raises:
        InvalidGraph: a call that the graph records cannot be parsed.
        InvalidOption: the graph is no `Graph`, or no backend has this name.
    """

    def __init__(
        self,
        graph: Graph,
        backend: str | None = None,
        *,
        holds_outputs: bool = True,
        exchanged: Exchanged = ALONE,
        copy_stream: bool = False,
    ) -> None:
        self.graph, self.holds_outputs, self._exchanged = graph, holds_outputs, exchanged
        self._fuser = Fuser(graph, backend, copy_stream=copy_stream)

    def peak(self, saved: BoolArray, offloaded: BoolArray | None = None) -> int:
        """Returns the peak of live bytes. Args and errors are those of `remat.predict.kernels.Fuser.kernels`."""
        return self.timeline(saved, offloaded).peak_bytes

    @collection_paused()
    def timeline(self, saved: BoolArray, offloaded: BoolArray | None = None) -> Timeline:
        """Returns the timeline of a plan; a step is one launch. Args and errors are those of `peak`."""
        return self._timeline(*self._fuser.passes(saved, offloaded))

    @collection_paused()
    def kernels_and_timeline(self, saved: BoolArray) -> tuple[tuple[Kernel, ...], Timeline]:
        passes = self._fuser.passes(saved)
        return self._fuser.launched(passes), self._timeline(*passes)

    @collection_paused()
    def kernels(self, saved: BoolArray) -> tuple[Kernel, ...]:
        """Returns the kernels of a plan without the timeline, in half the time. Args and errors are those of `peak`."""
        return self._fuser.kernels(saved)

    def lifetimes(self, saved: BoolArray) -> Lifetimes:
        return self._joined(*self._fuser.passes(saved))[0].lifetimes()

    def _timeline(self, first: ScheduledPass, second: ScheduledPass) -> Timeline:
        joined, steps = self._joined(first, second)
        values = [max(max(nest.loop.values, default=0) for g in groups for nest in g.nests) for groups in steps]
        copies = {step: copy for step, groups in enumerate(steps) if (copy := groups[0].nests[0].loop.copy)}
        return timeline_of(self.graph, joined.lifetimes(), values, joined.forward_steps, copies)

    def _joined(self, first: ScheduledPass, second: ScheduledPass) -> tuple[_Joined, list[tuple[LoopGroup, ...]]]:
        forward, backward = self._allocated(first, frees=False), self._allocated(second, frees=True)
        joined = _Joined(len(forward.steps), len(forward.steps) + len(backward.steps))
        joined.add(forward, backward=False)
        joined.add(backward, backward=True)
        self._hand_over(joined, forward, backward)
        self._hand_back(joined, backward)
        steps = [*forward.steps, *backward.steps]
        for step, groups in enumerate(steps):
            joined.work(step, workspace_bytes(self.graph, groups, gpu=self._fuser.backend.gpu), groups)
        return joined, steps

    def _allocated(self, scheduled: ScheduledPass, *, frees: bool) -> AllocatedPass:
        graph = self.graph
        made = [v for v in scheduled.arguments if frees and not graph.leaf[v]]
        donated = [v for v in made if not graph.derived(externally_visible)[v]]
        gpu = self._fuser.backend.gpu
        facts = PassFacts(made, donated, graph.names, graph.ops, graph.dtypes, gpu, has_torchs_order(graph))
        return AllocatedPass(scheduled, facts)

    # What the forward pass returns is alive until its last reader, or as long as the caller holds it.
    def _hand_over(self, joined: _Joined, forward: AllocatedPass, backward: AllocatedPass) -> None:
        arguments = backward.scheduled.arguments
        last = _last_steps(backward)
        came_from: dict[Buffer, Buffer] = {}
        for v, returned in forward.scheduled.returned.items():
            buffer = forward.memory(returned)
            if v in arguments:
                argument = arguments[v]
                came_from[argument] = buffer
                # A value that the backward pass never reads is never freed.
                until = joined.forward_steps + last[argument] if argument in last else joined.steps
                joined.hold(buffer, "saved", until)
            if self.graph.output[v]:
                is_held = self.holds_outputs and self.graph.names[self.graph.base[v]] not in self._exchanged.dropped
                joined.hold(buffer, "output", joined.steps if is_held else joined.forward_steps - 1)
        for allocated in (forward, backward):
            for loop in allocated.scheduled.loops:
                if "to the host" in loop.copy:
                    joined.by_kind["offloaded"].update(allocated.memory(read) for read, _ in loop.reads)
                elif loop.copy:
                    joined.by_kind["offloaded"].add(allocated.memory(loop.writes[0]))
        for returned in backward.scheduled.returned.values():
            buffer = backward.memory(returned)
            joined.hold(came_from.get(buffer, buffer), "gradient", joined.steps)

    # A gradient from another graph is alive from the start of the backward pass to its last reader.
    def _hand_back(self, joined: _Joined, backward: AllocatedPass) -> None:
        last, first, scheduled = _last_steps(backward), joined.forward_steps, backward.scheduled
        returned = {backward.memory(buffer) for buffer in scheduled.returned.values()}
        for v, argument in scheduled.arguments.items():
            if self.graph.names[v] in self._exchanged.gradients:
                until = joined.steps if argument in returned else first + last.get(argument, 0)
                joined.rows[argument] = [v, 1, first, until, argument.bytes]


def _last_steps(allocated: AllocatedPass) -> dict[Buffer, int]:
    last: dict[Buffer, int] = {}
    for step, groups in enumerate(allocated.steps):
        for group in groups:
            last.update((dep[0], step) for dep in group.reads)
    return last | allocated.end


@dataclass(eq=False)
class _Joined:
    forward_steps: int
    steps: int
    # for each buffer: its value, its pass, its first and last step, and its bytes; steps are those of both passes.
    rows: dict[Buffer, list[int]] = field(default_factory=dict[Buffer, list[int]])
    # the buffers of each kind.
    by_kind: dict[str, set[Buffer]] = field(
        default_factory=lambda: {kind: set() for kind in ("output", "saved", "gradient", "offloaded")}
    )

    # What a pass returns is alive at least until the end of the pass.
    def add(self, allocated: AllocatedPass, *, backward: bool) -> None:
        shift, end = (self.forward_steps, self.steps) if backward else (0, self.forward_steps)
        for buffer, start in allocated.start.items():
            last = allocated.end.get(buffer, end - 1 - shift)
            size = allocated.size.get(buffer, buffer.storage_bytes)
            self.rows[buffer] = [buffer.value, int(backward), start + shift, last + shift, size]

    # A buffer that this graph does not own has no row.
    def hold(self, buffer: Buffer, kind: Literal["output", "saved", "gradient"], until: int) -> None:
        if buffer in self.rows:
            self.rows[buffer][3] = max(self.rows[buffer][3], until)
            self.by_kind[kind].add(buffer)

    def work(self, step: int, size: int, groups: tuple[LoopGroup, ...]) -> None:
        if size:
            value = max(groups[0].nests[0].loop.values)
            self.rows[Buffer(value, (size,), 1)] = [value, int(step >= self.forward_steps), step, step, size]

    def lifetimes(self) -> Lifetimes:
        rows = {buffer: row for buffer, row in self.rows.items() if row[3] >= row[2]}
        base, backward, start, end, size = np.array(list(rows.values()), np.int64).reshape(-1, 5).T
        marks = {kind: np.array([buffer in held for buffer in rows], np.bool_) for kind, held in self.by_kind.items()}
        return Lifetimes(base, backward.astype(np.bool_), start, end, size, **marks)
