"""Chooses what to save, if every backward kernel reads what it needs once, and all of them share one write.

Closer than any cut to what kernels move: `MultiRead` pays for a read of v by every kernel that may need
it, whatever else is saved; here a kernel pays for v only if it reads v. A kernel k either reads v from
memory (r), or computes it again from what else it has (a):

    minimize    sum_v,k B(v) * r[v,k]  +  sum_v W(v) * s[v]  +  sum_w B(w) * m[w]
    subject to  r[v,k] + a[v,k] >= 1           where an operator of k that a gradient depends on uses v
                r[v,k] + a[v,k] >= a[x,k]      where x uses v, and k may compute x
                r[v,k] <= s[v] + m[v]          what is read is in memory
                a[v,k] <= 1 - s[v]             what is saved is handed over, and never computed again
                m[w]   <= 1 - s[w]
                s binary, the rest between 0 and 1

B(v) are the bytes that reading v moves; W(v) is B(v), or 0 if the forward pass writes v anyway. Some values w no
kernel can compute on its way: a library call needs them in memory, or they are such a call. Then m[w] = 1 runs a
kernel that computes and writes w; in its own rows `>= m[w]` stands for `>= 1`. A gradient that depends on no
tangent is needed, too, but read by no kernel. For binary s the rest has an
optimum in whole numbers, which `price` computes without a solver.

This is no cut. With two kernels that may need v, the write is due if kernel 1 needs v, *or* kernel 2 does not
compute it: an "or" of a variable and the complement of another is not submodular.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

import remat
from costmodels import ByteTraffic
from costmodels.backward_kernels import BackwardKernels
from costmodels.byte_traffic import Mode
from remat import Graph, InvalidOption, InvalidPlan, LimitReached, Plan, RematError, UnsupportedProblem
from remat.facts.columns import BoolArray, IntArray
from remat.problem.feasibility import check_feasible


@dataclass(frozen=True)
class Answer:
    """Holds what `SharedWrite.solve` found.

    Attributes:
        plan: the saved set, as a plan that `remat.check_plan` has passed.
        bytes: its price, computed anew in whole numbers.
        bound: no plan costs less, as claimed by HiGHS; equal to `bytes` where it claims an optimum.
        saved_bytes: memory of the plan's activations, as the budget counts it.
    """

    plan: Plan
    bytes: int
    bound: int
    saved_bytes: int

    @property
    def gap(self) -> float:
        """(bytes - bound) / bytes: how far from optimal the plan may be at most."""
        return (self.bytes - self.bound) / self.bytes if self.bytes else 0.0


@dataclass(frozen=True, eq=False)
class SharedWrite:
    """Holds the program of one graph, which `of` states and `solve` solves.

    Attributes:
        graph: the joint graph of n values.
        kernels: for each kernel of the backward pass, the values outside the tangents' closure that it uses.
        stuck, unsaveable: (n,) what may not be recomputed, or saved.
        apart: (n,) what a kernel of its own computes and writes if it is recomputed.
        read_bytes, write_bytes: (n,) what one read moves, and the write that is due to a save alone.
    """

    graph: Graph
    kernels: tuple[frozenset[int], ...]
    stuck: BoolArray
    unsaveable: BoolArray
    apart: BoolArray
    read_bytes: IntArray
    write_bytes: IntArray

    @classmethod
    def of(cls, graph: Graph, mode: Mode = "conservative") -> SharedWrite:
        """States the program under the bans of `ByteTraffic`, without the one that m[w] makes a price of.

        Raises:
            Infeasible: the bans leave no plan.
        """
        problem = ByteTraffic(mode=mode, rules={"materialized_in_backward": False}).pose(graph)
        check_feasible(problem)
        stuck, unsaveable = map(graph.for_all_values, (problem.cannot_recompute.mask, problem.cannot_save.mask))
        backward = BackwardKernels.of(graph, stuck)
        return cls(
            graph=graph,
            kernels=_uses(graph, backward.kernels),
            stuck=stuck,
            unsaveable=unsaveable,
            apart=backward.apart,
            read_bytes=graph.moved_bytes,
            write_bytes=np.where(backward.written, 0, graph.moved_bytes),
        )

    @cached_property
    def returned(self) -> frozenset[int]:
        """Gradients that depend on no tangent: in memory at the end, saved or not, though no kernel reads them."""
        return frozenset(np.flatnonzero(self.graph.gradient & ~self.graph.in_tangents).tolist())

    def reach(self, uses: Iterable[int], stops: BoolArray) -> list[int]:
        """Lists what a kernel reads or has at hand: what it uses, and the arguments of all but where it stops."""
        seen = set(uses)
        stack = list(seen)
        while stack:
            if not stops[v := stack.pop()]:
                further = set(self.graph.operands[v]) - seen
                seen |= further
                stack.extend(further)
        return sorted(seen)

    def price(self, saved: BoolArray) -> int:
        """Computes the bytes that a saved set moves.

        Raises:
            InvalidPlan: something needed is neither saved nor may be recomputed.
        """
        in_memory = saved | self.apart
        total = 0
        written: set[int] = set()
        again: set[int] = set()  # computed and written once more, by kernels of their own
        waiting = [(uses, True) for uses in self.kernels] + [(self.returned, False)]
        while waiting:
            uses, reads = waiting.pop()
            for v in self.reach(uses, in_memory):
                if self.stuck[v] and not saved[v]:
                    raise InvalidPlan(f"{self.graph.names[v]!r} is needed, but neither saved nor may be recomputed")
                total += int(self.read_bytes[v]) if in_memory[v] and reads else 0
                if saved[v]:
                    written.add(v)
                elif in_memory[v] and v not in again:
                    again.add(v)
                    waiting.append((frozenset(self.graph.operands[v]), True))
        return total + int(self.write_bytes[list(written)].sum()) + int(self.read_bytes[list(again)].sum())

    def solve(self, *, time_limit_s: float = 60.0, budget_bytes: int | None = None) -> Answer:
        """Finds the best saved set that HiGHS can, with its bound.

        Args:
            time_limit_s: when to stop; the gap then says how far from optimal the answer may be.
            budget_bytes: the most memory of saved activations, a value that shares a storage counted each time.

        Raises:
            InvalidOption: the time limit is no positive number.
            InvalidProblem: the budget is no number of bytes.
            LimitReached: nothing was found in time, or within the budget.
            UnsupportedProblem: the prices are too large for HiGHS.
        """
        if not (type(time_limit_s) in (int, float) and time_limit_s > 0):  # HiGHS runs without a limit instead
            raise InvalidOption(f"SharedWrite.solve: time_limit_s must be a positive number, got {time_limit_s!r}")
        problem = replace(remat.plugin.base_problem(self.graph), budget_bytes=budget_bytes)
        program = _Program.of(self, budget_bytes)
        saved, least = program.run(time_limit_s)
        plan = remat.Choice.from_saved(problem, saved[self.graph.plannable]).plan(problem)
        remat.check_plan(problem, plan)
        kept = np.isin(self.graph.names, plan.saved)
        size = int(self.graph.activation_bytes[kept].sum())
        if budget_bytes is not None and size > budget_bytes:
            raise RematError(f"HiGHS saves {size} bytes, but the budget is {budget_bytes}")
        bytes_ = self.price(kept)
        return Answer(plan, bytes_, min(least, bytes_), size)


def _uses(graph: Graph, kernels: list[int]) -> tuple[frozenset[int], ...]:
    """Finds what each kernel uses of the values outside the tangents' closure."""
    found: dict[int, set[int]] = {}
    crossing = ~graph.in_tangents[graph.producers] & graph.in_tangents[graph.consumers]
    for u, v in zip(graph.producers[crossing].tolist(), graph.consumers[crossing].tolist(), strict=True):
        for k in range(kernels[v].bit_length()):
            if kernels[v] >> k & 1:
                found.setdefault(k, set()).add(u)
    return tuple(frozenset(uses) for uses in found.values())


@dataclass(eq=False)
class _Program:
    """Collects columns and rows for HiGHS.

    Attributes:
        instance: of n values.
        prices, upper: of each column; the first n are s, the next n are m.
        entries: of the matrix: row, column, factor.
        low, high: of each row.
    """

    instance: SharedWrite
    prices: list[int]
    upper: list[int]
    entries: list[tuple[int, int, int]] = field(default_factory=list[tuple[int, int, int]])
    low: list[float] = field(default_factory=list[float])
    high: list[float] = field(default_factory=list[float])

    @classmethod
    def of(cls, instance: SharedWrite, budget_bytes: int | None) -> _Program:
        n = len(instance.graph)
        prices = np.concatenate([instance.write_bytes, np.where(instance.apart, instance.read_bytes, 0)])
        program = cls(instance, prices.tolist(), np.concatenate([~instance.unsaveable, instance.apart]).tolist())
        for uses in instance.kernels:
            program.add_kernel(uses, None)
        for w in np.flatnonzero(instance.apart).tolist():
            program.add_kernel(instance.graph.operands[w], n + w)
            program.add_row({w: 1, n + w: 1}, high=1)
        program.add_kernel(instance.returned, None, reads=False)
        if budget_bytes is not None:
            sizes = instance.graph.activation_bytes.tolist()
            program.add_row({v: size for v, size in enumerate(sizes) if size}, high=budget_bytes)
        return program

    def add_kernel(self, uses: Iterable[int], runs: int | None, *, reads: bool = True) -> None:
        """Adds one kernel; `runs` is the column that says whether it runs, None if it does in any case."""
        its, n = self.instance, len(self.instance.graph)
        uses = list(uses)
        barred = its.stuck | its.apart
        reached = its.reach(uses, barred)
        read = {v: self.add_column(int(its.read_bytes[v]) if reads else 0) for v in reached}
        again = {v: self.add_column(0) for v in reached if not barred[v]}

        def have(v: int) -> dict[int, int]:
            return {read[v]: 1} | ({again[v]: 1} if v in again else {})

        for v in uses:
            self.add_row(have(v) | ({} if runs is None else {runs: -1}), low=1 if runs is None else 0)
        for x, column in again.items():
            for v in its.graph.operands[x]:
                self.add_row(have(v) | {column: -1}, low=0)
            self.add_row({column: 1, x: 1}, high=1)
        for v, column in read.items():
            self.add_row({column: 1, v: -1, n + v: -1}, high=0)

    def add_column(self, price: int) -> int:
        self.prices.append(price)
        self.upper.append(1)
        return len(self.prices) - 1

    def add_row(self, row: dict[int, int], *, low: float = -math.inf, high: float = math.inf) -> None:
        self.entries += [(len(self.low), column, factor) for column, factor in row.items()]
        self.low.append(low)
        self.high.append(high)

    def run(self, time_limit_s: float) -> tuple[BoolArray, int]:
        """Runs HiGHS; returns (n,) saved values, and a bound on every plan's price."""
        from scipy.optimize import Bounds, LinearConstraint, milp
        from scipy.sparse import csr_matrix

        n, unit = len(self.instance.graph), max(math.gcd(*self.prices), 1)
        if not n:
            return np.zeros(0, np.bool_), 0
        if sum(self.prices) >= 2**53 * unit:
            raise UnsupportedProblem(
                f"HiGHS takes prices that add up to less than 2**53 units, got {sum(self.prices)} in units of {unit}"
            )
        rows, columns, factors = np.array(self.entries, np.int64).reshape(-1, 3).T
        shape = len(self.low), len(self.prices)
        matrix = csr_matrix((factors.astype(np.float64), (rows, columns)), shape=shape)
        found: Any = milp(
            np.array([price // unit for price in self.prices], np.float64),
            integrality=np.arange(len(self.prices)) < n,
            bounds=Bounds(0, np.array(self.upper)),
            constraints=LinearConstraint(matrix, self.low, self.high),
            options={"mip_rel_gap": 0, "time_limit": time_limit_s},  # HiGHS' own gap is 1e-4
        )
        if found.x is None:
            raise LimitReached(f"HiGHS found no plan: {found.message}; raise time_limit_s or budget_bytes")
        # Prices are whole numbers of units: so is every plan's, but HiGHS' bound is a float.
        return found.x[:n] > 0.5, math.ceil(found.mip_dual_bound * (1 - 1e-9) - 1e-6) * unit
