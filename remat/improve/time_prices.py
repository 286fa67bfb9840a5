"""Computes when values take memory under a plan, and prices memory depending on the moment at which it is taken.

A budget of saved bytes prices all bytes alike. But the peak occurs at some moments, and at others memory is free. So
each byte gets a price at each moment, the highest where most memory is alive. For such prices one minimum cut finds the
best plan, as long as live ranges stay those of the plan that the prices come from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from remat.answer.choice import Choice
from remat.facts.columns import BoolArray, IntArray
from remat.predict.memory import Simulator, Timeline
from remat.predict.memory.order import Order
from remat.problem.problem import Problem

# All prices together add up to at most this: doubles are exact up to 2^53, and solvers can count so far.
_LARGEST = 2.0**50


@dataclass(frozen=True, eq=False)
class Liveness:
    """Holds the live ranges of values, and the bytes alive, at moments that are the same for all plans of a graph.

    With n values, moment v is when the forward pass computes the value v. Moment n + v is when the backward pass
    computes v, and recomputes what v needs. Moment 2n is the end of the step.

    Attributes:
        alive_bytes: (2n + 1,) the most bytes alive at each moment.
        first_read: (n,) the moment at which the backward pass needs each value for the first time. If it does not need
            the value under this plan, the moment is that of the plan that saves nothing.
        last_read: (n,) the moment at which the backward pass reads the storage of the value for the last time, but not
            before `first_read`.
    """

    alive_bytes: IntArray
    first_read: IntArray
    last_read: IntArray

    @property
    def peak_bytes(self) -> int:
        """Returns the most bytes alive, of one call."""
        return int(self.alive_bytes.max())


@dataclass(frozen=True, eq=False)
class AboveLimit:
    """Holds what is alive above a limit at m moments, and which of k values could be absent then.

    Attributes:
        moments: (m,) their numbers in `Liveness`, ascending.
        excess_bytes: (m,) what is alive, less the limit.
        waiting_bytes: (k, m) the bytes of each value at the moments between its last read in the forward pass and its
            first read in the backward pass, 0 at all others.
    """

    moments: IntArray
    excess_bytes: IntArray
    waiting_bytes: IntArray


class TimeIndexedPrices:
    """Computes the live ranges of many plans of one graph, and prices a problem about this graph by them."""

    def __init__(self, simulator: Simulator, problem: Problem) -> None:
        self._simulator, self._problem = simulator, problem
        facts, graph = simulator.facts, simulator.graph
        n, base = len(graph), graph.base
        last_read, barred = np.arange(n), np.zeros(n, np.bool_)
        reads = graph.in_forward[facts.readers]
        np.maximum.at(last_read, base[facts.producers[reads]], facts.readers[reads])
        barred[base[facts.producers[facts.unfused]]] = True
        in_memory = (base == np.arange(n)) & ~facts.external & (~facts.fusible | barred | graph.gradient)
        self._last_forward_read = last_read[base][graph.plannable]
        self._recomputed_bytes = np.where(in_memory, graph.storage_bytes, 0)[graph.plannable]
        self._first_reads_if_nothing_saved = self._first_reads(Order.of(facts, np.zeros(n, np.bool_)))

    def moments(self, saved: BoolArray, step: Timeline | None = None) -> Liveness:
        """Computes the live ranges under the plan that saves these values, a mask (n,) over the graph.

        Args:
            step: the timeline of the compiled step under this plan; then the bytes alive are those of this timeline.
                None takes the simulation value by value, which counts also what kernels keep in registers.
        """
        facts, base = self._simulator.facts, self._simulator.graph.base
        order, alive = self._simulator.alive(saved)
        first_read = np.where(
            order.asked_at <= len(facts), self._first_reads(order), self._first_reads_if_nothing_saved
        )
        if step is None:
            most_alive = np.zeros(2 * len(facts) + 1, np.int64)
            np.maximum.at(most_alive, np.concatenate([order.forward, first_read[order.backward]]), alive)
        else:
            most_alive = self._alive_in(step)
        last_read, reads = first_read.copy(), order.backward_at[facts.readers] >= 0
        np.maximum.at(last_read, base[facts.producers[reads]], first_read[facts.readers[reads]])
        return Liveness(most_alive, first_read, np.maximum(first_read, last_read[base]))

    def above_limit(self, moments: Liveness, limit_bytes: int, most: int) -> AboveLimit:
        """Computes what is alive above a limit, and which values could be absent then.

        Args:
            moments: the live ranges of a plan.
            limit_bytes: the limit.
            most: about so many moments are listed, evenly spaced; one of them is that of the peak.
        """
        above = np.flatnonzero(moments.alive_bytes > limit_bytes)
        if len(above) > most:
            above = np.unique(np.append(above[:: -(-len(above) // most)], moments.alive_bytes.argmax()))
        first_read = moments.first_read[self._simulator.graph.plannable]
        waits = (self._last_forward_read[:, None] < above) & (above < first_read[:, None])
        excess_bytes = moments.alive_bytes[above] - limit_bytes
        return AboveLimit(above, excess_bytes, np.where(waits, self._problem.save_bytes[:, None], 0))

    def after(self, moments: Liveness, before: Choice, after: Choice) -> Liveness:
        """Estimates the bytes alive after a change of the plan that the live ranges are of.

        What is then saved is alive between its last read in the forward pass and its first one in the backward pass,
        and what is then recomputed is not. The estimate ignores that a saved value stays until its last read, and that
        others need not be recomputed for it.
        """
        differs = before.saved != after.saved
        size = np.where(after.saved, self._problem.save_bytes, -self._problem.save_bytes)[differs]
        changes = np.zeros(len(moments.alive_bytes) + 1, np.int64)
        np.add.at(changes, self._last_forward_read[differs] + 1, size)
        np.subtract.at(changes, moments.first_read[self._simulator.graph.plannable][differs], size)
        return replace(moments, alive_bytes=moments.alive_bytes + np.cumsum(changes)[:-1])

    def _alive_in(self, step: Timeline) -> IntArray:
        graph, n = self._simulator.graph, len(self._simulator.graph)
        values = np.array([graph.index[name] for name in step.names], np.int64)
        # A kernel that recomputes runs for the next kernel that computes a gradient.
        is_gradient = step.backward & graph.in_tangents[values]
        moments = np.where(is_gradient, n + values, values)
        following = np.where(~step.backward | is_gradient, np.arange(len(values)), len(values))
        following = np.minimum.accumulate(following[::-1])[::-1]
        alive = np.zeros(2 * n + 1, np.int64)
        np.maximum.at(alive, np.append(moments, 2 * n)[following], step.during_bytes)
        # Between two kernels nothing is allocated.
        return alive[np.maximum.accumulate(np.where(alive > 0, np.arange(2 * n + 1), 0))]

    def _first_reads(self, order: Order) -> IntArray:
        facts, n = self._simulator.facts, len(self._simulator.graph)
        when = np.where(facts.live | (np.arange(n) >= facts.first_tangent_reader), np.arange(n), order.asked_at)
        return n + np.minimum(when, n)

    def priced(self, moments: Liveness, byte: float, focus: float) -> Problem:
        """Returns the problem with prices of memory added to its costs, scaled so that they can be rounded to integers.

        Args:
            moments: when memory is taken, and how much.
            byte: the price of a byte that is alive all the time, in the problem's unit.
            focus: says how much the price falls at moments below the peak: by a factor of e for each 1 / focus of the
                peak that is not alive there.
        """
        problem, values = self._problem, self._simulator.graph.plannable
        alive = moments.alive_bytes
        share = np.where(alive > 0, np.exp(focus * (alive / max(int(alive.max()), 1) - 1)), 0)
        paid = np.concatenate([[0], np.cumsum(share)]) * (byte / max(float(share.sum()), 1))
        first_read, last_read = moments.first_read[values], moments.last_read[values]
        save = problem.save_cost + problem.save_bytes * (paid[last_read + 1] - paid[self._last_forward_read + 1])
        recompute = problem.recompute_cost + self._recomputed_bytes * (paid[last_read + 1] - paid[first_read])
        unit = _LARGEST / max(float(save.sum() + recompute.sum()), 1)
        return problem.priced(
            save_cost=np.rint(save * unit).astype(np.int64),
            recompute_cost=np.rint(recompute * unit).astype(np.int64),
            cannot_save=problem.cannot_save,
            cannot_recompute=problem.cannot_recompute,
            budget_bytes=None,
        )
