"""States in clauses, for CP-SAT, which values are in memory at some moments of a training step under a plan.

The peak of a plan is simulated (`remat.predict.memory`), and no short program states all of it. But what is in memory
at *one* moment follows from a few questions about each value, which are literals here:

- was it asked for before, so that it is there if it is not saved but recomputed (`asked`)?
- is it read then, or later (`need`)?
- if so, is it in memory (`here`), or computed later by what reads its operands then (`later`)?

The clauses hold under every plan: whatever fits the limit satisfies them. They are no more than that, a *relaxation*,
where a value may be in registers or not, and where a kernel reads for longer than is known before the plan is.
"""

# OR-Tools ships few types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from remat import Graph, Problem
from remat.facts.columns import common_divisor
from remat.plugin import BoolArray, IntArray, Region
from remat.predict.memory.bound import Necessary, first_read, kernel_ends
from remat.predict.memory.order import Order
from remat.predict.memory.storages import Storages
from solvers.cpsat_backend import counted


class Moment(NamedTuple):
    """A step of a training step, told by what runs in it.

    Attributes:
        backward: it belongs to the backward pass.
        wanted_by: the position in the graph at which the backward pass asks for what runs, be it its own; in the
            forward pass, its own.
        at: the position of what runs; -1 for none.
    """

    backward: bool
    wanted_by: int
    at: int


BETWEEN = Moment(backward=True, wanted_by=0, at=-1)
"""After the forward pass, before the backward pass."""


def moment_of(facts: Storages, order: Order, step: int) -> Moment:
    """Finds the moment of a step, counted over both passes, under a plan."""
    if step < len(order.forward):
        v = int(order.forward[step])
        return Moment(backward=False, wanted_by=v, at=v)
    v = int(order.backward[step - len(order.forward)])
    in_place = facts.live[v] or v >= facts.turn
    return Moment(backward=True, wanted_by=v if in_place else int(order.asked_at[v]), at=v)


def keeps_all(graph: Graph, problem: Problem) -> bool:
    """Whether a problem asks only for what gradients depend on: torch does not compute the rest, nor keeps it."""
    return np.array_equal(problem.needed, (Storages.of(graph).wanted_at <= len(graph))[graph.plannable])


def _views_up(facts: Storages, v: int) -> list[int]:
    """Lists a view, and what it is a view of, up to what owns the memory, without that."""
    path: list[int] = []
    while facts.parent[v] >= 0:
        path.append(v)
        v = int(facts.parent[v])
    return path


class PeakProgram:
    """A program of CP-SAT: the cheapest plan of a problem whose memory is within a limit, at moments that are added.

    Literals are about nodes of the graph. Of what is not computed, or depends on a tangent, memory depends on no plan.

    Args:
        graph: the joint graph.
        problem: its costs and bans, without a budget.
        limit_bytes: of the peak.

    Attributes:
        limit_bytes: of memory at the moments that are added next.
    """

    def __init__(self, graph: Graph, problem: Problem, limit_bytes: int) -> None:
        from ortools.sat.python import cp_model

        facts = Storages.of(graph)
        assert keeps_all(graph, problem)
        self.program: Any = cp_model.CpModel()
        self._false: Any = self.program.new_constant(0)
        self._true: Any = self.program.new_constant(1)
        self._graph, self._facts, self.limit_bytes = graph, facts, limit_bytes
        self._needed = Necessary.of(facts, holds_outputs=True)
        self._read_registers()
        self._read_uses()
        self._pose(problem)
        self._forward = self._forward_runs()
        self._asked_by = dict[int, dict[int, Any]]()
        self._stated = set[Moment]()

    def _read_registers(self) -> None:
        """Reads what is in memory under every plan that computes it in a pass, and what never is unless it is saved."""
        facts, graph, n = self._facts, self._graph, len(self._graph)
        owner, base = graph.base == np.arange(n), graph.base
        barred = facts.producers[facts.barred]
        barred_by = facts.readers[facts.barred]
        in_forward = (graph.region == Region.FORWARD) & facts.computed
        sure, sure_forward, mixed = (np.zeros(n, np.bool_) for _ in range(3))
        sure[barred[facts.live[barred_by]]] = True
        sure_forward[base[barred[in_forward[barred_by]]]] = True
        mixed[base[barred]] = True
        self._sure: BoolArray = (~facts.fusible | sure | graph.gradient)[base]
        self._sure_forward: BoolArray = (~facts.fusible | sure_forward | graph.output)[base]
        returned = np.zeros(n, np.bool_)
        returned[base[graph.gradient | graph.output]] = True
        self._in_registers: BoolArray = facts.fusible & owner & ~mixed & ~returned
        # Written if these run: a view's reader, with the views between.
        self._written_by: dict[int, list[tuple[int, ...]]] = {}
        for u, w in zip(barred.tolist(), barred_by.tolist(), strict=True):
            if not facts.tangents[w] and not (self._sure[u] and self._sure_forward[u]):
                self._written_by.setdefault(int(base[u]), []).append((w, *_views_up(facts, u)))
        outputs = np.zeros(n, np.bool_)
        outputs[base[graph.output]] = True
        self._in_output: BoolArray = outputs[base]
        reads = facts.live[facts.readers] & ~facts.tangents[facts.producers]
        self._read_until = np.full(n, -1)
        np.maximum.at(self._read_until, facts.producers[reads], kernel_ends(facts)[facts.readers[reads]])
        self._read_until[graph.gradient & ~facts.tangents] = n

    def _pose(self, problem: Problem) -> None:
        nodes: list[int] = self._graph.plannable.tolist()
        self.saved, self.recomputed, self.available = ({v: self._literal() for v in nodes} for _ in range(3))
        fixed = (
            (self.available, problem.needed, True),
            (self.saved, problem.cannot_save.mask, False),
            (self.recomputed, problem.cannot_recompute.mask, False),
        )
        for literals, where, truth in fixed:
            for i in np.flatnonzero(where).tolist():
                self.program.add(literals[nodes[i]] == truth)
        asking: list[list[Any]] = [[] for _ in nodes]
        for u, v in zip(problem.producers.tolist(), problem.consumers.tolist(), strict=True):
            asking[u].append(self.recomputed[nodes[v]])
        for v, needed, reasons in zip(nodes, problem.needed.tolist(), asking, strict=True):
            self.program.add(self.saved[v] + self.recomputed[v] == self.available[v])
            self._any(reasons, self.available[v])
            if not needed:  # what nothing asks for is not saved: torch would not keep it
                self._clause([self.available[v]], *reasons)
        costs = np.concatenate([problem.save_cost, problem.recompute_cost])
        self.unit = common_divisor(costs)
        self.objective = counted(self.program, [*self.saved.values(), *self.recomputed.values()], costs // self.unit)
        self.program.minimize(self.objective)

    def _read_uses(self) -> None:
        facts = self._facts
        self._values: list[int] = [v for v in self._graph.plannable.tolist() if facts.computed[v]]
        self._in_storage: dict[int, list[int]] = {}
        for v in self._values:
            self._in_storage.setdefault(int(self._graph.base[v]), []).append(v)
        self._operands = {v: facts.arguments[v] for v in self._values}
        self._readers: dict[int, list[int]] = {v: [] for v in self._values}
        for v, operands in self._operands.items():
            for u in operands:
                self._readers[u].append(v)
        self._earliest: list[int] = first_read(facts).tolist()

    def _forward_runs(self) -> dict[int, Any]:
        """Of each value, whether the forward pass computes it: for the outputs, or for what is saved."""
        in_any_case = self._graph.region == Region.FORWARD
        runs = {v: self._true if in_any_case[v] else self._literal() for v in self._values}
        for v in self._values:
            self.program.add_implication(self.saved[v], runs[v])
            for u in self._operands[v]:
                self.program.add_implication(runs[v], runs[u])
        return runs

    def _literal(self) -> Any:
        return self.program.new_bool_var("")

    def _any(self, literals: Iterable[Any], result: Any) -> None:
        for literal in literals:
            self.program.add_implication(literal, result)

    def _clause(self, premises: Iterable[Any], *results: Any) -> None:
        self.program.add_bool_or([*(~premise for premise in premises), *results])

    def _all(self, premises: Sequence[Any], results: Iterable[Any]) -> None:
        for result in results:
            self._clause(premises, result)

    def require_less(self, cost: int) -> None:
        """States that a plan costs less than this."""
        self.program.add(self.objective <= (cost - 1) // self.unit)

    def read(self, values: IntArray) -> BoolArray:
        """(n,) the saved nodes, from the values of the program's variables."""
        saved = np.zeros(len(self._graph), np.bool_)
        saved[list(self.saved)] = values[[literal.index for literal in self.saved.values()]] > 0
        return saved

    def exclude(self, saved: BoolArray) -> None:
        """States that a plan is none: the one that saves this, (n,)."""
        self.program.add_bool_or([~self.saved[v] if saved[v] else self.saved[v] for v in self._values])

    def add(self, moment: Moment) -> bool:
        """States that memory is within the limit at a moment; returns whether that was not stated yet."""
        if moment in self._stated:
            return False
        self._stated.add(moment)
        if moment.backward:
            self._add_backward(moment)
        else:
            self._add_forward(moment.at)
        return True

    def _asked(self, time: int) -> Mapping[int, Any]:
        """Of each value, whether the backward pass has asked for it at a position, or before; what is left out was not.

        Of what comes after the turn, it says nothing: this runs at its own position.
        """
        if time in self._asked_by:
            return self._asked_by[time]
        asked = self._asked_by[time] = dict[int, Any]()
        for v in reversed(self._values):
            if self._earliest[v] > time:
                continue
            if self._facts.wanted_at[v] <= time:
                asked[v] = self._true
                continue
            reasons: list[Any] = []
            for w in self._readers[v]:
                if w >= self._facts.turn:
                    if w <= time:
                        reasons.append(self.recomputed[w])
                elif w in asked:
                    reason = self._literal()
                    self._any([~self.recomputed[w], ~asked[w]], ~reason)
                    self._clause([self.recomputed[w], asked[w]], reason)
                    reasons.append(reason)
            asked[v] = self._literal()
            self._any(reasons, asked[v])
            self._clause([asked[v]], *reasons)
        return asked

    def _add_backward(self, moment: Moment) -> None:
        _, time, at = moment
        is_again = at in self.recomputed
        asked, before = self._asked(time), self._asked(time - 1)
        turn = self._facts.turn

        def done(v: int) -> Any:
            """If `v` is recomputed, then before this moment, or now."""
            if v >= turn:
                return self.available[v] if (v, v) <= (time, at) else self._false
            return (asked if v <= at else before).get(v, self._false)

        need = {v: self._true if self._read_until[v] >= time else self._literal() for v in self._values}
        here, later = ({v: self._literal() for v in self._values} for _ in range(2))
        for v in self._values:
            self._clause([need[v]], here[v], later[v])
            self._clause([need[v], self.saved[v]], here[v])
            self._clause([later[v]], self.recomputed[v])
            self._clause([here[v]], self.saved[v], *([] if self._in_registers[v] else [done(v)]))
            for again in ((),) if self._sure[v] else self._written_by.get(v, ()):
                self._clause([need[v], done(v), *(self.recomputed[w] for w in again)], here[v])
            self._all([later[v]], [need[u] for u in self._operands[v]])
        if is_again:  # what it reads is there while it runs, and so is it
            runs = [self.recomputed[at]]
            if at < turn:
                runs += [asked.get(at, self._false), ~before.get(at, self._false)]
            results = [need[u] for u in self._operands[at]]
            if self._sure[at] and self._graph.base[at] == at:
                results.append(here[at])
            self._all(runs, results)
        n = len(self._graph)
        self._limit(here, n + time - (is_again or at < 0), n + time)

    def _add_forward(self, at: int) -> None:
        here, near, need = dict[int, Any](), self._written_later(at), dict[int, Any]()
        for v in reversed([v for v in self._values if v <= at]):
            need[v], here[v] = self._literal(), self._literal()
            for w in self._readers[v]:
                if w >= at:
                    self.program.add_implication(self._forward[w], need[v])
                    continue
                if self._in_registers[w]:  # and so are its operands needed, unless it is saved, or a view of it
                    self._clause([need[w]], *(self.saved[x] for x in self._in_storage[w]), need[v])
                if w in near:
                    self.program.add_implication(near[w], need[v])
            self.program.add_implication(self.saved[v], here[v])
            written = [self._true] if self._sure_forward[v] else []
            written += [self._forward[w] for w, *_ in self._written_by.get(v, ())]
            for runs in written:
                self._clause([need[v], runs], here[v])
        if self._sure_forward[at] and self._graph.base[at] == at:
            self.program.add_implication(self._forward[at], here[at])
        for v in self._values:  # what is saved, though it comes later, may live in what is there
            owner = int(self._graph.base[v])
            if v > at and owner in here:
                self.program.add_implication(self.saved[v], here[owner])
        self._limit(here, at, at)

    def _written_later(self, at: int) -> dict[int, Any]:
        """Of values that are computed before, whether their kernel writes something then or later."""
        facts = self._facts
        calls = (facts.calls & ~facts.tangents).cumsum()
        near = dict[int, Any]()
        for v in reversed(self._values):
            if not facts.fusible[v] or calls[v] != calls[at]:
                continue
            found: list[Any] = []
            for w in facts.fused_consumers[v]:
                if w not in self.saved or calls[w] != calls[v]:
                    continue
                if w >= at:
                    sure = self._sure_forward[w] or self._in_output[w]
                    found.append(self._forward[w] if sure else self.saved[w])
                if w in near:
                    found.append(near[w])
            if found:
                near[v] = self._literal()
                self._any(found, near[v])
        return near

    def _limit(self, here: Mapping[int, Any], first: int, last: int) -> None:
        """States what memory holds, beside what every plan holds from one step to another, of both passes in order."""
        needed, facts = self._needed, self._facts
        spans = (needed.start <= first) & (last <= needed.end)
        counted_already = set(needed.base[spans].tolist())
        owned: dict[int, list[Any]] = {}
        for v, literal in here.items():
            owner = int(self._graph.base[v])
            if facts.size[owner] and not facts.foreign[owner] and owner not in counted_already:
                owned.setdefault(owner, []).append(literal)
        for owner, literals in owned.items():
            if len(literals) > 1:
                owned[owner] = [self._literal()]
                self._any(literals, owned[owner][0])
        sizes = facts.size[list(owned)]
        room = self.limit_bytes - int(needed.size[spans].sum())
        divisor = common_divisor(sizes)
        used = counted(self.program, [literal for (literal,) in owned.values()], sizes // divisor)
        self.program.add(used <= room // divisor)
