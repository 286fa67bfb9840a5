"""Solves problems exactly by OR-Tools' CP-SAT: in integers, within byte budgets, with time limits and valid bounds."""

# OR-Tools ships few types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from remat import Choice, Graph, InvalidOption, Problem, RematError, Solution, TerminationReason, UnsupportedProblem
from remat.facts.columns import common_divisor
from remat.improve.progress import ended_early, is_over
from remat.plugin import BoolArray, ClaimedBound, Feature, IntArray, Solver, Termination, forced_values
from solvers.cpsat_backend import new_backend, run_search, sum_by_weight
from solvers.cpsat_peak import cheapest_within_peak

_THREADS = 10_000
"""An upper bound on `workers`; OR-Tools accepts up to 2**31."""


@dataclass(frozen=True)
class CPSAT(Solver):
    """Solves a problem as a CP-SAT program with the literals "v is saved", "v is recomputed" and "v is offloaded".

    "Saved" means saved on the device here: the three literals of a value exclude each other. The program does not use
    the binaries `b_v` and `a_v` of `remat.problem.problem`: saved bytes would be a sum of differences `b_v - a_v`,
    which propagates almost nothing. Within a budget, a transformer of 300 values took 0.4 to 1.4 s with these literals,
    and mostly had no plan after 8 s with those binaries (OR-Tools 9.15).

    Models repeat their layers, so many plans differ only in which layer saves what. Therefore budget and cost count
    *how many* values of one size are saved, and how many of one price are saved or recomputed: a decision about such a
    number decides all these plans at once. Half the memory of ALBERT took 2 s with these counts, and had a gap of 2%
    after 9 s without.

    CP-SAT computes in 64 bits and refuses a row that could reach 2**62, which no `Problem` does. Its linear relaxation
    uses doubles, but only guides the search: CP-SAT checks all conclusions in integers.

    Attributes:
        workers: the number of threads. One thread gives the same plan in every run without a time limit, and with the
            full linear relaxation is no slower here than eight. With more, the plan may differ from run to run, but not
            its cost.
        bound_first: whether to raise the bound until a plan reaches it, instead of searching for better plans. A model
            that takes long in one way is mostly fast in the other.
        count_sizes: whether the budget counts how many values of each size are saved, which is mostly faster.
    """

    name: ClassVar[str] = "cpsat"
    features: ClassVar[frozenset[Feature]] = frozenset(Feature)
    requires: ClassVar[tuple[str, ...]] = ("ortools",)

    workers: int = 1
    bound_first: bool = False
    count_sizes: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.workers, int) or isinstance(self.workers, bool) or not 1 <= self.workers <= _THREADS:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidOption(f"CPSAT.workers must be 1 to {_THREADS:,} threads, got {self.workers!r}")
        for option in ("bound_first", "count_sizes"):
            if not isinstance(getattr(self, option), bool):
                raise InvalidOption(f"CPSAT.{option} must be true or false, got {getattr(self, option)!r}")

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        return self.search(problem, time_limit_s=time_limit_s)

    def search(
        self,
        problem: Problem,
        incumbent: Solution | None = None,
        *,
        tolerance: float = 0.0,
        time_limit_s: float | None = None,
    ) -> Solution:
        """Solves a feasible problem, starting from an incumbent if there is one.

        Args:
            incumbent: a plan and a bound to start from. The answer has no plan if the search neither finds a cheaper
                one nor proves that one of equal cost is optimal.
            tolerance: the search ends when the plan's cost exceeds the bound by at most this share of the bound.
            time_limit_s: wall time in seconds, including the construction of the program.
        """
        from ortools.sat.python import cp_model

        start = time.perf_counter()
        model = _Model.of(problem, self.count_sizes)
        if incumbent is not None and incumbent.plan is not None:
            model.begin_at(problem, incumbent)
        backend = new_backend(self.workers)
        backend.parameters.optimize_with_lb_tree_search = self.bound_first
        if incumbent is not None and incumbent.bound is not None:
            backend.parameters.absolute_gap_limit = incumbent.bound * tolerance // model.unit
        if time_limit_s is not None:
            backend.parameters.max_time_in_seconds = max(time_limit_s - (time.perf_counter() - start), 0)
        status = run_search(backend, model.program)
        if status == cp_model.MODEL_INVALID:
            raise UnsupportedProblem(
                f"solver 'cpsat': CP-SAT refuses the problem ({model.program.validate()[:200]}); use coarser units"
            )
        if status not in (cp_model.OPTIMAL, cp_model.INFEASIBLE) and time_limit_s is None and not is_over():
            raise RematError(f"cpsat: CP-SAT ended with {backend.status_name(status)}, though no limit was set")
        certificate = ClaimedBound("CP-SAT")
        if status == cp_model.INFEASIBLE:
            return Solution(None, None, Termination(TerminationReason.INFEASIBLE), certificate, self.name)
        response = backend.response_proto
        bound = model.cost(response.inner_objective_lower_bound)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            ended = Termination(TerminationReason.LIMIT, bound, limit=ended_early().limit)
            return Solution(None, None, ended, certificate, self.name)
        choice = Choice.from_saved(problem, *model.read(np.array(response.solution, np.int64)))
        plan, cost = choice.plan(problem), choice.cost(problem)
        # CP-SAT also calls a plan within the tolerance optimal.
        reason = TerminationReason.OPTIMAL if bound >= cost else TerminationReason.FEASIBLE
        limit = None if status == cp_model.OPTIMAL else ended_early().limit
        return Solution(plan, cost, Termination(reason, bound, limit=limit), certificate, self.name)

    def within_peak(
        self,
        graph: Graph,
        problem: Problem,
        limit_bytes: int,
        incumbent: Choice | None,
        *,
        time_limit_s: float | None = None,
    ) -> Solution | None:
        """Adds moments to a program until the plan of its optimum fits (`solvers.cpsat_peak`)."""
        return cheapest_within_peak(
            graph, problem, limit_bytes, incumbent, time_limit_s=time_limit_s, workers=self.workers
        )


@dataclass(frozen=True, eq=False)
class _Model:
    program: Any  # a `CpModel`; its objective is in units of `unit`, without `base`
    unit: int  # greatest common divisor of the prices
    base: int  # cost of the values that every plan saves on the device; they are not in the program
    always_saved: BoolArray  # (n,) these values
    saved: dict[int, Any]  # value -> literal "saved on the device"
    recomputed: dict[int, Any]  # in the program, these literals come after those of `saved`
    offloaded: dict[int, Any]  # and these last

    @classmethod
    def of(cls, problem: Problem, count_sizes: bool) -> _Model:
        """Models a feasible problem for CP-SAT; 10,000 values take 0.2 s."""
        from ortools.sat.python import cp_model

        rules = forced_values(problem)
        program: Any = cp_model.CpModel()
        can_save, offload = ~problem.cannot_save.mask, problem.offload
        can_offload = np.zeros(len(problem), np.bool_) if offload is None else can_save & ~offload.banned.mask
        always_saved = rules.not_recomputable & problem.needed & ~can_offload
        positions, open_positions = np.flatnonzero(can_save & ~always_saved), np.flatnonzero(~rules.not_recomputable)
        hosted_positions = np.flatnonzero(can_offload)
        saved, recomputed, offloaded = (
            {v: program.new_bool_var("") for v in kind.tolist()}
            for kind in (positions, open_positions, hosted_positions)
        )
        _add_rules(program, problem, saved, recomputed, offloaded)
        _add_ties(program, problem, always_saved, (saved, offloaded), recomputed)
        for _, sizes, limit in problem.budgets:
            room = limit - int(sizes[always_saved].sum())
            _add_budget(program, saved, sizes[positions], room, count_sizes)

        prices = [problem.save_cost[positions], problem.recompute_cost[open_positions]]
        if offload is not None:
            prices.append(offload.cost[hosted_positions])
        all_prices = np.concatenate(prices)
        unit = common_divisor(all_prices)
        literals = [*saved.values(), *recomputed.values(), *offloaded.values()]
        program.minimize(sum_by_weight(program, literals, all_prices // unit))
        return cls(
            program, unit, int(problem.save_cost[always_saved].sum()), always_saved, saved, recomputed, offloaded
        )

    def begin_at(self, problem: Problem, incumbent: Solution) -> None:
        """Starts the search from an incumbent, and excludes plans that cost more."""
        assert incumbent.plan is not None
        assert incumbent.objective is not None
        choice = Choice.from_plan(problem, incumbent.plan)
        hints = (
            (self.saved, choice.on_device),
            (self.recomputed, choice.recomputed),
            (self.offloaded, choice.offloaded),
        )
        for literals, mask in hints:
            for v, literal in literals.items():
                self.program.add_hint(literal, bool(mask[v]))
        least = max((incumbent.bound or 0) - self.base, 0)
        self.program.proto.objective.domain.extend(
            [-(-least // self.unit), (incumbent.objective - self.base) // self.unit]
        )

    def cost(self, objective: int) -> int:
        return self.base + self.unit * max(objective, 0)

    def read(self, values: IntArray) -> tuple[BoolArray, BoolArray]:
        saved, hosted = self.always_saved.copy(), np.zeros_like(self.always_saved)
        saved[list(self.saved)] = values[: len(self.saved)] > 0
        start = len(self.saved) + len(self.recomputed)
        hosted[list(self.offloaded)] = values[start : start + len(self.offloaded)] > 0
        hosted &= ~saved  # a clause requires at least one of the two; both may be true
        return saved | hosted, hosted


# Clauses: each needed value, and each operand of a recomputed value, is available.
def _add_rules(
    program: Any, problem: Problem, saved: dict[int, Any], recomputed: dict[int, Any], offloaded: dict[int, Any]
) -> None:
    ways = [[kind[v] for kind in (saved, recomputed, offloaded) if v in kind] for v in range(len(problem))]
    needed = problem.needed.tolist()
    for v, literals in enumerate(ways):
        if needed[v] and literals:
            program.add_bool_or(literals)
    for u, v in zip(problem.producers.tolist(), problem.consumers.tolist(), strict=True):
        if v in recomputed and not needed[u]:
            program.add_bool_or([recomputed[v].negated(), *ways[u]])


# A tied group has one decision.
def _add_ties(
    program: Any, problem: Problem, always_saved: BoolArray, keeps: Sequence[dict[int, Any]], recomputed: dict[int, Any]
) -> None:
    for group in problem.tied_groups:
        is_recomputed = program.new_constant(0) if always_saved[group].any() else program.new_bool_var("")
        for v in group.tolist():
            if v in recomputed:
                program.add_implication(recomputed[v], is_recomputed)
            for kind in keeps:
                if v in kind:
                    program.add_implication(kind[v], is_recomputed.negated())


def _add_budget(program: Any, saved: dict[int, Any], sizes: IntArray, room: int, count_sizes: bool) -> None:
    from ortools.sat.python import cp_model

    literals, units = [*saved.values()], sizes // common_divisor(sizes)
    if int(sizes.sum()) > room:
        plain = cp_model.LinearExpr.weighted_sum
        saved_units = sum_by_weight(program, literals, units) if count_sizes else plain(literals, units.tolist())
        program.add(saved_units <= room // common_divisor(sizes))
