"""States how long tensors stay in memory, after Bartan et al. (ICML 2023), "MOCCASIN: efficient tensor
rematerialization for neural networks": a tensor has a few retention intervals, and each begins with computing it.

Their program of CP-SAT has a start and an end for each interval, and a `cumulative` constraint limits memory. Operators
run in one given order, and a tensor has at most C intervals; C = 2 is theirs, too.

Changed: the second interval of a tensor begins in the backward pass, since each pass computes a value once. It begins
where the tensor is first asked for, as in the benchmark's order; their program may begin it earlier, while operands are
still in memory, but then promises less memory than the plan takes. What the backward pass reads is the end of an
interval; gradients, and what it holds beside, take memory that does not depend on the plan; and what a compiler keeps
in registers takes no memory unless it is saved (`backward_memory`). As this is not yet the memory of the benchmark, the
program is solved up to `ROUNDS` times. Its limit falls while plans exceed the budget, and rises where they do not, or
where there was no plan in time. Where their first phase looks for a plan that fits into memory, here the search begins
at the cheapest of Chen's plans (`chen.at_any_place`) that does, or at the one that takes least.
"""

# OR-Tools ships few types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.rivals import chen
from experiments.rivals.backward_memory import held_beside, in_registers
from experiments.rivals.tensor_instance import LIMIT_S, ScorePlan, TensorInstance
from remat.facts.columns import BoolArray, IntArray
from remat.problem.problem_file import Budget
from solvers.cpsat_backend import new_backend, run_search

ROUNDS, DETERMINISTIC_S, WALL_S = 6, 1.0, 12.0
UNITS = 100_000
"""Into which a limit of memory is divided; sizes are rounded up."""


@dataclass(frozen=True, eq=False)
class Times:
    """Holds the order of both passes: tensor p is computed at time p, and moments of the backward pass follow.

    Attributes:
        first, last: (k,) the times at which the backward pass reads each tensor first and last; -1 for none.
        moments: (m,) the nodes of the backward pass that have a time.
        last_forward: (k,) the time of the last tensor of the forward pass that is computed from each tensor, or from
            what is computed from it in registers.
        registers: (k,) it takes no memory unless it is saved.
    """

    first: IntArray
    last: IntArray
    moments: IntArray
    last_forward: IntArray
    registers: BoolArray

    @classmethod
    def of(cls, instance: TensorInstance) -> Times:
        """Gives a time to each node that may be the first to ask for a tensor, or the last to read it."""
        k, asked = len(instance), instance.asked_at
        moments = np.unique(np.concatenate([asked[asked <= len(instance.graph)], instance.last_read[instance.needed]]))
        first, last = (
            np.where(instance.needed, k + np.searchsorted(moments, reads), -1)
            for reads in (instance.first_read, instance.last_read)
        )
        last_forward, registers = np.arange(k), in_registers(instance)
        for p in np.flatnonzero(instance.forward)[::-1].tolist():
            for u in instance.operands[p]:
                last_forward[u] = max(last_forward[u], last_forward[p] if registers[p] else p)
        return cls(first, last, moments, last_forward, registers)


@dataclass(frozen=True, eq=False)
class Schedule:
    """Holds the intervals of a plan.

    Attributes:
        recomputed, kept: (k,) whether there is a second interval; and whether the backward pass reads the first one.
        until, from2, until2: (k,) the end of the first, the beginning and the end of the second; without a second one,
            it begins after all moments.
    """

    recomputed: BoolArray
    kept: BoolArray
    until: IntArray
    from2: IntArray
    until2: IntArray

    @classmethod
    def of(cls, instance: TensorInstance, times: Times, saved: BoolArray) -> Schedule:
        """Computes a tensor again where it is first asked for, and keeps it as long as it is read."""
        k, never = len(instance), len(instance) + len(times.moments)
        saved = saved | instance.fixed
        from2, until, until2 = np.where(times.last >= 0, times.first, never), times.last.copy(), times.last.copy()
        for p in range(k - 1, -1, -1):
            if not saved[p] and from2[p] < never:
                until2[p] = max(until2[p], from2[p])
                for u in instance.operands[p]:
                    from2[u] = min(from2[u], from2[p])
                    until2[u] = max(until2[u], until2[p] if times.registers[p] else from2[p])
        recomputed, kept = ~saved & (from2 < never), saved & (from2 < never)
        until = np.where(recomputed, times.last_forward, np.maximum(times.last_forward, until2))
        from2 = np.where(recomputed, from2, never)
        return cls(recomputed, kept, until, from2, np.maximum(until2, from2))

    def peak(self, instance: TensorInstance, times: Times, other_bytes: IntArray) -> int:
        """Returns the most bytes of all intervals that overlap, and of what the backward pass holds beside, (m,)."""
        k = len(instance)
        change = np.zeros(k + len(other_bytes) + 2, np.int64)
        first = self.kept | (instance.forward & ~times.registers)
        second = self.recomputed & ~times.registers
        for which, start, end in ((first, np.arange(k), self.until), (second, self.from2, self.until2)):
            np.add.at(change, start[which], instance.bytes[which])
            np.add.at(change, end[which] + 1, -instance.bytes[which])
        change = change.cumsum()
        change[k : k + len(other_bytes)] += other_bytes
        return int(change.max(initial=0))


@dataclass(frozen=True, eq=False)
class Setting:
    """Holds what the programs of all limits have in common.

    Attributes:
        times: of the tensors of `instance`.
        other_bytes: (m,) what the backward pass holds beside tensors, at each of its m moments.
        starts: Chen's plans.
    """

    instance: TensorInstance
    times: Times
    other_bytes: IntArray
    starts: tuple[Schedule, ...]

    @classmethod
    def of(cls, instance: TensorInstance) -> Setting:
        """Gives times to an instance, and schedules Chen's plans by them."""
        times = Times.of(instance)
        starts = tuple(Schedule.of(instance, times, saved) for saved in chen.at_any_place(instance))
        return cls(instance, times, held_beside(instance)[times.moments], starts)

    def peak(self, plan: Schedule) -> int:
        """Returns the most bytes of a schedule."""
        return plan.peak(self.instance, self.times, self.other_bytes)


class Retention:
    """Holds the program for one limit of memory."""

    def __init__(self, setting: Setting, limit_bytes: int) -> None:
        from ortools.sat.python import cp_model

        self.program: Any = cp_model.CpModel()
        instance = setting.instance
        self._setting, self._instance, self._times = setting, instance, setting.times
        k, end = len(instance), len(instance) + len(self._times.moments)
        self.recomputed, self._kept = ([self.program.new_bool_var("") for _ in range(k)] for _ in range(2))
        self._until = [self.program.new_int_var(late, end, "") for late in self._times.last_forward.tolist()]
        self._from2, self._until2 = ([self.program.new_int_var(k, end, "") for _ in range(k)] for _ in range(2))
        for p in range(k):
            self._state(p)
        self._begin_where_asked()
        self._limit(limit_bytes)
        self._hint(limit_bytes)
        unit = int(np.gcd.reduce(instance.cost)) or 1
        self.program.minimize(cp_model.LinearExpr.weighted_sum(self.recomputed, (instance.cost // unit).tolist()))

    def _state(self, p: int) -> None:
        program, again, times = self.program, self.recomputed[p], self._times
        program.add(self._until2[p] >= self._from2[p])
        if self._instance.fixed[p]:
            program.add(again == 0)
        if times.last[p] >= 0:
            program.add_bool_or(again, self._kept[p])
            program.add(self._until[p] >= int(times.last[p])).only_enforce_if(~again)
            program.add(self._until2[p] >= int(times.last[p])).only_enforce_if(again)
        for u in self._instance.operands[p]:  # in memory when `p` is computed again
            read_until = self._until2[p] if times.registers[p] else self._from2[p]
            program.add_bool_or(~again, self.recomputed[u], self._kept[u])
            program.add(self._until[u] >= read_until).only_enforce_if(again, ~self.recomputed[u])
            program.add(self._until2[u] >= read_until).only_enforce_if(again, self.recomputed[u])

    def _begin_where_asked(self) -> None:
        """States that a second interval begins with the first reader, or with the first that is computed again."""
        program, k = self.program, len(self._instance)
        never = k + len(self._times.moments)
        readers = [list[int]() for _ in range(k)]
        for p, operands in enumerate(self._instance.operands):
            for u in operands:
                readers[u].append(p)
        for p, (again, from2) in enumerate(zip(self.recomputed, self._from2, strict=True)):
            first = int(self._times.first[p])
            asked = program.new_int_var(k, never, "")
            program.add_min_equality(asked, [never if first < 0 else first, *(self._from2[q] for q in readers[p])])
            program.add(from2 == asked).only_enforce_if(again)
            program.add(from2 == never).only_enforce_if(~again)

    def _limit(self, limit_bytes: int) -> None:
        program, k = self.program, len(self._instance)
        unit = max(limit_bytes / UNITS, 1)
        intervals, sizes = list[Any](), list[int]()
        for p, size in enumerate(np.ceil(self._instance.bytes / unit).astype(np.int64).tolist()):
            longest = k + len(self._times.moments) + 1
            is_register, again = self._times.registers[p], self.recomputed[p]
            length, ends = program.new_int_var(1, longest, ""), self._until[p] + 1
            if self._instance.forward[p] and not is_register:
                intervals.append(program.new_interval_var(p, length, ends, ""))
            else:  # in memory from the forward pass on only if it is saved
                intervals.append(program.new_optional_interval_var(p, length, ends, self._kept[p], ""))
            if not is_register:
                length, ends = program.new_int_var(1, longest, ""), self._until2[p] + 1
                intervals.append(program.new_optional_interval_var(self._from2[p], length, ends, again, ""))
            sizes += [size] * (len(intervals) - len(sizes))
        for i, size in enumerate(np.ceil(self._setting.other_bytes / unit).astype(np.int64).tolist()):
            intervals.append(program.new_fixed_size_interval_var(k + i, 1, ""))
            sizes.append(size)
        program.add_cumulative(intervals, sizes, int(limit_bytes / unit))

    def _hint(self, limit_bytes: int) -> None:
        """Hints at the cheapest of Chen's plans that fits by this program, else at the one that takes least, if any."""

        def rank(plan: Schedule) -> tuple[int, int]:
            return max(self._setting.peak(plan), limit_bytes), int(self._instance.cost[plan.recomputed].sum())

        plan = min(self._setting.starts, key=rank, default=None)
        if plan is None:
            return
        columns = (self.recomputed, plan.recomputed), (self._kept, plan.kept), (self._until, plan.until)
        for variables, values in (*columns, (self._from2, plan.from2), (self._until2, plan.until2)):
            for variable, value in zip(variables, values.tolist(), strict=True):
                self.program.add_hint(variable, value)

    def solve(self) -> BoolArray | None:
        """Returns (k,) what is not computed again by the best plan that was found; None without any."""
        from ortools.sat.python import cp_model

        backend = new_backend(1)
        backend.parameters.linearization_level = 1
        backend.parameters.interleave_search = True  # with one worker, it improves plans by large neighbourhoods, too
        backend.parameters.max_deterministic_time = DETERMINISTIC_S
        backend.parameters.max_time_in_seconds = WALL_S
        if run_search(backend, self.program) not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return None
        return np.array([not backend.boolean_value(literal) for literal in self.recomputed], np.bool_)


def within_peak(instance: TensorInstance, budget: Budget, offer: ScorePlan) -> None:
    """Offers a plan for each round, until the processor time is over."""
    low, high, limit = 0.5 * budget.bytes, 2.0 * budget.bytes, float(budget.bytes)
    end = time.process_time() + LIMIT_S
    setting = Setting.of(instance)
    for _ in range(ROUNDS):
        saved = Retention(setting, int(limit)).solve()
        peak = 0 if saved is None else offer(saved).peak_bytes
        if peak > budget.bytes:
            high = limit
            limit = max(limit * budget.bytes / peak, (low + 2 * limit) / 3)
        else:
            low = limit
            limit = (low + high) / 2
        if time.process_time() > end or high - low < 0.01 * budget.bytes:
            return
