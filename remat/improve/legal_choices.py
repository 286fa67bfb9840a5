"""Makes legal choices of sets of values, and changes them."""

from __future__ import annotations

import numpy as np

from remat.answer.choice import Choice
from remat.facts.columns import BoolArray, IntArray
from remat.problem.feasibility import forced_values
from remat.problem.problem import Problem


class LegalChoices:
    """Makes choices of one problem that keep its bans, and changes them; budgets are not looked at."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._not_recomputable = forced_values(problem).not_recomputable

    def saving(self, saved: BoolArray) -> Choice:
        """Returns the choice that saves these values, (k,) of the problem, as far as bans allow.

        What is needed and must not be recomputed is saved, too: inputs, random numbers, what a user marked MUST_SAVE.
        """
        return Choice.from_saved(self._problem, saved & ~self._problem.cannot_save.mask | self._not_recomputable)

    def also_saving(self, choice: Choice, values: IntArray) -> Choice:
        """Returns the choice that also saves those of `values`, (m,) positions, that `choice` recomputes.

        In place of a value that cannot be saved, the values that are computed from it are saved: an operator with
        several results, as of a variance and a mean, is not run again only if all results that are read are saved.
        """
        problem, chosen = self._problem, np.zeros(len(self._problem), np.bool_)
        chosen[values] = True
        stands_for_others = (chosen & problem.cannot_save.mask)[problem.producers]
        chosen[problem.consumers[stands_for_others]] = True
        return self.saving(choice.saved | chosen & choice.recomputed)

    def also_recomputing(self, choice: Choice, values: IntArray) -> Choice:
        """Returns the choice that saves none of `values`, (m,) positions, unless it must."""
        saved = choice.saved.copy()
        saved[values] = False
        return self.saving(saved)

    def changed(self, choice: Choice, values: IntArray, *, saves: bool) -> Choice:
        """Returns the choice that also saves `values`, (m,) positions, or recomputes them if not `saves`."""
        return (self.also_saving if saves else self.also_recomputing)(choice, values)
