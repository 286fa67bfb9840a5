"""Defines the states of the local search: sets of saved values, each completed to a legal plan in one way."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from remat.answer.choice import Choice
from remat.facts.columns import BoolArray, IntArray, any_set
from remat.facts.graph import Graph
from remat.improve.refine.equivalence_classes import readers_of
from remat.problem.constraints import base_problem
from remat.problem.feasibility import check_feasible, forced_values


@dataclass(frozen=True, eq=False)
class State:
    """Holds a legal choice and the bytes that it keeps saved.

    Attributes:
        choice: a choice over all values of the graph; what is saved includes inputs.
        saved_bytes: memory of the saved activations, each storage once; inputs are free.
    """

    choice: Choice
    saved_bytes: int


class Space:
    """Completes sets of saved values to legal choices of one graph.

    From the last value to the first, what the backward pass needs and the set does not save is recomputed if that is
    possible, and saved otherwise. So inputs, random numbers and what the user marked MUST_SAVE are saved wherever they
    are needed, and every set leads to a legal choice: a value that can be neither saved nor recomputed makes its
    consumers not recomputable, so that none of them needs it (`remat.problem.feasibility.forced_values`).

    Args:
        keep: (n,) more values not to recompute; ignored as a whole if that leaves no legal plan.
        copies: (n,) how many storages of the whole model each value stands for; None means one.

    Raises:
        Infeasible: the graph has no legal plan at all.
    """

    def __init__(self, graph: Graph, keep: BoolArray | None = None, copies: IntArray | None = None) -> None:
        problem = base_problem(graph)
        check_feasible(problem)
        restricted = problem
        if keep is not None:
            cannot_recompute = problem.cannot_recompute.also(keep[graph.plannable], "kept by the search")
            restricted = replace(problem, cannot_recompute=cannot_recompute)
            # What cannot be saved has to be recomputed, however expensive that is.
            if any_set(forced_values(restricted).unavailable & restricted.needed):
                restricted = problem
        self.graph = graph
        self.saveable = graph.for_all_values(~problem.cannot_save.mask)
        self.not_recomputable = graph.for_all_values(forced_values(restricted).not_recomputable)
        self.readers = readers_of(graph)
        self._activation = ~graph.input[graph.base]
        self._size = graph.storage_bytes * (1 if copies is None else copies[graph.base])

    def state(self, saved: BoolArray) -> State:
        """Returns the state that follows from a set of values to save.

        Args:
            saved: (n,) what to save if the backward pass needs it.
        """
        choice = Choice.from_saved(self.graph, saved & self.saveable | self.not_recomputable)
        bases = np.zeros(len(self.graph), np.bool_)
        bases[self.graph.base[choice.saved & self._activation]] = True
        return State(choice, int(self._size[bases].sum()))
