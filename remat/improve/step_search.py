"""Searches for the plan whose step is fastest by predicted kernels, among plans that keep a limit of memory.

A user pays for kernels, while a `Problem` adds up prices of single values. So plans come from several sources, and one
judge ranks them all: the kernels that TorchInductor would make (`remat.predict.kernels`), timed by a roofline model of
one device. The sources are:

- the answer of the additive search, whatever the cost model;
- what a user of PyTorch gets in one line (`remat.improve.one_liners`), so that no such plan is better;
- minimum cuts at the prices of `costmodels.StepTime`, as they are, and with as high a price of memory as it takes;
- mixtures of the fastest plan within the limit and of a faster one above it.

The time is modelled and has no proof. The bound of a solution is one on the additive cost.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from remat.answer.choice import Choice
from remat.answer.registry import FASTEST_STEP_MODEL, QUICK_BUDGET_SOLVER, costmodel_class
from remat.errors import Infeasible
from remat.facts.columns import BoolArray
from remat.facts.graph import Graph
from remat.improve.for_device import for_device
from remat.improve.one_liners import one_liners
from remat.improve.peak_plans import PeakPlan
from remat.improve.progress import OutOfTime, go_on
from remat.improve.step_plans import StepPlans
from remat.predict.buffers import StepMemory
from remat.predict.memory import Simulator
from remat.predict.time.device import DeviceProfile
from remat.predict.time.modelled_step import KernelClock
from remat.predict.time.work import Work
from remat.problem.problem import Problem
from remat.proof.budget import flow_solver
from remat.proof.hull import Hull
from remat.proof.solve import solve

# A plan whose simulated peak exceeds the limit by more than this factor is not predicted.
_FAR = 1.3
# A plan is not predicted if the calls that it repeats take longer by this part of a step than those of the best plan:
# what fuses with kernels saves less time than that.
_SLACK = 0.05
# The best plan is mixed with so many faster ones, and the way between the two is halved so often.
_MIXED, _HALVINGS = 2, 5


class StepPredictor:
    """Predicts the steps of one graph on one device, each plan once.

    Attributes:
        graph: the joint graph; its device says whose kernels are predicted.
        device: the ceilings by which kernels are timed.
    """

    def __init__(self, graph: Graph, device: DeviceProfile) -> None:
        self.graph, self.device = graph, device
        self._memory, self._clock = StepMemory(graph), KernelClock(graph, device)
        self._ns: dict[bytes, float] = {}
        self._peaks: dict[bytes, int] = {}

    @classmethod
    def of(cls, graph: Graph, device: DeviceProfile, kind: str | None = None) -> StepPredictor:
        """Returns the predictor of a graph and a device, which remembers what it predicted before.

        Args:
            graph: captured on any device.
            device: the ceilings.
            kind: the name of a device that has the same kernels; None for the device of the graph.
        """
        predictors, key = graph.derived(_predictors), (repr(device), kind)
        if key not in predictors:
            predictors[key] = cls(for_device(graph, kind), device)
        return predictors[key]

    def ns(self, saved: BoolArray) -> float:
        """Models the time of the step that saves these values, (n,) of the graph, in nanoseconds."""
        key = np.packbits(saved).tobytes()
        if key not in self._ns:
            with _without_garbage_collection():
                self._ns[key] = self._clock.time(self._memory.kernels(saved)).ns
        return self._ns[key]

    def peak(self, saved: BoolArray) -> int:
        """Predicts the most bytes alive in the step that saves these values, and notes its time."""
        key = np.packbits(saved).tobytes()
        if key not in self._peaks:
            with _without_garbage_collection():
                kernels, self._peaks[key] = self._memory.kernels_and_peak(saved)
                self._ns[key] = self._clock.time(kernels).ns
        return self._peaks[key]


# A prediction makes many objects, few of them in cycles. Without this, Python looks through all objects of the program
# several times a plan, which takes a third of the time.
@contextmanager
def _without_garbage_collection() -> Generator[None]:
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _predictors(_graph: Graph) -> dict[tuple[str, str | None], StepPredictor]:
    return {}


def _one_liners(graph: Graph) -> list[tuple[str, BoolArray]]:
    return [*one_liners(graph)]


@dataclass(frozen=True, eq=False)
class StepChoice:
    """Holds a legal choice over the values of a problem, with its modelled step time in nanoseconds."""

    choice: Choice
    step_ns: float


class StepSearch:
    """Finds the fastest step within limits of saved bytes or of the peak, for one problem of one graph.

    Args:
        predictor: judges plans.
        problem: says which plans are legal; it has no budget, and its prices rank nothing here.
        record: called with each choice whose peak is predicted, once, and with the peak; it reports progress.
    """

    def __init__(
        self,
        predictor: StepPredictor,
        problem: Problem,
        record: Callable[[Choice, int], object] | None = None,
    ) -> None:
        self._record, self._recorded = record, set[bytes]()
        self.predictor, self.graph, self.problem = predictor, predictor.graph, replace(problem, budget_bytes=None)
        terms = costmodel_class(FASTEST_STEP_MODEL)(device=predictor.device).terms(self.graph)  # pyright: ignore[reportCallIssue]
        values = self.graph.plannable
        self.priced = replace(
            self.problem, save_cost=terms.save_cost[values], recompute_cost=terms.recompute_cost[values]
        )
        self._call_ns = np.where(Work.of(self.graph).own_kernel[values], self.priced.recompute_cost, 0)
        self._hull = Hull(self.priced, flow_solver())

    def within_saved(self, limit_bytes: int, additive: Choice) -> StepChoice:
        """Returns the fastest step found that saves at most a number of bytes.

        Args:
            limit_bytes: the limit.
            additive: a choice that keeps it.
        """
        best = self._judged(additive)
        with suppress(OutOfTime):
            for choice in self._within_saved(limit_bytes):
                if choice.saved_bytes(self.problem) <= limit_bytes and not self._is_slower(choice, best):
                    best = _faster(best, self._judged(choice))
        return best

    def _within_saved(self, limit_bytes: int) -> Iterator[Choice]:
        yield self._hull.cheapest.choice
        if self._hull.cheapest.saved_bytes > limit_bytes:
            with suppress(Infeasible):
                priced = replace(self.priced, budget_bytes=limit_bytes)
                plan = solve(priced, QUICK_BUDGET_SOLVER, throw=False).plan
                if plan is not None:
                    yield Choice.from_plan(self.priced, plan)
        yield from self._one_liners

    def within_peak(self, limit_bytes: int, near: Choice | None, additive: Choice | None) -> StepChoice | None:
        """Returns the fastest step found whose predicted peak is at most a number of bytes; None if there is none.

        Args:
            limit_bytes: the limit.
            near: a choice near the limit, at the prices of `priced`; None if there is none.
            additive: a choice that keeps the limit, if the additive search found one.
        """
        best, above = None if additive is None else self._judged(additive), list[StepChoice]()
        with suppress(OutOfTime):
            for choice in self._within_peak(limit_bytes, near):
                if best is not None and self._is_slower(choice, best):
                    continue
                fits = self._peak(choice) <= limit_bytes
                judged = self._judged(choice)
                if fits:
                    best = _faster(best, judged)
                else:
                    above.append(judged)
            for other in sorted(above, key=lambda one: one.step_ns)[:_MIXED]:
                if best is not None and other.step_ns < best.step_ns:
                    best = self._mixed(best, other, limit_bytes)
        return best

    def _within_peak(self, limit_bytes: int, near: Choice | None) -> Iterator[Choice]:
        yield self._hull.cheapest.choice
        if near is not None:
            yield near
        yield from self._one_liners_near(limit_bytes)

    def _one_liners_near(self, limit_bytes: int) -> Iterator[Choice]:
        pairs = zip(self._one_liners, self._simulated_peaks, strict=True)
        return (choice for choice, peak_bytes in pairs if peak_bytes <= _FAR * limit_bytes)

    def _is_slower(self, choice: Choice, best: StepChoice) -> bool:
        """Says whether the calls that a choice repeats alone make it slower than the best one, whatever fuses."""
        repeated, best_repeated = (float(self._call_ns[one.recomputed].sum()) for one in (choice, best.choice))
        return repeated - best_repeated > _SLACK * best.step_ns

    def smallest_peak(self, other_bytes: int) -> PeakPlan | None:
        """Returns the plan with the smallest peak among PyTorch's one-liners; None if none is below `other_bytes`."""
        plans = map(self.with_peak, self._one_liners_near(other_bytes))
        smallest = min(plans, key=lambda plan: plan.peak_bytes, default=None)
        return smallest if smallest is not None and smallest.peak_bytes < other_bytes else None

    @cached_property
    def _one_liners(self) -> tuple[Choice, ...]:
        """Returns what PyTorch's one-liners save, as legal choices of the problem, each once."""
        masks = (saved[self.graph.plannable] for _, saved in self.graph.derived(_one_liners))
        choices = (Choice.from_saved(self.problem, saved) for saved in masks)
        return tuple({choice.key: choice for choice in choices if choice.keeps_bans(self.problem)}.values())

    @cached_property
    def _simulated_peaks(self) -> list[int]:
        simulator = Simulator(self.graph)
        return [simulator.peak(self.graph.for_all_values(choice.saved)) for choice in self._one_liners]

    def _mixed(self, best: StepChoice, above: StepChoice, limit_bytes: int) -> StepChoice:
        """Follows a plan within the limit up to some value and a faster one from there on: as far as the limit allows.

        What is saved late in the forward pass is read, and freed, first in the backward pass.
        """
        slow, fast = best.choice.saved, above.choice.saved
        differences, position = np.flatnonzero(slow != fast), np.arange(len(slow))
        first, last = 0, len(differences)
        for _ in range(_HALVINGS):
            middle = (first + last) // 2
            if middle in (first, last):
                break
            mixed = Choice.from_saved(self.problem, np.where(position < differences[middle], slow, fast))
            if mixed.keeps_bans(self.problem) and self._peak(mixed) <= limit_bytes:
                best = _faster(best, self._judged(mixed))
                last = middle
            else:
                first = middle
        return best

    def _judged(self, choice: Choice) -> StepChoice:
        go_on()
        return StepChoice(choice, self.predictor.ns(self.graph.for_all_values(choice.saved)))

    def with_peak(self, choice: Choice) -> PeakPlan:
        """Returns a choice with its additive cost and its predicted peak."""
        return PeakPlan(choice, choice.cost(self.problem), self._peak(choice))

    def _peak(self, choice: Choice) -> int:
        go_on()
        peak_bytes = self.predictor.peak(self.graph.for_all_values(choice.saved))
        if self._record is not None and choice.key not in self._recorded:
            self._recorded.add(choice.key)
            self._record(choice, peak_bytes)
        return peak_bytes


def _faster(best: StepChoice | None, other: StepChoice) -> StepChoice:
    return other if best is None or other.step_ns < best.step_ns else best


class FastestPlans:
    """Holds the fastest steps found within limits of the peak, in the place of `StepPlans`, the additive search."""

    def __init__(self, additive: StepPlans, search: StepSearch, limited: StepPlans) -> None:
        self._additive, self._search, self._limited = additive, search, limited
        self._within: dict[int, PeakPlan | None] = {}

    @property
    def cheapest(self) -> PeakPlan:
        """Returns the plan of least additive cost; fractions of a peak are fractions of its peak."""
        return self._additive.cheapest

    @cached_property
    def smallest(self) -> PeakPlan:
        """Returns the plan with the smallest peak that was found; it is not proven that no plan has a smaller one."""
        smallest = self._additive.smallest
        with suppress(OutOfTime):
            smallest = self._search.smallest_peak(smallest.peak_bytes) or smallest
            fastest = self._fastest(smallest.peak_bytes)  # a mixture may take even less
            if fastest is not None and fastest.peak_bytes <= smallest.peak_bytes:
                return fastest
        return smallest

    def within(self, limit_bytes: int) -> PeakPlan | None:
        """Returns the fastest step found with a peak of at most `limit_bytes`; None if there is none."""
        if limit_bytes not in self._within:
            plan = None
            with suppress(OutOfTime):
                plan = self._fastest(limit_bytes)
                if plan is None and self.smallest.peak_bytes <= limit_bytes:
                    plan = self.smallest
            self._within[limit_bytes] = self._additive.best_so_far(limit_bytes) if plan is None else plan
        return self._within[limit_bytes]

    def _fastest(self, limit_bytes: int) -> PeakPlan | None:
        # Where step prices lead to no plan near the limit, simulations by value find what they do not.
        near = self._limited.approach(limit_bytes)
        additive = self._additive.within(limit_bytes) if near is None else None
        fastest = self._search.within_peak(limit_bytes, near and near.choice, additive and additive.choice)
        return None if fastest is None else self._search.with_peak(fastest.choice)
