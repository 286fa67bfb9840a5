"""States in clauses, for CP-SAT, which values are in memory at some moments of a training step under a plan.

The peak of a plan is simulated (`remat.predict.memory`), and no short program states all of the simulation. But the
memory at *one* moment follows from a few questions about each value, which are literals here:

- did the backward pass ask for it before this moment, so that it exists if it is recomputed (`asked_before`)?
- is it read at this moment, or later (`need`)?
- if so, is it in memory (`in_memory`), or computed later by a kernel that reads its operands then (`computed_later`)?

Every plan whose simulated peak is within the limit satisfies the clauses. The converse is false: the program is a
*relaxation* where a value may be in registers or in memory, and where it depends on the plan how long a kernel reads.
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
from remat.predict.memory.storages import StorageFacts
from solvers.cpsat_backend import sum_by_weight


class Moment(NamedTuple):
    """Identifies a moment of a training step by the operator that runs then, whatever the plan."""

    backward: bool
    asked_at: int  # the position in the graph at which the backward pass asks for the operator, or its own position
    at: int  # the position of the operator; -1 for none


BETWEEN = Moment(backward=True, asked_at=0, at=-1)
"""The moment after the forward pass, before the backward pass."""


def moment_of(facts: StorageFacts, order: Order, step: int) -> Moment:
    """Returns the moment of a step, counted over both passes, under a plan."""
    if step < len(order.forward):
        v = int(order.forward[step])
        return Moment(backward=False, asked_at=v, at=v)
    v = int(order.backward[step - len(order.forward)])
    in_place = facts.live[v] or v >= facts.first_tangent_reader
    return Moment(backward=True, asked_at=v if in_place else int(order.asked_at[v]), at=v)


def needs_gradients_only(graph: Graph, problem: Problem) -> bool:
    """Says whether a problem needs only what gradients depend on: torch neither computes nor keeps the rest."""
    return np.array_equal(problem.needed, (StorageFacts.of(graph).first_use <= len(graph))[graph.plannable])


def _views_up(facts: StorageFacts, v: int) -> list[int]:
    """Lists a view, what it is a view of, and so on, up to the owner of the memory, which is left out."""
    path: list[int] = []
    while facts.parent[v] >= 0:
        path.append(v)
        v = int(facts.parent[v])
    return path


class PeakProgram:
    """Finds, as a program of CP-SAT, the cheapest plan whose memory is within a limit at the moments added to it.

    Literals are about nodes of the graph. There are none for nodes that are never computed, or depend on a tangent:
    their memory is the same under every plan. The problem has no budget; `limit_bytes` holds for moments added from now
    on.
    """

    def __init__(self, graph: Graph, problem: Problem, limit_bytes: int) -> None:
        from ortools.sat.python import cp_model

        facts = StorageFacts.of(graph)
        assert needs_gradients_only(graph, problem)
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
        """Finds what is in memory under every plan that computes it in a pass, and what is there only if saved."""
        facts, graph, n = self._facts, self._graph, len(self._graph)
        owner, base = graph.base == np.arange(n), graph.base
        barred = facts.producers[facts.unfused]
        barred_by = facts.readers[facts.unfused]
        in_forward = (graph.region == Region.FORWARD) & facts.computed
        sure, sure_forward, mixed = (np.zeros(n, np.bool_) for _ in range(3))
        sure[barred[facts.live[barred_by]]] = True
        sure_forward[base[barred[in_forward[barred_by]]]] = True
        mixed[base[barred]] = True
        self._sure: BoolArray = (~facts.fusible | sure | graph.gradient)[base]
        self._sure_forward: BoolArray = (~facts.fusible | sure_forward | graph.output)[base]
        returned = graph.owners(graph.gradient | graph.output)
        self._in_registers: BoolArray = facts.fusible & owner & ~mixed & ~returned
        # A value is written if all operators of such a tuple run: the reader of a view, and the views between them.
        self._written_by: dict[int, list[tuple[int, ...]]] = {}
        for u, w in zip(barred.tolist(), barred_by.tolist(), strict=True):
            if not facts.tangents[w] and not (self._sure[u] and self._sure_forward[u]):
                self._written_by.setdefault(int(base[u]), []).append((w, *_views_up(facts, u)))
        self._in_output: BoolArray = graph.owners(graph.output)[base]
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
            if not needed:  # a value that nothing asks for is not saved, as in torch
                self._clause([self.available[v]], *reasons)
        costs = np.concatenate([problem.save_cost, problem.recompute_cost])
        self.unit = common_divisor(costs)
        self.objective = sum_by_weight(
            self.program, [*self.saved.values(), *self.recomputed.values()], costs // self.unit
        )
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
        """Says for each value whether the forward pass computes it: for the outputs, or for what is saved."""
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
        self.program.add(self.objective <= (cost - 1) // self.unit)

    def read(self, values: IntArray) -> BoolArray:
        """Reads (n,) the saved nodes from the values of the program's variables."""
        saved = np.zeros(len(self._graph), np.bool_)
        saved[list(self.saved)] = values[[literal.index for literal in self.saved.values()]] > 0
        return saved

    def exclude(self, saved: BoolArray) -> None:
        """Excludes the plan that saves exactly these nodes, (n,)."""
        self.program.add_bool_or([~self.saved[v] if saved[v] else self.saved[v] for v in self._values])

    def add(self, moment: Moment) -> bool:
        """Demands that memory is within the limit at a moment; returns False if the program had that moment already."""
        if moment in self._stated:
            return False
        self._stated.add(moment)
        if moment.backward:
            self._add_backward(moment)
        else:
            self._add_forward(moment.at)
        return True

    def _asked(self, time: int) -> Mapping[int, Any]:
        """Says for each value whether the backward pass has asked for it at a position or before.

        A value that is not in the mapping was not asked for. Values after the turn are left out: they run at their own
        position.
        """
        if time in self._asked_by:
            return self._asked_by[time]
        asked = self._asked_by[time] = dict[int, Any]()
        for v in reversed(self._values):
            if self._earliest[v] > time:
                continue
            if self._facts.first_use[v] <= time:
                asked[v] = self._true
                continue
            reasons: list[Any] = []
            for w in self._readers[v]:
                if w >= self._facts.first_tangent_reader:
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
        asked_before, before = self._asked(time), self._asked(time - 1)
        turn = self._facts.first_tangent_reader

        def is_recomputed_by_now(v: int) -> Any:
            """Says whether `v`, if it is recomputed, has been recomputed before this moment or is now."""
            if v >= turn:
                return self.available[v] if (v, v) <= (time, at) else self._false
            return (asked_before if v <= at else before).get(v, self._false)

        need = {v: self._true if self._read_until[v] >= time else self._literal() for v in self._values}
        in_memory, computed_later = ({v: self._literal() for v in self._values} for _ in range(2))
        for v in self._values:
            self._clause([need[v]], in_memory[v], computed_later[v])
            self._clause([need[v], self.saved[v]], in_memory[v])
            self._clause([computed_later[v]], self.recomputed[v])
            self._clause([in_memory[v]], self.saved[v], *([] if self._in_registers[v] else [is_recomputed_by_now(v)]))
            for writers in ((),) if self._sure[v] else self._written_by.get(v, ()):
                self._clause([need[v], is_recomputed_by_now(v), *(self.recomputed[w] for w in writers)], in_memory[v])
            self._all([computed_later[v]], [need[u] for u in self._operands[v]])
        if is_again:  # while an operator runs, its operands and its result are in memory
            runs = [self.recomputed[at]]
            if at < turn:
                runs += [asked_before.get(at, self._false), ~before.get(at, self._false)]
            results = [need[u] for u in self._operands[at]]
            if self._sure[at] and self._graph.base[at] == at:
                results.append(in_memory[at])
            self._all(runs, results)
        n = len(self._graph)
        self._limit(in_memory, n + time - (is_again or at < 0), n + time)

    def _add_forward(self, at: int) -> None:
        in_memory, writes_later, need = dict[int, Any](), self._written_later(at), dict[int, Any]()
        for v in reversed([v for v in self._values if v <= at]):
            need[v], in_memory[v] = self._literal(), self._literal()
            for w in self._readers[v]:
                if w >= at:
                    self.program.add_implication(self._forward[w], need[v])
                    continue
                if self._in_registers[w]:  # then its operands are needed, unless it or a view of it is saved
                    self._clause([need[w]], *(self.saved[x] for x in self._in_storage[w]), need[v])
                if w in writes_later:
                    self.program.add_implication(writes_later[w], need[v])
            self.program.add_implication(self.saved[v], in_memory[v])
            written = [self._true] if self._sure_forward[v] else []
            written += [self._forward[w] for w, *_ in self._written_by.get(v, ())]
            for runs in written:
                self._clause([need[v], runs], in_memory[v])
        if self._sure_forward[at] and self._graph.base[at] == at:
            self.program.add_implication(self._forward[at], in_memory[at])
        for v in self._values:  # a later value that is saved may live in a storage that is there
            owner = int(self._graph.base[v])
            if v > at and owner in in_memory:
                self.program.add_implication(self.saved[v], in_memory[owner])
        self._limit(in_memory, at, at)

    def _written_later(self, at: int) -> dict[int, Any]:
        """Says for earlier values whether their kernel writes something at this moment or later."""
        facts = self._facts
        calls = (facts.calls & ~facts.tangents).cumsum()
        writes_later = dict[int, Any]()
        for v in reversed(self._values):
            if not facts.fusible[v] or calls[v] != calls[at]:
                continue
            reasons: list[Any] = []
            for w in facts.fused_consumers[v]:
                if w not in self.saved or calls[w] != calls[v]:
                    continue
                if w >= at:
                    sure = self._sure_forward[w] or self._in_output[w]
                    reasons.append(self._forward[w] if sure else self.saved[w])
                if w in writes_later:
                    reasons.append(writes_later[w])
            if reasons:
                writes_later[v] = self._literal()
                self._any(reasons, writes_later[v])
        return writes_later

    def _limit(self, in_memory: Mapping[int, Any], first: int, last: int) -> None:
        """Limits the memory of these literals, beside what every plan holds from step `first` to step `last`."""
        needed, facts = self._needed, self._facts
        spans = (needed.start <= first) & (last <= needed.end)
        always_alive = set(needed.base[spans].tolist())
        owned: dict[int, list[Any]] = {}
        for v, literal in in_memory.items():
            owner = int(self._graph.base[v])
            if facts.size[owner] and not facts.external[owner] and owner not in always_alive:
                owned.setdefault(owner, []).append(literal)
        for owner, literals in owned.items():
            if len(literals) > 1:
                owned[owner] = [self._literal()]
                self._any(literals, owned[owner][0])
        sizes = facts.size[list(owned)]
        available_bytes = self.limit_bytes - int(needed.size[spans].sum())
        divisor = common_divisor(sizes)
        alive_bytes = sum_by_weight(self.program, [literal for (literal,) in owned.values()], sizes // divisor)
        self.program.add(alive_bytes <= available_bytes // divisor)
