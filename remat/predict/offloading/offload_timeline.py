"""Simulates kernels and concurrent copies over both passes: see `remat.predict.offloading` for the model."""

# pandas ships partial types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from remat.answer.plan import Plan
from remat.errors import InvalidOption
from remat.facts.columns import BoolArray, IntArray, frozen, is_whole
from remat.facts.graph import Graph
from remat.predict.memory.lifetimes import Lifetimes, alive_bytes
from remat.predict.memory.order import Order, first_readers
from remat.predict.offloading.clock import StepClock
from remat.predict.time.device import DeviceProfile
from remat.proof.validate import legal_choice
from remat.words import human_bytes

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class Copies:
    """Holds the k copies of one direction, in execution order.

    Attributes:
        values: (k,) positions in the graph of the copied values.
        start_ns, end_ns: (k,) times since the step began.
    """

    values: IntArray
    start_ns: IntArray
    end_ns: IntArray


@dataclass(frozen=True, eq=False)
class OffloadTimeline:
    """Represents a training step under a plan that offloads: T steps of compute, and concurrent copies.

    Attributes:
        names: the value that each step computes.
        backward: (T,) whether the step belongs to the backward pass.
        start_ns, end_ns: (T,) when it runs, since the training step began; the values of one kernel run together.
        device_bytes: (T,) live bytes on the device while the step runs, with its operands and results, without inputs
            and parameters (`remat.predict.memory`).
        out, back: the copies to the host, and those back.
        saved_bytes, host_bytes: bytes kept on the device, and on the host, between the passes.
        forward_ns: the end of the forward pass with its copies.
        ns: the end of the step.
        recomputed_ns: the time that recomputation adds.
        exposed_ns: the time that copies add.
    """

    names: tuple[str, ...]
    backward: BoolArray
    start_ns: IntArray
    end_ns: IntArray
    device_bytes: IntArray
    out: Copies
    back: Copies
    saved_bytes: int
    host_bytes: int
    forward_ns: int
    ns: int
    recomputed_ns: int
    exposed_ns: int

    @property
    def copied_ns(self) -> int:
        """Returns the time of all copies, hidden or not."""
        return sum(int((copies.end_ns - copies.start_ns).sum()) for copies in (self.out, self.back))

    @property
    def hidden_ns(self) -> int:
        """Returns the time of copies that run while kernels or other copies run."""
        return self.copied_ns - self.exposed_ns

    @property
    def added_ns(self) -> int:
        """Returns the time that the plan adds to a step without recomputation and copies."""
        return self.recomputed_ns + self.exposed_ns

    @property
    def peak_bytes(self) -> int:
        """Returns the most bytes that are alive on the device at once."""
        return int(self.device_bytes.max(initial=0))

    def __str__(self) -> str:
        ms = {what: f"{ns / 1e6:.4g} ms" for what, ns in vars(self).items() if what.endswith("ns") and not np.ndim(ns)}
        return (
            f"{ms['ns']}: {ms['recomputed_ns']} of it recompute, {ms['exposed_ns']} wait for copies\n"
            f"{len(self.out.values)} values, {human_bytes(self.host_bytes)}, wait on the host: their copies take "
            f"{self.copied_ns / 1e6:.4g} ms, {self.hidden_ns / 1e6:.4g} ms hidden\n"
            f"{human_bytes(self.saved_bytes)} saved on the device, which holds {human_bytes(self.peak_bytes)} at most"
        )

    def as_frame(self) -> pd.DataFrame:
        """Returns one row per step of compute: name, backward, start_ns, end_ns, device_bytes."""
        import pandas as pd

        columns = ("backward", "start_ns", "end_ns", "device_bytes")
        return pd.DataFrame({"name": self.names, **{column: getattr(self, column) for column in columns}})

    def show(self, path: str | Path | None = None) -> Figure:
        """Draws compute, copies out and copies in over time, and the bytes on the device.

        Args:
            path: a file to write, in the format of its suffix: .svg, .png, .pdf.

        Raises:
            NotInstalled: matplotlib is missing.
            InvalidOption: matplotlib has no format of that suffix.
        """
        from remat.predict.offloading.offload_picture import draw

        spans = [(one.start_ns, one.end_ns) for one in (self, self.out, self.back)]
        sizes = {"host_bytes": self.host_bytes, "forward_ns": self.forward_ns, "step_ns": self.ns}
        return draw(spans, self.device_bytes, **sizes, path=path)


def offload_timeline(
    graph: Graph, plan: Plan, device: str | Path | DeviceProfile, *, prefetch_ns: int | None = None
) -> OffloadTimeline:
    """Simulates a training step on one device under a plan that offloads values to the host.

    Args:
        graph: the joint graph.
        plan: a legal plan for it; it may offload.
        device: a known name such as "h100", a file, "here", or a profile; with a link to the host.
        prefetch_ns: how long before a kernel the copies that it needs may begin, in nanoseconds of compute, rounded to
            whole kernels. None means the whole backward pass.

    Raises:
        InvalidPlan: the plan names unknown values, is not legal, or was made for another graph.
        InvalidOption: the device has no link to a host, or `prefetch_ns` is no whole number from 0 on.
        UnknownName: no device has this name.
    """
    if prefetch_ns is not None and (not is_whole(prefetch_ns) or prefetch_ns < 0):
        raise InvalidOption(f"prefetch_ns must be whole nanoseconds from 0 on, or None, got {prefetch_ns!r}")
    return simulated(StepClock.of(graph, device), plan, prefetch_ns)


def simulated(clock: StepClock, plan: Plan, prefetch_ns: int | None = None) -> OffloadTimeline:
    choice = legal_choice(clock.graph, plan)
    return Simulated.of(clock, choice.saved, choice.offloaded, prefetch_ns).timeline


@dataclass(frozen=True, eq=False)
class Simulated:
    """Represents a timeline, and the copies that delay it most.

    The last two fields give lower bounds on the time of every plan (`remat.improve.offload_search`).
    """

    timeline: OffloadTimeline
    # from this time on, copies to the host run without a pause, and the last one ends the forward pass; None if a
    # kernel ends it.
    late_out_ns: int | None
    # the copies of all values that the backward pass needs up to this position of the graph run before the compute from
    # there on; None if no copy delays the end of the step.
    late_in_at: int | None

    @classmethod
    def of(cls, clock: StepClock, saved: BoolArray, offloaded: BoolArray, prefetch_ns: int | None = None) -> Simulated:
        """Simulates a plan.

        Args:
            saved: (n,) the saved values, on the device or the host.
            offloaded: (n,) those on the host.
        """
        graph, facts = clock.graph, clock.facts
        order = Order.of(facts, saved)
        away = np.flatnonzero(offloaded & order.saved)
        out = _copies_out(clock, away)
        forward_ns = max(clock.forward_end_ns, int(out.end_ns.max(initial=0)))
        backward = order.backward
        took = np.where(facts.live[backward], clock.backward_ns[backward], clock.again_ns[backward])
        needed = first_readers(graph, order.backward_at, len(order.forward) + len(backward))[away] - len(order.forward)
        reload = _Reload.of(took, needed, clock.copy_ns[away], prefetch_ns)
        back = Copies(away[reload.order], forward_ns + reload.start_ns, forward_ns + reload.end_ns)
        start = np.concatenate([_starts(clock.forward_ns[order.forward]), forward_ns + reload.step_ns[:-1]])
        duration = np.concatenate([clock.forward_ns[order.forward], took])
        ns = forward_ns + int(reload.step_ns[-1])
        recomputed = int(clock.again_ns[order.recomputed].sum())
        lives = Lifetimes.of(facts, order, True, offloaded)
        steps: list[int] = np.concatenate([order.forward, backward]).tolist()
        idle = np.flatnonzero(out.start_ns == clock.written_ns[out.values])
        line = OffloadTimeline(
            names=tuple(graph.names[v] for v in steps),
            backward=frozen(np.arange(len(steps)) >= len(order.forward)),
            start_ns=frozen(start),
            end_ns=frozen(start + duration),
            device_bytes=frozen(_device_bytes(graph, lives, out, back, start, start + duration)),
            out=out,
            back=back,
            saved_bytes=int(lives.size[lives.saved].sum()),
            host_bytes=int(graph.storage_bytes[away].sum()),
            forward_ns=forward_ns,
            ns=ns,
            recomputed_ns=recomputed,
            exposed_ns=ns - clock.compute_ns - recomputed,
        )
        return cls(
            line,
            int(clock.written_ns[out.values[idle[-1]]]) if forward_ns > clock.forward_end_ns else None,
            _position(facts.live, facts.first_tangent_reader, backward, reload.latest),
        )


# Copies run one after the other, none before its value is written.
def _copies_out(clock: StepClock, values: IntArray) -> Copies:
    order = values[np.lexsort((values, clock.written_ns[values]))]
    took, ready = clock.copy_ns[order], clock.written_ns[order]
    before = _starts(took)
    start = np.maximum.accumulate(ready - before) + before if len(order) else before
    return Copies(frozen(order), frozen(start), frozen(start + took))


@dataclass(frozen=True, eq=False)
class _Reload:
    order: IntArray
    # (k,) times of each copy, as late as possible without a delay.
    start_ns: IntArray
    end_ns: IntArray
    step_ns: IntArray  # (T + 1,) the start of each step of the backward pass, and the end
    latest: int | None  # the step whose wait delays the end; None if no wait does

    @classmethod
    def of(cls, took: IntArray, needed: IntArray, copy_ns: IntArray, prefetch_ns: int | None) -> _Reload:
        order = np.argsort(needed, kind="stable")
        before = np.append(0, took.cumsum())  # the end counts as a step
        waits: list[int] = []  # steps that wait, and the delay of all later steps
        late: list[int] = []
        end = 0
        for i in order.tolist():
            step, issued = int(needed[i]), 0
            if prefetch_ns is not None:
                at = int((before < before[step] - prefetch_ns).sum())
                earlier = bisect_right(waits, at)
                issued = int(before[at]) + (late[earlier - 1] if earlier else 0)
            end = max(end, issued) + int(copy_ns[i])
            delay = end - int(before[step])
            if delay > (late[-1] if late else 0):
                waits.append(step)
                late.append(delay)
        delays = np.zeros(len(before), np.int64)
        delays[waits] = late
        step_ns = before + np.maximum.accumulate(delays)
        last, ends = None, np.zeros(len(order), np.int64)
        for place in range(len(order) - 1, -1, -1):
            due = int(step_ns[needed[order[place]]])
            last = due if last is None else min(due, last)
            ends[place] = last
            last -= int(copy_ns[order[place]])
        return cls(order, ends - copy_ns[order], ends, step_ns, waits[-1] if waits else None)


# A storage is on the device until its copy to the host ends, and again from the begin of its copy back.
def _device_bytes(
    graph: Graph, lives: Lifetimes, out: Copies, back: Copies, start: IntArray, end: IntArray
) -> IntArray:
    n = len(graph)
    first, last = lives.start.copy(), lives.end.copy()
    rows = np.full(2 * n, -1)
    rows[lives.base + n * lives.backward] = np.arange(len(first))
    before, after = rows[out.values], rows[back.values + n]
    last[before] = np.maximum(last[before], np.searchsorted(start, out.end_ns, side="left") - 1)
    there = after >= 0  # without copies back after the last step
    returns = np.searchsorted(end, back.start_ns[there], side="right")
    first[after[there]] = np.minimum(first[after[there]], returns)
    return alive_bytes(first, last, lives.size, len(start))


def _position(live: BoolArray, turn: int, backward: IntArray, step: int | None) -> int | None:
    if step is None:
        return None
    own = np.flatnonzero(live[backward[step:]] | (backward[step:] >= turn))
    return int(backward[step + own[0]]) if len(own) else len(live)


def _starts(took: IntArray) -> IntArray:
    return took.cumsum() - took
