"""Writes Checkmate's integer program for an instance and a budget of the peak.

In stage t, R[t, v] says that v is computed, and S[t, v] that it is kept from stage t - 1 (Jain et al. 2020, section 4;
the letters are theirs). Within a stage, values are computed in topological order, each at most once. Where they count
what has been freed (FREE), this counts what is still needed, which bounds the memory more tightly: N[t, u, v] says that
u is needed when v or a later reader of u is computed in stage t, or by the next stage. While v is computed, there are

    v itself, of what comes before it what is needed, and of what comes after it what was kept <= budget.

Nothing is kept or computed without being read: no schedule costs less for it, and there are fewer of them. (With FREE,
CP-SAT had no proof after 30 s for a perceptron of 29 values at 0.7 of its peak; like this, after 1 s.)

Our own model is the same program with more rows, so that both can be proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Literal

from experiments.rivals.checkmate.instance import Instance

Rules = Literal["checkmate", "twice", "ours"]
"""Whether a value may be computed once a stage, twice, or once a pass and then right before it is first read."""

Row = tuple[dict[int, int], int]
"""Coefficients of variables, and what their sum is at most."""


class Program:
    """Minimizes a sum over 0-1 variables, subject to rows.

    Args:
        instance: what to schedule.
        budget_bytes: of the peak.
        rules: how often, and where, a value may be computed.

    Attributes:
        length: how many variables there are.
        cost: the price of each variable that has one.
        constant: what is to be added to the sum.
        rows: of the program.
        runs: of each stage, the variable R of each value that may be computed there.
        keeps: of each stage, and of the end, the variable S of each value that may be kept for it.
    """

    def __init__(self, instance: Instance, budget_bytes: int, rules: Rules = "checkmate") -> None:
        self.length, self.cost, self.constant = 0, dict[int, int](), -sum(instance.costs)
        self.rows, self.runs, self.keeps = list[Row](), list[dict[int, int]](), list[dict[int, int]]()
        self._instance, self._stages = instance, range(len(instance.stages))
        self._readers: list[list[int]] = [[] for _ in range(len(instance))]
        for v, operands in enumerate(instance.operands):
            for u in operands:
                self._readers[u].append(v)
        self._declare()
        unit = gcd(*instance.sizes) or 1
        for t in self._stages:
            self._add_order(t)
            self._add_memory(t, [size // unit for size in instance.sizes], budget_bytes // unit)
        for v in range(len(instance)):
            runs = [run[v] for run in self.runs if v in run]
            if v in instance.once or rules == "twice":
                self._at_most(1 if v in instance.once else 2, *runs)
            if rules == "ours":
                self._restrict(v)

    def schedule(self, values: Sequence[int]) -> tuple[int, ...]:
        """Lists what is computed, in order, given a value for each variable."""
        return tuple(v for runs in self.runs for v in sorted(runs) if values[runs[v]])

    def _declare(self) -> None:
        """R from the first stage on in which a value can be computed, its own or that of what it reads; S after it."""
        instance = self._instance
        own = {v: t for t, v in enumerate(instance.stages) if v is not None}
        begin: list[int] = []
        for v in range(len(instance)):
            begin.append(own.get(v, max((begin[u] for u in instance.operands[v]), default=0)))
        for t in self._stages:
            self.runs.append({v: self._new() for v in range(len(instance)) if begin[v] <= t})
            self.keeps.append({v: self._new() for v in range(len(instance)) if begin[v] < t})
            self.cost.update({variable: instance.costs[v] for v, variable in self.runs[t].items()})
        self.keeps.append({v: self._new() for v in instance.gradients | instance.outputs})

    def _add_order(self, t: int) -> None:
        instance, run, keep, after = self._instance, self.runs[t], self.keeps[t], self.keeps[t + 1]
        own = instance.stages[t]
        if own is not None:
            self._some(run[own])
        for v, variable in run.items():
            for u in instance.operands[v]:
                self._implies(variable, *self._there(t, u))
            if v in keep:
                self._at_most(1, variable, keep[v])
            if v in after:
                self._implies(after[v], *self._there(t, v))
            if v in instance.outputs or (t + 1 == len(self._stages) and v in instance.gradients):
                if v in keep and v in instance.outputs:
                    self._some(keep[v])
                if v in after:
                    self._some(after[v])
                continue
            reasons = [run[w] for w in self._readers[v] if w in run] + ([after[v]] if v in after else [])
            for wanted in ([keep[v]] if v in keep else []) + ([variable] if v != own else []):
                self._implies(wanted, *reasons)

    def _restrict(self, v: int) -> None:
        """Once a pass; in the backward pass where it is first read, and not at all if it is saved."""
        backward = self._stages[self._instance.turn + 1 :]
        self._at_most(1, *(self.runs[t][v] for t in self._stages if t not in backward and v in self.runs[t]))
        if not backward:
            return
        saved = [self.keeps[backward[0]][v]] if v in self.keeps[backward[0]] else []
        self._at_most(1, *saved, *(self.runs[t][v] for t in backward if v in self.runs[t]))
        for t in backward:
            returned = v in self._instance.gradients and t == backward[-1]
            if v in self.runs[t] and v != self._instance.stages[t] and not returned:
                self._implies(self.runs[t][v], *(self.runs[t][w] for w in self._readers[v] if w in self.runs[t]))

    def _add_memory(self, t: int, size: list[int], budget: int) -> None:
        run, keep = self.runs[t], self.keeps[t]
        needed = {u: self._needed(t, u) for u in run if size[u]}
        for v in run:
            terms: dict[int, int] = {}
            for u, by in needed.items():
                there = by[v] if u < v else self._there(t, u) if u == v else [keep[u]] if u in keep else []
                terms.update(dict.fromkeys(there, size[u]))
            self.rows.append((terms, budget))

    def _needed(self, t: int, u: int) -> dict[int, list[int]]:
        """For each later value of the stage, the variables of which one says that u is there while it is computed."""
        instance, run, after = self._instance, self.runs[t], self.keeps[t + 1]
        if u in instance.outputs or (t + 1 == len(self._stages) and u in instance.gradients):
            return dict.fromkeys(run, self._there(t, u))
        needed, found = [after[u]] if u in after else [], dict[int, list[int]]()
        for v in sorted(run, reverse=True):
            if v in self._readers[u]:
                here = self._new()
                for reason in (run[v], *needed):
                    self._implies(reason, here)
                needed = [here]
            found[v] = needed
        return found

    def _there(self, t: int, u: int) -> list[int]:
        """Computed in the stage, or kept for it."""
        return [columns[t][u] for columns in (self.runs, self.keeps) if u in columns[t]]

    def _new(self) -> int:
        self.length += 1
        return self.length - 1

    def _implies(self, variable: int, *others: int) -> None:
        self.rows.append(({variable: 1, **dict.fromkeys(others, -1)}, 0))

    def _some(self, variable: int) -> None:
        self.rows.append(({variable: -1}, -1))

    def _at_most(self, count: int, *variables: int) -> None:
        self.rows.append((dict.fromkeys(variables, 1), count))
