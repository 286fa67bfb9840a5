"""Says when values take memory under a plan, and prices memory by the time at which it is taken.

A budget of saved bytes prices all of them alike. But a peak lies at some steps, and what is alive at others is free.
So each byte is priced at each moment: most at those where most is alive. For such prices one minimum cut finds the best
plan, as if each value took memory when it does under the plan before; that plan is simulated, and priced anew.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from remat.facts.columns import BoolArray, IntArray
from remat.predict.memory import Simulator
from remat.predict.memory.order import Order
from remat.problem.problem import Problem

_LARGEST = 2.0**50
"""What all prices may add up to: doubles are exact up to 2^53, and solvers count so far."""


@dataclass(frozen=True, eq=False)
class Liveness:
    """Bytes alive under a plan, and when values take memory: at moments that all plans of a graph share.

    Moment v is when the forward pass computes the value v, of n; moment n + v is when the backward pass does, and what
    it recomputes for that; moment 2n is its end.

    Attributes:
        alive_bytes: (2n + 1,) the most at each moment.
        asked: (n,) when the backward pass needs a value for the first time; for what it does not need, as if nothing
            was saved.
        read: (n,) when the backward pass reads the storage that it lives in for the last time, but not before `asked`.
    """

    alive_bytes: IntArray
    asked: IntArray
    read: IntArray


class TimeIndexedPrices:
    """Finds the moments of many plans of one graph, and prices a problem about it by them.

    Args:
        simulator: of the graph.
        problem: its costs and bans.
    """

    def __init__(self, simulator: Simulator, problem: Problem) -> None:
        self._simulator, self._problem = simulator, problem
        facts, graph = simulator.facts, simulator.graph
        n, base = len(graph), graph.base
        left, barred = np.arange(n), np.zeros(n, np.bool_)
        reads = graph.in_forward[facts.readers]
        np.maximum.at(left, base[facts.producers[reads]], facts.readers[reads])
        barred[base[facts.producers[facts.barred]]] = True
        in_memory = (base == np.arange(n)) & ~facts.foreign & (~facts.fusible | barred | graph.gradient)
        self._left = left[base][graph.plannable]
        self._again_bytes = np.where(in_memory, graph.storage_bytes, 0)[graph.plannable]
        self._first = self._asked(Order.of(facts, np.zeros(n, np.bool_)))

    def moments(self, saved: BoolArray) -> Liveness:
        """Finds the moments of the plan that saves some values, of all in the graph."""
        facts, base = self._simulator.facts, self._simulator.graph.base
        order, alive = self._simulator.alive(saved)
        asked = np.where(order.asked_at <= len(facts), self._asked(order), self._first)
        most = np.zeros(2 * len(facts) + 1, np.int64)
        np.maximum.at(most, np.concatenate([order.forward, asked[order.backward]]), alive)
        read, reads = asked.copy(), order.backward_at[facts.readers] >= 0
        np.maximum.at(read, base[facts.producers[reads]], asked[facts.readers[reads]])
        return Liveness(most, asked, np.maximum(asked, read[base]))

    def _asked(self, order: Order) -> IntArray:
        facts, n = self._simulator.facts, len(self._simulator.graph)
        when = np.where(facts.live | (np.arange(n) >= facts.turn), np.arange(n), order.asked_at)
        return n + np.minimum(when, n)

    def priced(self, moments: Liveness, byte: float, focus: float) -> Problem:
        """Adds prices of memory to those of the problem, in a unit so small that they are whole.

        Args:
            moments: when memory is taken, and how much.
            byte: what a byte costs that is always alive, in the problem's unit.
            focus: the price at a moment falls by a factor of e for each 1 / focus of the peak that is not alive.
        """
        problem, values = self._problem, self._simulator.graph.plannable
        most = moments.alive_bytes
        share = np.where(most > 0, np.exp(focus * (most / max(int(most.max()), 1) - 1)), 0)
        paid = np.concatenate([[0], np.cumsum(share)]) * (byte / max(float(share.sum()), 1))
        asked, read = moments.asked[values], moments.read[values]
        save = problem.save_cost + problem.save_bytes * (paid[read + 1] - paid[self._left + 1])
        again = problem.recompute_cost + self._again_bytes * (paid[read + 1] - paid[asked])
        unit = _LARGEST / max(float(save.sum() + again.sum()), 1)
        return problem.priced(
            save_cost=_whole(save * unit),
            recompute_cost=_whole(again * unit),
            cannot_save=problem.cannot_save,
            cannot_recompute=problem.cannot_recompute,
            budget_bytes=None,
        )


def _whole(prices: NDArray[np.float64]) -> IntArray:
    return np.rint(prices).astype(np.int64)
