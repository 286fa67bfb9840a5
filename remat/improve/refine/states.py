"""What a search moves through: sets of saved values that are legal plans, completed in one way."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from remat.answer.plan import Plan
from remat.facts.columns import BoolArray, IntArray
from remat.facts.graph import Graph
from remat.improve.refine.classes import readers_of
from remat.problem.demands import unpriced
from remat.problem.feasibility import check_feasible, forced


@dataclass(frozen=True, eq=False)
class State:
    """A legal choice.

    Attributes:
        saved: (n,) what the forward pass hands to the backward pass, inputs included.
        recomputed: (n,) what the backward pass computes again.
        saved_bytes: memory of the saved activations, each storage once; inputs are free.
    """

    saved: BoolArray
    recomputed: BoolArray
    saved_bytes: int

    @cached_property
    def key(self) -> bytes:
        """Equal for equal choices."""
        return np.packbits(self.saved).tobytes()


class Space:
    """The legal choices of one graph.

    A set of values to save becomes a choice as follows, from the last value to the first: what the
    backward pass needs, and is not in the set, is recomputed if that is possible, and saved otherwise.
    Inputs, random numbers and what the user marked MUST_SAVE so end up saved wherever they are needed, and
    every choice is legal, whatever the set: a value that can be neither saved nor recomputed makes its
    consumers impossible to recompute, so none of them ever asks for it (`remat.problem.feasibility.forced`).

    Args:
        graph: the joint graph.
        keep: (n,) values that are not to be recomputed either, where saving can avoid that.
        copies: (n,) how many storages each one stands for; 1 when left out.

    Raises:
        Infeasible: the graph has no legal plan at all.
    """

    def __init__(self, graph: Graph, keep: BoolArray | None = None, copies: IntArray | None = None) -> None:
        facts = unpriced(graph)
        check_feasible(facts)
        ours = np.flatnonzero(~graph.in_tangents)
        guarded = facts
        if keep is not None:
            guarded = facts.priced(
                save_cost=facts.save_cost,
                recompute_cost=facts.recompute_cost,
                cannot_save=facts.cannot_save,
                cannot_recompute=facts.cannot_recompute.also(keep[ours], "kept by the search"),
                budget_bytes=None,
            )
            victims = forced(guarded).lost & guarded.needed
            if victims.any():  # what cannot be saved has to be recomputed, however dear
                guarded = facts
        rules, n = forced(guarded), len(graph)
        self.graph = graph
        self.saveable, self.stuck = np.zeros(n, np.bool_), np.zeros(n, np.bool_)
        self.saveable[ours] = ~facts.cannot_save.mask
        self.stuck[ours] = rules.stuck
        self.readers = readers_of(graph)
        self._backwards: list[int] = ours[::-1].tolist()
        self._needed: list[bool] = graph.needed.tolist()
        self._stuck: list[bool] = self.stuck.tolist()
        self._activation = ~graph.input[graph.base]
        self._size = graph.storage_bytes * (1 if copies is None else copies[graph.base])

    def state(self, wanted: BoolArray) -> State:
        """The choice that a set of values to save becomes.

        Args:
            wanted: (n,) what to save if the backward pass needs it.
        """
        available = self._needed.copy()
        keeps: list[bool] = (wanted & self.saveable).tolist()
        saved, recomputed = np.zeros(len(self.graph), np.bool_), np.zeros(len(self.graph), np.bool_)
        operands = self.graph.operands
        for v in self._backwards:
            if not available[v]:
                continue
            if keeps[v] or self._stuck[v]:
                saved[v] = True
            else:
                recomputed[v] = True
                for u in operands[v]:
                    available[u] = True
        bases = np.zeros(len(self.graph), np.bool_)
        bases[self.graph.base[saved & self._activation]] = True
        return State(saved, recomputed, int(self._size[bases].sum()))

    def plan(self, state: State) -> Plan:
        """A choice as a plan."""
        names = self.graph.names
        saved, recomputed = (np.flatnonzero(mask).tolist() for mask in (state.saved, state.recomputed))
        return Plan(tuple(names[i] for i in saved), tuple(names[i] for i in recomputed)).made_for(self.graph)
