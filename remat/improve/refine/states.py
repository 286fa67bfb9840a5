"""Defines what a search moves through: sets of saved values that are legal plans, completed in one way."""

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
    """Holds a legal choice, and the memory that it saves.

    Attributes:
        choice: over the values of a graph; what is saved includes inputs.
        saved_bytes: memory of the saved activations, each storage once; inputs are free.
    """

    choice: Choice
    saved_bytes: int


class Space:
    """Completes sets of saved values to legal choices of one graph.

    A set of values to save becomes a choice as follows, from the last value to the first: what the
    backward pass needs, and is not in the set, is recomputed if that is possible, and saved otherwise.
    Inputs, random numbers and what the user marked MUST_SAVE so end up saved wherever they are needed, and
    every choice is legal, whatever the set: a value that can be neither saved nor recomputed makes its
    consumers impossible to recompute, so none of them ever asks for it (`remat.problem.feasibility.forced_values`).

    Args:
        graph: the joint graph.
        keep: (n,) values that are not to be recomputed either, where saving can avoid that.
        copies: (n,) how many storages each one stands for; 1 when left out.

    Raises:
        Infeasible: the graph has no legal plan at all.
    """

    def __init__(self, graph: Graph, keep: BoolArray | None = None, copies: IntArray | None = None) -> None:
        facts = base_problem(graph)
        check_feasible(facts)
        guarded = facts
        if keep is not None:
            kept = facts.cannot_recompute.also(keep[graph.plannable], "kept by the search")
            guarded = replace(facts, cannot_recompute=kept)
            if any_set(
                forced_values(guarded).unavailable & guarded.needed
            ):  # what cannot be saved has to be recomputed, however dear
                guarded = facts
        self.graph = graph
        self.saveable = graph.for_all_values(~facts.cannot_save.mask)
        self.stuck = graph.for_all_values(forced_values(guarded).not_recomputable)
        self.readers = readers_of(graph)
        self._activation = ~graph.input[graph.base]
        self._size = graph.storage_bytes * (1 if copies is None else copies[graph.base])

    def state(self, saved: BoolArray) -> State:
        """Returns the choice that a set of values to save becomes.

        Args:
            wanted: (n,) what to save if the backward pass needs it.
        """
        choice = Choice.from_saved(self.graph, saved & self.saveable | self.stuck)
        bases = np.zeros(len(self.graph), np.bool_)
        bases[self.graph.base[choice.saved & self._activation]] = True
        return State(choice, int(self._size[bases].sum()))
