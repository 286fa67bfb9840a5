"""Ranks plans of one problem by their cost, or by the time that the kernels of their step take.

A user pays for kernels, while a `Problem` adds up prices of single values. So where kernels can be predicted and timed,
plans are ranked by their time. This time is modelled, and nothing is proven about it; bounds are those on the cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property

from remat.answer.choice import Choice
from remat.answer.registry import FASTEST_STEP_MODEL, QUICK_BUDGET_SOLVER, costmodel_class
from remat.errors import Infeasible
from remat.facts.columns import BoolArray
from remat.facts.graph import Graph
from remat.improve.joint_effects import joint_effects
from remat.improve.one_liners import one_liners
from remat.improve.progress import OutOfTime, go_on
from remat.improve.step_predictor import StepPredictor
from remat.problem.problem import Problem
from remat.proof.budget import flow_solver
from remat.proof.solve import solve

# A plan is not predicted if prices say that its step is longer than the best one by more than this part of it.
_SLACK = 0.01


class ByCost:
    """Ranks choices by their cost in a problem.

    Attributes:
        graph: the joint graph.
        problem: says which choices are legal; it has no budget of all values.
    """

    def __init__(self, graph: Graph, problem: Problem) -> None:
        self.graph, self.problem = graph, replace(problem, budget_bytes=None)

    def of(self, choice: Choice) -> float:
        """Returns the rank of a choice; less is better."""
        return choice.cost(self.problem)

    def effects(self, before: Choice, changed: Sequence[Sequence[Choice]]) -> list[float]:
        """Returns by how much each change raises the rank of a choice.

        Args:
            before: the choice before the changes.
            changed: for each change, one choice or more that make it alone, each in another place.
        """
        return [choices[0].cost(self.problem) - before.cost(self.problem) for choices in changed]

    def seems_worse(self, choice: Choice, best: Choice) -> bool:
        """Says whether a choice costs more than the best one."""
        return self.of(choice) > self.of(best)

    @cached_property
    def priced_problems(self) -> tuple[Problem, ...]:
        """Returns the problems at whose prices plans are sought; the first is the problem itself."""
        return (self.problem,)

    @cached_property
    def one_liners(self) -> tuple[Choice, ...]:
        """Returns what PyTorch's users get by one line of code (`remat.improve.one_liners`): distinct legal choices."""
        masks = (saved[self.graph.plannable] for _, saved in self.graph.derived(_one_liners))
        choices = (Choice.from_saved(self.problem, saved) for saved in masks)
        return tuple({choice.key: choice for choice in choices if choice.keeps_bans(self.problem)}.values())


class ByStepTime(ByCost):
    """Ranks choices by the time of their steps: the kernels that TorchInductor would make, timed by a roofline.

    Attributes:
        predictor: predicts the kernels, and times them.
    """

    def __init__(self, problem: Problem, predictor: StepPredictor) -> None:
        super().__init__(predictor.graph, problem)
        self.predictor = predictor

    def of(self, choice: Choice) -> float:
        """Returns the modelled time of the step in nanoseconds."""
        return self.predictor.ns(self.graph.for_all_values(choice.saved))

    def effects(self, before: Choice, changed: Sequence[Sequence[Choice]]) -> list[float]:
        """Returns by how many nanoseconds each change lengthens the step: predicted if possible, or else by prices."""
        predicted, priced = joint_effects(self.predictor, before, changed), self.priced_problems[1]
        cost = before.cost(priced)
        return [predicted.get(i, choices[0].cost(priced) - cost) for i, choices in enumerate(changed)]

    def seems_worse(self, choice: Choice, best: Choice) -> bool:
        """Says whether a choice is slower than the best one even if its step takes no longer than its prices say.

        Prices compare a choice with PyTorch's default plan. They are too low: a kernel that splits reads values again.
        """
        if not self.one_liners:
            return False
        default, priced = self.one_liners[0], self.priced_problems[1]
        ns = self.of(default) + choice.cost(priced) - default.cost(priced)
        return ns > (1 + _SLACK) * self.of(best)

    @cached_property
    def priced_problems(self) -> tuple[Problem, ...]:
        """Returns the problem, and its copy at the prices of `costmodels.StepTime`, where saving also has a price."""
        terms = costmodel_class(FASTEST_STEP_MODEL)(device=self.predictor.device).terms(self.graph)  # pyright: ignore[reportCallIssue]
        values = self.graph.plannable
        save_cost, recompute_cost = terms.save_cost[values], terms.recompute_cost[values]
        return self.problem, replace(self.problem, save_cost=save_cost, recompute_cost=recompute_cost)

    def fastest_within_saved(self, limit_bytes: int, additive: Choice) -> Choice:
        """Returns the choice with the fastest step found that saves at most a number of bytes.

        Args:
            limit_bytes: the limit.
            additive: a choice that keeps the limit; it is returned if no faster one is found.
        """
        best, limited = additive, replace(self.problem, budget_bytes=limit_bytes)
        with suppress(OutOfTime):
            for choice in self._within_saved(limit_bytes):
                if choice.keeps_budget(limited) and not self.seems_worse(choice, best):
                    go_on()
                    best = min(best, choice, key=self.of)
        return best

    def _within_saved(self, limit_bytes: int) -> Iterator[Choice]:
        priced = self.priced_problems[1]
        yield flow_solver().minimum_cut(priced).choice
        with suppress(Infeasible):
            plan = solve(replace(priced, budget_bytes=limit_bytes), QUICK_BUDGET_SOLVER, throw=False).plan
            if plan is not None:
                yield Choice.from_plan(priced, plan)
        yield from self.one_liners


def _one_liners(graph: Graph) -> list[tuple[str, BoolArray]]:
    return [*one_liners(graph)]
