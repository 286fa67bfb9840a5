"""Keeps the cheapest plans that a method has found."""

from __future__ import annotations

import time
from collections.abc import Sequence

from experiments.rivals.tensor_instance import LIMIT_S, PlanScore, TensorInstance
from remat import Choice
from remat.facts.columns import BoolArray
from remat.predict.memory import Simulator
from remat.problem.problem_file import Budget


class OutOfTime(Exception):
    """The limit of processor time is reached."""


class Best:
    """Keeps the cheapest plan within each of some budgets, until the time is over."""

    def __init__(self, instance: TensorInstance, budgets: Sequence[Budget], limit_s: float = LIMIT_S) -> None:
        self.found = dict[str, tuple[int, Choice]]()
        self.plans = 0
        self._instance, self._budgets, self._simulator = instance, budgets, Simulator(instance.graph)
        self._end = time.process_time() + limit_s

    def offer(self, saved: BoolArray) -> PlanScore:
        """Completes a plan, keeps it where it is the cheapest so far, and scores it.

        Raises:
            OutOfTime: no more plans are to be made.
        """
        problem, choice = self._instance.problem, self._instance.plan(saved)
        peak = self._simulator.peak(self._instance.graph.for_all_values(choice.saved))
        score = PlanScore(choice.cost(problem), choice.saved_bytes(problem), peak)
        self.plans += 1
        for budget in self._budgets:
            known = self.found.get(budget.name)
            is_better = known is None or score.cost < known[0]
            if score.of(budget) <= budget.bytes and is_better and choice.keeps_bans(problem):
                self.found[budget.name] = score.cost, choice
        if time.process_time() > self._end:
            raise OutOfTime
        return score
