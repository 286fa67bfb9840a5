"""Plans a hierarchy of parts by small integer programs, after Gusak et al. (2024), "HiRemate: hierarchical approach for
efficient re-materialization of neural networks".

The tensors are divided into parts of up to `TENSORS` that are computed one after the other, at places where few bytes
cross; up to `PARTS` parts make a part of the next level, and so on up to the whole. Each part of the lowest level gets
a few plans, its *options*, by an integer program about its tensors: the cheapest within up to `OPTIONS` limits of bytes
for each kind of options. An integer program of the next level chooses one option of each of its parts. Equal parts
of the lowest level are solved once.

An option may compute something again that reads what another part has computed. Then that part must have an option
that saves this, or computes it again; in the second case, what it computes again is in memory from then on.

Changed: a value is computed at most twice, so a part is not computed a third time to save memory. Theirs divides the
graph by a score of its own, and its programs order the operators inside a part; here the order is given. The memory of
the benchmark knows kernels; as for Checkmate, the limit of the highest program is found by bisection.
"""

# SciPy ships few types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from experiments.rivals.backward_memory import held_beside, in_registers
from experiments.rivals.best_plans import OutOfTime
from experiments.rivals.tensor_instance import LIMIT_S, FloatArray, ScorePlan, TensorInstance
from remat.facts.columns import BoolArray, IntArray
from remat.problem.problem_file import Budget

TENSORS, PARTS, OPTIONS = 20, 20, 8
"""The most tensors of a part of the lowest level, the most parts of another part, and the most options of a kind."""
SCALES, HALVINGS = (0.1, 2.0), 10
"""The limits of the highest program: the least and the greatest one, as parts of the budget, and how many."""


class Kind(NamedTuple):
    """Says what the options of a part have in common.

    Attributes:
        gives: what it does for later parts. `NOTHING`: they read nothing of it again. `COMPUTED`: what they read is
            saved or computed again. `SAVED`: all that they read is saved.
        asks: whether it may compute again what reads tensors of earlier parts.
    """

    gives: int
    asks: bool


NOTHING, COMPUTED, SAVED = range(3)
KINDS = tuple(Kind(gives, asks) for gives in (NOTHING, COMPUTED, SAVED) for asks in (False, True))


class Option(NamedTuple):
    """Holds a plan of a part.

    Attributes:
        cost: to compute again what is not saved.
        saved_bytes: that it saves.
        work_bytes: beside these, of what it computes again; the most at any time of its backward pass.
        kind: what it does for later parts, and whether it needs earlier ones.
        saved: the tensors that it saves.
    """

    cost: float
    saved_bytes: float
    work_bytes: float
    kind: Kind
    saved: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Part:
    """Holds tensors from `start` to `stop - 1`, with the options of the part."""

    start: int
    stop: int
    options: tuple[Option, ...]


def within(instance: TensorInstance, budget: Budget, offer: ScorePlan) -> None:
    """Offers the plan of the highest program for each limit."""
    low, high = SCALES
    scale, planner = 1.0, Planner(instance, time.process_time() + LIMIT_S, of_peak=budget.of == "peak")
    parts = planner.highest_parts()
    beside = planner.beside_bytes(parts)
    for _ in range(HALVINGS):
        option = planner.chosen(parts, scale * budget.bytes - beside, Kind(NOTHING, asks=True))
        if option is None:
            low = scale
        else:
            saved = np.zeros(len(instance), np.bool_)
            saved[list(option.saved)] = True
            low, high = (low, scale) if offer(saved).of(budget) > budget.bytes else (scale, high)
        scale = (low + high) / 2


class Planner:
    """Finds options of parts, from the lowest level up.

    Args:
        instance: what is planned.
        end_s: processor time at which it gives up.
        of_peak: whether memory counts what is computed again; otherwise, only what is saved.

    Raises:
        OutOfTime: the time is over.
    """

    def __init__(self, instance: TensorInstance, end_s: float, *, of_peak: bool) -> None:
        self._instance, self._end_s, self._of_peak = instance, end_s, of_peak
        self._work = instance.bytes * ~in_registers(instance) if of_peak else np.zeros_like(instance.bytes)
        self._free = instance.forward & ~instance.fixed
        k = len(instance)
        self._read_until, self._asked = np.arange(k), instance.needed.copy()
        for p in range(k - 1, -1, -1):
            for u in instance.operands[p]:
                if instance.forward[p]:
                    self._read_until[u] = max(self._read_until[u], p)
                elif self._asked[p]:  # it runs in the backward pass in any case
                    self._asked[u] = True
        self._known = dict[tuple[object, ...], tuple[Option, ...]]()

    def highest_parts(self) -> list[Part]:
        """Divides the tensors, and finds the options of all parts but the whole; returns those of the highest level."""
        parts = [Part(start, stop, self._smallest_options(start, stop)) for start, stop in self._places()]
        while len(parts) > PARTS:
            size = min(PARTS, round(len(parts) ** 0.5))
            groups = [tuple(parts[i : i + size]) for i in range(0, len(parts), size)]
            parts = [Part(g[0].start, g[-1].stop, self._larger_options(g)) for g in groups]
        return parts

    def _places(self) -> list[tuple[int, int]]:
        crossing, k = self._instance.crossing(self._instance.bytes), len(self._instance)
        cuts = [0]
        while k - cuts[-1] > TENSORS:
            first = cuts[-1] + TENSORS // 2
            cuts.append(first + 1 + int(crossing[first : cuts[-1] + TENSORS].argmin()))
        return list(zip(cuts, [*cuts[1:], k], strict=True))

    def program(self, start: int, stop: int) -> PartProgram:
        """States the program of the tensors from `start` to `stop - 1`, those that a plan decides about."""
        own = self._own(start, stop)
        place = {p: i for i, p in enumerate(own)}
        reads = tuple((place[u], place[p]) for p in own for u in self._instance.operands[p] if u in place)
        asking = np.array([any(u < start and self._free[u] for u in self._instance.operands[p]) for p in own], np.bool_)
        columns = (self._instance.bytes, self._instance.cost, self._work, self._asked)
        return PartProgram(reads, self._read_until[own] >= stop, asking, *(column[own] for column in columns))

    def _own(self, start: int, stop: int) -> list[int]:
        return [p for p in range(start, stop) if self._free[p]]

    def _smallest_options(self, start: int, stop: int) -> tuple[Option, ...]:
        program, own = self.program(start, stop), self._own(start, stop)
        if program.key not in self._known:
            options = [o for kind in KINDS for o in _spread(program.all_bytes, kind, program.within)]
            self._known[program.key] = _best(options)
        return tuple(option._replace(saved=tuple(own[i] for i in option.saved)) for option in self._known[program.key])

    def _larger_options(self, parts: Sequence[Part]) -> tuple[Option, ...]:
        most = sum(max(o.saved_bytes + o.work_bytes for o in part.options) for part in parts)

        def within(limit: float, kind: Kind) -> Option | None:
            return self.chosen(parts, np.full(len(parts), limit), kind)

        return _best([option for kind in KINDS for option in _spread(most, kind, within)])

    def beside_bytes(self, parts: Sequence[Part]) -> FloatArray:
        """Returns what the backward pass holds beside the tensors, the most while it reads those of each part."""
        if not self._of_peak:
            return np.zeros(len(parts))
        held = held_beside(self._instance)
        read = [self._instance.first_read[part.start : part.stop] for part in parts]
        return np.array([held[at[at < len(held)]].max(initial=0) for at in read], np.float64)

    def chosen(self, parts: Sequence[Part], limits: FloatArray, kind: Kind) -> Option | None:
        """Chooses an option of each part, within a limit of bytes while the backward pass of each part runs.

        Returns:
            the option of all parts together; None if there is none.
        """
        from scipy import optimize, sparse

        if time.process_time() > self._end_s:
            raise OutOfTime
        options = [(i, option) for i, part in enumerate(parts) for option in part.options]
        own = np.array([i for i, _ in options])
        cost, saved, work = np.array([option[:3] for _, option in options], np.float64).T
        gives, asks = np.array([option.kind for _, option in options]).T
        count, m = len(options), len(parts)
        # Variables: which options are taken, and what the backward pass of each part holds of what is computed again.
        rows: list[FloatArray] = []
        most: list[float] = []
        unit = max(float(saved.sum() + work.sum()), 1)
        for i in range(m):
            held = np.zeros(m)
            held[i] = 1
            rows.append(np.concatenate([saved * (own <= i) / unit, held]))
            most.append(limits[i] / unit)
            rows.append(np.concatenate([work * (own == i) / unit, -held]))
            most.append(0)
            for j in self._read_by(parts, i):
                before = np.zeros(m)
                before[j] = 1
                rows.append(np.concatenate([work * (own == i) / unit - (gives == SAVED) * (own == j), before - held]))
                most.append(0)
                rows.append(np.concatenate([asks * (own == i) - (gives >= COMPUTED) * (own == j), np.zeros(m)]))
                most.append(0)
        one_each = np.array([np.concatenate([own == i, np.zeros(m)]) for i in range(m)])
        upper = np.concatenate([np.ones(count), np.full(m, np.inf)])
        first, last = parts[0].start, parts[-1].stop
        is_read = np.array([(self._read_until[part.start : part.stop] >= last).any() for part in parts])
        reads = np.array([any(u < first and self._free[u] for u in self._reads(part)) for part in parts])
        upper[:count] = ((gives >= kind.gives) | ~is_read[own]) & (kind.asks | (asks == 0) | ~reads[own])
        solved: Any = optimize.milp(
            np.concatenate([cost / max(float(cost.max()), 1), np.zeros(m)]),
            integrality=np.concatenate([np.ones(count), np.zeros(m)]),
            bounds=optimize.Bounds(np.zeros(count + m), upper),
            constraints=[
                optimize.LinearConstraint(sparse.csr_matrix(np.array(rows)), -np.inf, np.array(most)),
                optimize.LinearConstraint(sparse.csr_matrix(one_each), 1, 1),
            ],
            options={"time_limit": 5.0, "mip_rel_gap": 0.001},
        )
        if solved.x is None:
            return None
        taken = np.flatnonzero(solved.x[:count] > 0.5)
        after = saved[taken][::-1].cumsum()[::-1] - saved[taken]  # what later parts of it save is gone by then
        return Option(
            float(cost[taken].sum()),
            float(saved[taken].sum()),
            float((solved.x[count:] * unit - after).max(initial=0)),
            kind,
            tuple(p for i in taken.tolist() for p in options[i][1].saved),
        )

    def _read_by(self, parts: Sequence[Part], i: int) -> set[int]:
        starts = [part.start for part in parts]
        inside = [u for u in self._reads(parts[i]) if parts[0].start <= u < parts[i].start and self._free[u]]
        return set((np.searchsorted(starts, inside, side="right") - 1).tolist())

    def _reads(self, part: Part) -> set[int]:
        return {u for p in range(part.start, part.stop) if self._free[p] for u in self._instance.operands[p]}


def _spread(most: float, kind: Kind, within: Callable[[float, Kind], Option | None]) -> list[Option]:
    """Finds options of a kind: between no bytes and `most`, then where the cost changes most over most bytes."""
    limits, found = [0.0, most], [within(0, kind), within(most, kind)]
    while len(found) < OPTIONS:
        known = [option.cost for option in found if option is not None]
        costs = [2 * max(known, default=-0.5) + 1 if option is None else option.cost for option in found]
        gaps = [(c - d) * (b - a) for (a, b), (c, d) in zip(pairwise(limits), pairwise(costs), strict=True)]
        i = int(np.argmax(gaps))
        if gaps[i] <= 0:
            break
        limits.insert(i + 1, (limits[i] + limits[i + 1]) / 2)
        found.insert(i + 1, within(limits[i + 1], kind))
    return [option for option in found if option is not None]


def _best(options: Sequence[Option]) -> tuple[Option, ...]:
    """Leaves out an option if another one is at least as good in every respect."""
    kept: list[Option] = []
    for one in sorted(set(options), key=lambda o: (o.cost, o.saved_bytes, o.work_bytes, -o.kind.gives, o.kind.asks)):
        if not any(
            other.saved_bytes <= one.saved_bytes
            and other.work_bytes <= one.work_bytes
            and other.kind.gives >= one.kind.gives
            and other.kind.asks <= one.kind.asks
            for other in kept
        ):
            kept.append(one)
    return tuple(kept)


@dataclass(frozen=True, eq=False)
class PartProgram:
    """States the program of a part of the lowest level, of k tensors, if what it reads from other parts is there.

    Attributes:
        reads: pairs of tensors, where the second is computed from the first.
        handed, asking: (k,) whether later parts read a tensor, and whether it is computed from earlier parts.
        sizes, costs, work: (k,) the bytes if it is saved, the time to compute it again, the bytes it then takes.
        asked: (k,) whether the backward pass reads it.
    """

    reads: tuple[tuple[int, int], ...]
    handed: BoolArray
    asking: BoolArray
    sizes: IntArray
    costs: IntArray
    work: IntArray
    asked: BoolArray

    @property
    def key(self) -> tuple[object, ...]:
        """Returns what equal programs have in common."""
        columns = (self.handed, self.asking, self.sizes, self.costs, self.work, self.asked)
        return self.reads, *(column.tobytes() for column in columns)

    @property
    def all_bytes(self) -> float:
        """Returns what it takes to save all tensors."""
        return float(self.sizes.sum())

    def within(self, limit_bytes: float, kind: Kind) -> Option | None:
        """Returns the cheapest plan of a kind that saves no more bytes than this; None if there is none."""
        from scipy import optimize

        k, unit = len(self.sizes), max(float(self.sizes.sum()), 1)
        if not k:
            return Option(0, 0, 0, kind, ())
        rows = np.zeros((len(self.reads) + k + 1, 2 * k))  # variables: what is saved, and what is computed again
        for row, (u, p) in zip(rows, self.reads, strict=False):
            row[[u, k + u, k + p]] = 1, 1, -1
        rows[len(self.reads) : -1] = np.concatenate([np.eye(k), np.eye(k)], axis=1)
        rows[-1, :k] = self.sizes / unit
        there = self.asked | (self.handed & (kind.gives >= COMPUTED))
        most = np.append(np.full(len(rows) - 1, np.inf), limit_bytes / unit + 1e-9)
        solved: Any = optimize.milp(
            np.concatenate([self.sizes / unit * 1e-6, self.costs / max(float(self.costs.max()), 1)]),
            integrality=np.ones(2 * k),
            bounds=optimize.Bounds(
                np.append(self.handed & (kind.gives == SAVED), np.zeros(k)),
                np.append(np.ones(k), kind.asks | ~self.asking),
            ),
            constraints=optimize.LinearConstraint(
                rows, np.concatenate([np.zeros(len(self.reads)), there, [-np.inf]]), most
            ),
        )
        if solved.x is None:
            return None
        saved, again = solved.x[:k] > 0.5, solved.x[k:] > 0.5
        takes = ((self.costs, again), (self.sizes, saved), (self.work, again))
        return Option(*(float(of[mask].sum()) for of, mask in takes), kind, tuple(np.flatnonzero(saved).tolist()))
