"""Chooses which regions of a graph to save: a solver keeps a limit of saved bytes, predictions one of the peak."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Literal, get_args

import numpy as np

from remat.answer.plan import Plan
from remat.answer.registry import TIED_SOLVERS, solver_class, usable_solvers
from remat.answer.solution import Enumeration, Solution, StepEstimate, Termination, TerminationReason
from remat.answer.solver import Solver
from remat.errors import Infeasible, InvalidOption, LimitReached, NotInstalled
from remat.facts.graph import Graph, checked_graph
from remat.improve.byte_budgets import default_saved, evenly_spaced, read_amount, saved_limit
from remat.improve.region_front import RegionFront
from remat.improve.region_problem import Keep, RegionProblem
from remat.improve.step_predictor import StepPredictor, predictor_on
from remat.predict.buffers.orders import with_torchs_order
from remat.predict.time.known_devices import find_device
from remat.predict.time.roofline import DEFAULT_DEVICE
from remat.problem.costmodel import GRAPHS_OWN
from remat.proof.certify import check_plan
from remat.proof.solve import solve
from remat.words import human_bytes, human_price, pip_install

RegionBudget = Literal["saved", "peak"]

_STEPS, _CLOSER = 6, 5
"""How many budgets of saved bytes are tried to keep a peak: evenly spaced ones first, then some next to the limit."""

_ALIKE = 8
"""How many policies that treat all layers alike are tried, too."""

_NUMBER = re.compile(r"\d+$")


@dataclass(frozen=True)
class RegionChoice:
    """Holds the decisions about the regions of one graph, with their memory and time.

    Attributes:
        regions: the regions and their problem.
        saves: for each region, whether it is saved.
        solution: the plan for the whole graph, its cost and bound in nanoseconds of recomputing, and what proves them.
        limit: the limit of saved bytes or of the peak, in bytes.
        of: what is limited.
        peak_bytes: the predicted peak of a compiled step; None for graphs whose kernels cannot be predicted. The time
            of that step is `solution.step`.
    """

    regions: RegionProblem
    saves: tuple[bool, ...]
    solution: Solution
    limit: int
    of: RegionBudget
    peak_bytes: int | None = None

    @cached_property
    def decisions(self) -> Mapping[str, bool]:
        """Returns for each region, by its path, whether it is saved."""
        return dict(zip(self.regions.names, self.saves, strict=True))

    @cached_property
    def saved_bytes(self) -> int:
        """Returns the bytes that are saved between the passes, without inputs of the step."""
        return self.regions.choice(self.saves).saved_bytes(self.regions.problem)

    @property
    def cost_ns(self) -> int:
        """Returns the modelled time of what is computed twice, operator by operator, in nanoseconds."""
        return self.regions.choice(self.saves).cost(self.regions.problem)

    @property
    def bound_ns(self) -> int | None:
        """Returns a lower bound on the `cost_ns` of all decisions about these regions in the limit; None if unknown."""
        return self.solution.bound

    @property
    def is_proven(self) -> bool:
        """Returns whether a proof of the optimum was verified here; a solver's own claim is `solution.is_optimal`."""
        return self.solution.is_proven

    def __str__(self) -> str:
        return "\n".join([*self._summary(), *self._rows()])

    def _summary(self) -> Iterator[str]:
        limit = f"limit {human_bytes(self.limit)} of {'saved bytes' if self.of == 'saved' else 'the peak'}"
        recomputes = human_price(self.cost_ns, "ns")
        yield f"saves {human_bytes(self.saved_bytes)}, recomputes for {recomputes}; {limit}"
        if self.of == "peak":
            yield "the fastest predicted step of those that were tried; no proof"
        elif self.solution.is_optimal:
            yield f"no decisions recompute less within the limit ({self.solution.certificate})"
        else:
            yield f"any decisions within the limit recompute for at least {human_price(self.bound_ns or 0, 'ns')}"
        if self.peak_bytes is not None and self.solution.step is not None:
            yield f"predicted: peak {human_bytes(self.peak_bytes)}, step {self.solution.step}"

    # One line for all layers that decide the same about a module. Saving one of them more, or less, would change bytes
    # and time by what the line says.
    def _rows(self) -> Iterator[str]:
        alike: defaultdict[tuple[str, bool], list[int]] = defaultdict(list)
        for position, (name, layer) in enumerate(zip(self.regions.names, self.regions.layer_of, strict=True)):
            label = _NUMBER.sub("*", layer) + name.removeprefix(layer)
            alike[label, self.saves[position]].append(position)
        problem, now = self.regions.problem, self.regions.choice(self.saves)
        for (label, saved), positions in sorted(alike.items(), key=lambda row: row[1][0]):
            flipped = [saved ^ (position in positions) for position, saved in enumerate(self.saves)]
            other = self.regions.choice(flipped)
            size = abs(other.saved_bytes(problem) - now.saved_bytes(problem))
            time_ns = abs(other.cost(problem) - now.cost(problem))
            numbers = [match[0] for p in positions if (match := _NUMBER.search(self.regions.layer_of[p]))]
            where = f" in layers {_ranges(map(int, numbers))}" if numbers else ""
            rate = f", {1e3 * time_ns / size:.3g} ms/GB" if size else ""
            verb = "save" if saved else "recompute"
            yield f"  {label}: {verb}{where}, {human_bytes(size)}, {human_price(time_ns, 'ns')}{rate}"


def _ranges(numbers: Iterable[int]) -> str:
    """Writes numbers in short.

    >>> _ranges([0, 1, 2, 5, 7, 8])
    '0 to 2, 5, 7 to 8'
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)


def choose_graph_regions(
    graph: Graph,
    budget: float | int | str,
    *,
    of: RegionBudget = "saved",
    regions: str | Iterable[str] | None = None,
    tied: bool = False,
    keep: Keep = "all",
    device: str | None = None,
    solver: str | Solver | None = None,
    time_limit_s: float | None = 20.0,
) -> RegionChoice:
    """Decides which regions of a graph to save; see `remat.choose_regions` for the arguments and the errors."""
    checked_graph(graph)
    if of not in get_args(RegionBudget):
        raise InvalidOption(f'of must be "saved" or "peak", got {of!r}')
    if keep not in get_args(Keep):
        raise InvalidOption(f'keep must be "all" or "expensive", got {keep!r}')
    amount = read_amount(budget, "budget")
    # PyTorch's checkpointing runs the regions, in a compiled model with the order of kernels of `torch.compile`.
    predictor = predictor_on(graph.derived(with_torchs_order), GRAPHS_OWN if device is None else device)
    graph = graph if predictor is None else predictor.graph
    profile = find_device(device or DEFAULT_DEVICE) if predictor is None else predictor.device
    search = _Search(RegionProblem.of(graph, profile, regions, tied=tied, keep=keep), predictor, solver, time_limit_s)
    if of == "saved":
        limit = saved_limit(graph, search.problem, amount)
        return search.within_saved(limit if isinstance(amount, int) else max(limit, search.least_bytes))
    if predictor is None:
        raise InvalidOption('of="peak" needs a graph whose kernels can be predicted: capture the model again')
    return search.within_peak(predictor, amount)


def _installed_solver() -> str:
    for name in TIED_SOLVERS:
        if name in usable_solvers():
            return name
    package = solver_class(TIED_SOLVERS[0]).missing()[0]
    raise NotInstalled(f"choose_regions needs a solver of integer programs: {pip_install(package)}")


class _Search:
    def __init__(
        self,
        regions: RegionProblem,
        predictor: StepPredictor | None,
        solver: str | Solver | None,
        limit_s: float | None,
    ) -> None:
        self._regions, self._predictor, self._limit_s = regions, predictor, limit_s
        self.problem = regions.problem
        self._front = RegionFront.of(regions) if solver is None else None
        self._solver = _installed_solver() if solver is None and self._front is None else solver
        self._nothing, self._everything = ((flag,) * len(regions.names) for flag in (False, True))
        self.least_bytes = self._bytes(self._nothing)

    def within_saved(self, limit: int) -> RegionChoice:
        solution = self._solved(limit, self._limit_s)
        if solution.plan is None and solution.termination.reason is TerminationReason.INFEASIBLE:
            raise Infeasible(
                f"no decisions about these regions save as little as {human_bytes(limit)}: with all of them "
                f"recomputed, {human_bytes(self.least_bytes)} are saved. Raise the budget, or name more regions"
            )
        if solution.plan is None:
            raise LimitReached(f"{solution.solver} found no decisions within its time limit; raise time_limit_s")
        return self._answer(self._saves(solution.plan), solution, limit, "saved")

    def within_peak(self, predictor: StepPredictor, amount: int | Fraction) -> RegionChoice:
        """Returns the fastest of some optima for saved bytes whose predicted peak keeps the limit."""
        tried: dict[tuple[bool, ...], tuple[int, float]] = {}

        def peak(saves: tuple[bool, ...]) -> int:
            if saves not in tried:
                saved = predictor.graph.for_all_values(self._regions.choice(saves).saved)
                tried[saves] = predictor.peak(saved), predictor.ns(saved)
            return tried[saves][0]

        def keeps(size: int) -> bool:
            plan = self._solved(size, limit_s).plan
            return plan is not None and peak(self._saves(plan)) <= limit

        # A peak is no sum: treating all layers alike may have a smaller one than any optimum for saved bytes.
        if (alike := RegionFront.of(self._regions.tied_by_name())) is not None:
            for position in evenly_spaced(0, len(alike.cost) - 1, min(_ALIKE, len(alike.cost))):
                peak(alike.saves(position))
        most, _ = peak(self._everything), peak(self._nothing)
        default = default_saved(predictor.graph)
        of_default = most if default is None else predictor.peak(default)
        least = min(peak_bytes for peak_bytes, _ in tried.values())
        limit = amount if isinstance(amount, int) else max(math.floor(amount * of_default), least)
        limit_s = None if self._limit_s is None else self._limit_s / (_STEPS + _CLOSER)
        low, high = self.least_bytes, self._bytes(self._everything)
        if most > limit:
            for size in evenly_spaced(low, high, _STEPS + 2)[1:-1]:
                low, high = (size, high) if keeps(size) else (low, min(high, size))
            for _ in range(_CLOSER):
                middle = (low + high) // 2
                low, high = (middle, high) if keeps(middle) else (low, middle)
        fitting = [saves for saves, (peak_bytes, _) in tried.items() if peak_bytes <= limit]
        if not fitting:
            least = min(peak_bytes for peak_bytes, _ in tried.values())
            raise Infeasible(
                f"no decisions about these regions were found with a peak within {human_bytes(limit)}; the smallest "
                f"peak found is {human_bytes(least)}. Raise the budget, or name more regions"
            )
        best = min(fitting, key=lambda saves: (tried[saves][1], tried[saves][0]))
        cost = self._regions.choice(best).cost(self.problem)
        return self._answer(
            best, Solution(None, cost, Termination(TerminationReason.FEASIBLE), None, ""), limit, "peak"
        )

    def _bytes(self, saves: Sequence[bool]) -> int:
        return self._regions.choice(saves).saved_bytes(self.problem)

    def _solved(self, limit: int, limit_s: float | None) -> Solution:
        if self._front is None:
            problem = replace(self.problem, budget_bytes=limit)
            return solve(problem, self._solver, time_limit_s=limit_s, throw=False)
        position, evidence = self._front.within(limit), Enumeration(self._front.compared)
        if position is None:
            return Solution(None, None, Termination(TerminationReason.INFEASIBLE), evidence, "all decisions")
        plan = self._regions.choice(self._front.saves(position)).plan(self.problem)
        cost = check_plan(replace(self.problem, budget_bytes=limit), plan)
        return Solution(plan, cost, Termination(TerminationReason.OPTIMAL, cost), evidence, "all decisions")

    # Equal layers exchange their decisions, so that later ones save more. The backward pass needs their values first,
    # so what they save is gone when earlier layers recompute.
    def _saves(self, plan: Plan) -> tuple[bool, ...]:
        found, regions = self._regions.decisions_of(plan), self._regions
        members: defaultdict[str, list[int]] = defaultdict(list)
        for position, layer in enumerate(regions.layer_of):
            members[layer].append(position)
        alike: defaultdict[object, list[list[int]]] = defaultdict(list)
        for layer, positions in members.items():
            values = np.flatnonzero(regions.scope == 1 + regions.layers.index(layer))
            prices = (self.problem.recompute_cost[values], self.problem.save_bytes[values])
            names = tuple(regions.names[position].removeprefix(layer) for position in positions)
            alike[names, *(column.tobytes() for column in prices)].append(positions)
        exchanged = list(found)
        for layers in alike.values():
            patterns = sorted(([found[position] for position in positions] for positions in layers), key=sum)
            for positions, pattern in zip(layers, patterns, strict=True):
                for position, flag in zip(positions, pattern, strict=True):
                    exchanged[position] = flag
        before, after = (
            (choice.cost(self.problem), choice.saved_bytes(self.problem))
            for choice in map(regions.choice, (found, exchanged))
        )
        return tuple(exchanged if after == before else found)

    def _answer(self, saves: tuple[bool, ...], solution: Solution, limit: int, of: RegionBudget) -> RegionChoice:
        choice = self._regions.choice(saves)
        solution = replace(solution, plan=choice.plan(self.problem))
        if self._predictor is None:
            return RegionChoice(self._regions, saves, solution, limit, of)
        saved = self._predictor.graph.for_all_values(choice.saved)
        peak_bytes = self._predictor.peak(saved)
        step = StepEstimate(self._predictor.device.name, self._predictor.ns(saved))
        return RegionChoice(self._regions, saves, replace(solution, step=step), limit, of, peak_bytes)
