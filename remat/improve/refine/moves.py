"""Lists the moves of the local search: save, drop, swap. Each acts on all values of an equivalence class at once.

A move says which values to save from now on and which no longer; `Space.state` makes a legal choice of it. A swap
replaces a saved value by recomputed ones that it is computed from, or that are computed from it: one for one, or one
for several, or several for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from remat.facts.columns import BoolArray, IntArray
from remat.improve.refine.states import Space, State

# This many recomputed classes on either side of a saved one are tried in its place, the nearest first.
_REACH = 6


@dataclass(frozen=True)
class Move:
    """Holds the numbers of the classes to save from now on, and of those that are no longer saved."""

    save: tuple[int, ...] = ()
    drop: tuple[int, ...] = ()


class Neighbourhood:
    """Lists the moves from a state, by classes of values.

    A view is saved only if the value that owns its memory cannot be: both take the same bytes. Inputs, in memory
    anyway, and constants, computed from nothing, are never saved.

    Attributes:
        members: for each class, the positions of its values that can be saved or dropped.
    """

    def __init__(self, space: Space, colours: IntArray) -> None:
        graph = space.graph
        self._space = space
        decidable = ~graph.in_tangents & ~graph.input[graph.base]
        has_operands = np.zeros(len(graph), np.bool_)
        has_operands[graph.consumers] = True
        # Views are left out if the value that owns their memory could be saved itself.
        repeats_base = (graph.base != np.arange(len(graph))) & ~graph.cannot_save.mask[graph.base]
        self._droppable = decidable & ~space.not_recomputable
        self._saveable = decidable & space.saveable & ~repeats_base & (has_operands | graph.random)
        decided = np.flatnonzero(self._droppable | self._saveable)
        number: dict[int, int] = {}
        self._of = np.full(len(graph), -1)
        self._of[decided] = [number.setdefault(c, len(number)) for c in colours[decided].tolist()]
        self.members = [np.flatnonzero(self._of == c) for c in range(len(number))]
        self._bytes = [int(graph.storage_bytes[m].sum()) for m in self.members]

    def order(self, random: np.random.Generator) -> list[int]:
        """Lists the classes, those with the most memory first, and equal ones in random order."""
        shuffled = random.permutation(len(self.members)).tolist()
        return sorted(shuffled, key=lambda c: -self._bytes[c])

    def moves(self, state: State, c: int) -> Iterator[Move]:
        members, choice = self.members[c], state.choice
        if (choice.recomputed & self._saveable)[members].any():
            yield Move(save=(c,))
            if above := self._above(c, choice.recomputed, choice.saved & self._droppable):
                yield Move(save=(c,), drop=tuple(above))
        if not (choice.saved & self._droppable)[members].any():
            return
        yield Move(drop=(c,))
        dropped = self.after(state, Move(drop=(c,))).choice
        newly_recomputed = dropped.recomputed & ~choice.recomputed & self._saveable
        below = self._walk(c, self._space.graph.operands, dropped.recomputed, newly_recomputed)
        above = self._above(c, choice.recomputed, choice.recomputed & self._saveable)
        for other in (*below[:_REACH], *above[:_REACH]):
            yield Move(save=(other,), drop=(c,))
        last = self._above(c, choice.recomputed, choice.recomputed & self._saveable & self._space.graph.needed)
        for several in (below[:2], last):
            if len(several) > 1:
                yield Move(save=tuple(several), drop=(c,))

    def after(self, state: State, move: Move) -> State:
        wanted = state.choice.saved.copy()
        for c in move.drop:
            wanted[self.members[c]] = False
        for c in move.save:
            wanted[self.members[c]] |= self._saveable[self.members[c]]
        return self._space.state(wanted)

    def saves(self, state: State) -> list[int]:
        """Lists the classes with a recomputed value that could be saved."""
        return self._classes(np.flatnonzero(state.choice.recomputed & self._saveable).tolist())

    def drops(self, state: State) -> list[int]:
        """Lists the classes with a saved value that could be recomputed."""
        return self._classes(np.flatnonzero(state.choice.saved & self._droppable).tolist())

    def names(self, move: Move) -> str:
        """Puts a move into words; the first value stands for its class."""
        words = [
            f"{verb} {self._space.graph.names[int(self.members[c][0])]}"
            + (f" and {len(self.members[c]) - 1} like it" if len(self.members[c]) > 1 else "")
            for verb, classes in (("save", move.save), ("drop", move.drop))
            for c in classes
        ]
        return ", ".join(words)

    def _above(self, c: int, through: BoolArray, targets: BoolArray) -> list[int]:
        return self._walk(c, self._space.readers, through, targets)

    def _walk(self, c: int, along: Sequence[Sequence[int]], through: BoolArray, targets: BoolArray) -> list[int]:
        """Lists other classes of `targets` that are reached through values of `through`, the nearest first."""
        layer: list[int] = self.members[c].tolist()
        visited, reached = set(layer), list[int]()
        while layer:
            ahead = list(dict.fromkeys(u for v in layer for u in along[v] if u not in visited))
            visited.update(ahead)
            reached += [u for u in ahead if targets[u]]
            layer = [u for u in ahead if through[u]]
        return [other for other in self._classes(reached) if other != c]

    def _classes(self, values: Iterable[int]) -> list[int]:
        return [c for c in dict.fromkeys(int(self._of[v]) for v in values) if c >= 0]
