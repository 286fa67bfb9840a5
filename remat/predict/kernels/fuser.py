"""Predicts the kernels of both passes of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from remat.answer.handover import storage_owners
from remat.answer.plan import Plan
from remat.facts.columns import BoolArray, IntArray, mask_of
from remat.facts.graph import Graph, checked_graph
from remat.predict.kernels import rules
from remat.predict.kernels.attention import attention
from remat.predict.kernels.backends import backend_for
from remat.predict.kernels.cpu_schedule import CpuScheduler
from remat.predict.kernels.dispatch import rules_of
from remat.predict.kernels.host_copies import HostCopies, early_places
from remat.predict.kernels.index import Shape
from remat.predict.kernels.ir import Buffer, Loop
from remat.predict.kernels.kernel import Kernel
from remat.predict.kernels.library import call_library, copy_step, library, product_and_bias
from remat.predict.kernels.loop_groups import LoopGroup
from remat.predict.kernels.lowering import Lowering, Uses
from remat.predict.kernels.padding import Padding, results_with_views, unpadded
from remat.predict.kernels.passes import Rewrites, Rewritten
from remat.predict.kernels.realize import Stores, layout
from remat.predict.kernels.recorded_calls import calls_of
from remat.predict.kernels.schedule import Scheduler
from remat.predict.kernels.strides import (
    channels_last,
    channels_last_chosen,
    channels_last_values,
    eager_strides,
    is_dense,
    same_layout,
    strides_after,
    turning_images,
    with_tangents,
)
from remat.predict.kernels.triton_schedule import TritonScheduler
from remat.predict.kernels.unfused import unfused_kernels
from remat.predict.memory.order import Order
from remat.predict.memory.storages import StorageFacts
from remat.proof.validate import checked_mask, legal_choice

_SCHEDULERS = {"cpu": CpuScheduler, "triton": TritonScheduler}


def kernels(graph: Graph, plan: Plan, *, fused: bool = True, backend: str | None = None) -> tuple[Kernel, ...]:
    """Predicts the kernels of both passes under a plan, in execution order, without the copies to the host and back.

    Arguments and errors are those of `remat.predict_traffic`.
    """
    choice = legal_choice(checked_graph(graph), plan)
    if not fused:
        return tuple(unfused_kernels(graph, Order.of(StorageFacts.of(graph), choice.saved)))
    return Fuser(graph, backend).kernels(choice.saved, choice.offloaded)


@dataclass(frozen=True, eq=False)
class ScheduledPass:
    """Holds one pass as groups of loops; the loops of a group share a kernel."""

    scheduler: Scheduler[Any, Any]  # made the groups; tells which nests read a buffer
    groups: tuple[LoopGroup, ...]  # in a valid execution order, with those that launch no kernel
    arguments: dict[int, Buffer]  # buffers of the values that the pass reads but does not compute
    returned: dict[int, Buffer]  # buffers of the values that the pass returns
    with_gaps: dict[int, Shape]  # strides of these values, where their memory has gaps

    @property
    def loops(self) -> Iterator[Loop]:
        return (nest.loop for group in self.groups for nest in group.nests)

    @cached_property
    def library_values(self) -> frozenset[int]:
        return frozenset[int]().union(*(loop.values for loop in self.loops if not (loop.generated or loop.copy)))

    @property
    def launched(self) -> Iterator[LoopGroup]:
        """Yields the groups that launch a kernel. Concatenations, copies to the host and empty tensors launch none."""
        for group in self.groups:
            does = not group.written or any(buffer.bytes for buffer in group.written)
            loop = group.nests[0].loop
            if loop.launched and not loop.copy and does:
                yield group


class Fuser:
    """Predicts the kernels of many plans of one graph; what does not depend on the plan is computed once.

    A plan of a GPT-2 of 12 layers (2,533 values, 550 to 640 kernels) takes 0.1 to 0.2 s on one shared CPU core.

    Attributes:
        backend: "cpu" or "triton"; None chooses by the graph's device.
        copy_stream: whether offloaded values are copied in a CUDA stream of their own.

    Raises:
        InvalidGraph: a call that the graph records cannot be parsed.
        InvalidOption: the graph is no `Graph`, or no backend has this name.
    """

    def __init__(self, graph: Graph, backend: str | None = None, *, copy_stream: bool = False) -> None:
        self.graph, self.copy_stream = checked_graph(graph), copy_stream
        self.backend = backend_for(graph, backend)
        self._facts = StorageFacts.of(graph)
        self._calls = calls_of(graph)
        self._weights = [rules.Weight.of(call, self._calls) for call in self._calls]
        tangents = np.flatnonzero(graph.in_tangents & graph.leaf).tolist()
        outputs = np.flatnonzero(graph.output).tolist()
        self._strides = with_tangents(self._calls, eager_strides(self._calls), tangents, outputs)
        self._last = channels_last_values(self._calls, graph.in_tangents.tolist())
        self._rules = rules_of(self._calls, graph.fusible.tolist(), graph.view.tolist())
        self._rewrites = Rewrites.of(self._calls, graph.view.tolist(), graph.base.tolist(), self.backend)
        ops = [call.op for call in self._calls]
        self._realizing = np.array([op in rules.NEEDS_REALIZED for op in ops], np.bool_)
        self._realizing |= np.array([rule in (library, attention) for rule in self._rules], np.bool_)
        self._realizing &= ~np.array([op in rules.CALLED_BY_NAME for op in ops], np.bool_)
        self._ordering = np.array([op in rules.FIXED_LAYOUT for op in ops], np.bool_)
        self._restriding = np.array([op == "aten.as_strided" for op in ops], np.bool_)
        turning = turning_images(graph.meta.get("torch", ""))
        self._convolutions = np.array([op in turning for op in ops], np.bool_)
        # Rows of which the size varies are not padded (`pad_dynamic_shapes`).
        self._pads = self.backend.gpu and not any(call.dtype == "symint" for call in self._calls)
        self._results = [results_with_views(self._calls, results) for results in (graph.output, graph.gradient)]
        self._base: list[int] = graph.base.tolist()

    def kernels(self, saved: BoolArray, offloaded: BoolArray | None = None) -> tuple[Kernel, ...]:
        """Predicts the kernels of both passes, in execution order.

        Args:
            saved: (n,) the saved values; the backward pass recomputes the others that it needs. Legality is not checked
                (see `remat.check_plan`).
            offloaded: (n,) the saved values that wait on the host; None means none.

        Raises:
            InvalidPlan: `saved` does not have one flag per value, or a value in the tangents' closure is saved.
            InvalidGraph: the rule of an operator needs its call, and the graph does not record it.
        """
        return self.launched(self.passes(saved, offloaded))

    def launched(self, passes: tuple[ScheduledPass, ScheduledPass]) -> tuple[Kernel, ...]:
        return tuple(self._kernel(one, group, i == 1) for i, one in enumerate(passes) for group in one.launched)

    def passes(self, saved: BoolArray, offloaded: BoolArray | None = None) -> tuple[ScheduledPass, ScheduledPass]:
        """Schedules the forward and the backward pass; arguments and errors are those of `kernels`."""
        graph = self.graph
        order = Order.of(self._facts, checked_mask(graph, saved))
        handed = storage_owners(graph, order.saved)
        if handed is not order.saved:
            order = Order.of(self._facts, handed)
        hosted = np.zeros(len(graph), np.bool_) if offloaded is None else offloaded & order.saved
        last = self._with_channels_last(order.forward, hosted)
        forward = order.forward
        if self.copy_stream and hosted.any():
            forward = forward[np.argsort(early_places(graph, forward), kind="stable")]
        first = self._pass(forward, graph.output | order.saved, last, hosted, backward=False)
        return first, self._pass(order.backward, graph.gradient, last | first.with_gaps, hosted, backward=True)

    def _turns_images(self, values: IntArray) -> bool:
        positions: list[int] = values[self._convolutions[values]].tolist()
        convolutions = [self._calls[v] for v in positions]
        return channels_last_chosen(self.backend, convolutions, self._calls, len(values))

    def _pass(
        self, values: IntArray, returned: BoolArray, last: Mapping[int, Shape], hosted: BoolArray, *, backward: bool
    ) -> ScheduledPass:
        graph, n = self.graph, len(self.graph)
        inside = mask_of(values, n)
        u, v = graph.producers, graph.consumers
        arguments: list[int] = np.unique(u[inside[v] & ~inside[u]]).tolist()  # what the pass reads and does not compute
        strides = self._strides
        if backward and last:  # channels-last arguments change the strides of later values
            strides = strides_after(self._calls, strides, {v: last.get(v, strides[v]) for v in arguments})
        done = Rewritten.of(self._rewrites, values, graph.producers, graph.consumers, returned, strides)
        realized, ordered = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        products = np.isin(done.readers, [*done.unfused])
        realized[done.producers[self._realizing[done.readers] | products]] = True
        ordered[done.producers[self._ordering[done.readers] | products]] = True
        readers = np.bincount(done.producers, minlength=n) + done.returned
        convolves, kept = self._turns_images(values), done.returned & ~hosted
        restrided = self._restrided(done.producers, done.readers)
        images = {v: strides for v, strides in last.items() if convolves and not restrided[v]}
        columns = (readers.tolist(), kept.tolist(), (kept | restrided).tolist(), realized.tolist(), ordered.tolist())
        uses = Uses(*columns, convolves, images, done.uses)
        padding = Padding() if self._pads else None
        lowering = Lowering(Stores(self._calls, self._weights, strides, self.backend, padding), uses, self._rules)
        dense = unpadded(self._calls, done.values, self._results[backward]) if padding else frozenset[int]()
        buffers, moved = lowering.take_arguments(arguments, strides, hosted), dict[int, Buffer]()
        copies = HostCopies(graph, values, hosted, backward=backward, copy_stream=self.copy_stream)
        for v in done.values:
            if padding:
                padding.active = v not in dense
            for copy in copies.due_before(v):
                copy_step(lowering, copy, moved)
            if v in done.copies:
                lowering.views[v] = lowering.views[done.copies[v]]  # an earlier pass of the compiler removes the copy
            elif v in done.products:
                product, addend = done.products[v]
                views = [lowering.views[addend], *lowering.arguments(self._calls[product])]
                lowering.settle(v, call_library(lowering, self._calls[v], views, product))
            elif v in done.unfused:
                lowering.settle(v, product_and_bias(lowering, self._calls[v]))
            else:
                lowering.run(v)
        if padding:
            padding.active = True
        for copy in copies.remaining():
            copy_step(lowering, copy, moved)
        scheduler = _SCHEDULERS[self.backend.name](lowering.finish())
        outputs = {
            v: buffer for v, view in lowering.views.items() if returned[v] and (buffer := view.box.buffer) is not None
        }
        with_gaps = {
            v: strides
            for v, buffer in outputs.items()
            if buffer.storage_bytes != buffer.bytes and (strides := layout(lowering.views[v])) is not None
        }
        kept = outputs if backward else outputs | moved
        return ScheduledPass(scheduler, tuple(scheduler.groups()), buffers, kept, with_gaps)

    def _restrided(self, producers: IntArray, readers: IntArray) -> BoolArray:
        return mask_of(producers[self._restriding[readers]], len(self.graph))

    def _with_channels_last(self, forward: IntArray, hosted: BoolArray) -> dict[int, Shape]:
        if not self._turns_images(forward):
            return {}
        graph = self.graph
        uses = mask_of(forward, len(graph))[graph.consumers]
        own = hosted | graph.output | self._restrided(graph.producers[uses], graph.consumers[uses])
        shapes = {v: self._calls[v].shape for v in self._last if not own[v]}
        images = {v: channels_last(shape) for v, shape in shapes.items() if is_dense(shape, self._strides[v])}
        changed = {v for v, last in images.items() if not same_layout(self._calls[v].shape, last, self._strides[v])}
        return {v: last for v, last in images.items() if v in changed or not graph.input[v]}

    # Each buffer counts once (`BaseSchedulerNode.get_read_write_buffers_sizes`).
    def _kernel(self, scheduled: ScheduledPass, group: LoopGroup, backward: bool) -> Kernel:
        loop = group.nests[0].loop
        alone = len(group.nests) == 1
        writes = [b for b in group.written if alone or scheduled.scheduler.is_needed_outside(b, group)]
        reads = [b for b in group.used if b not in group.written]
        moved = {b: b.bytes for b in (*reads, *writes)}
        if alone and loop.generated:
            # Each access of a single nest reaches at most one element of the buffer per point of the loop.
            points = prod(loop.sizes) * prod(loop.reduced)
            moved = {b: min(size, points * b.itemsize * len(group.used[b])) for b, size in moved.items()}
        values = {v for nest in group.nests for v in nest.loop.values}
        if loop.generated:
            values -= scheduled.library_values
        read, written = (tuple(dict.fromkeys(self._base[b.value] for b in of)) for of in (reads, writes))
        read_bytes, written_bytes = (sum([moved[b] for b in of]) for of in (reads, writes))
        return Kernel(backward, loop.generated, tuple(sorted(values)), read, written, read_bytes, written_bytes)
