"""Lists the moves of the search: save, drop, swap. Each acts on all values of a class at once.

A move says which values to save from now on and which no longer; `Space.state` turns the set into a legal
choice. Swaps go along the frontier of what is recomputed: instead of a saved value, something that it is
computed from, or something that is computed from it; or all of that at once, be it one value in place of
several or several in place of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from remat.facts.columns import BoolArray, IntArray
from remat.improve.refine.states import Space, State

_REACH = 6
"""Recomputed classes on either side of a saved one that are tried in its place; the nearest first."""


@dataclass(frozen=True)
class Move:
    """Says what to save from now on, and what no longer, as numbers of classes."""

    save: tuple[int, ...] = ()
    drop: tuple[int, ...] = ()


class Neighbourhood:
    """Lists the moves from a state, by classes of values.

    Views are never saved, for what they look at is as good: the same bytes. Nor are inputs, which are
    there anyway, and constants, which come from nothing.

    Attributes:
        members: for each class, the positions of the values that can be decided about.
    """

    def __init__(self, space: Space, colours: IntArray) -> None:
        graph = space.graph
        self._space = space
        own = ~graph.in_tangents & ~graph.input[graph.base]
        made = np.zeros(len(graph), np.bool_)
        made[graph.consumers] = True
        # Views of a value that could be saved itself.
        repeats_base = (graph.base != np.arange(len(graph))) & ~graph.cannot_save.mask[graph.base]
        self._droppable = own & ~space.stuck
        self._saveable = own & space.saveable & ~repeats_base & (made | graph.random)
        decided = np.flatnonzero(self._droppable | self._saveable)
        number: dict[int, int] = {}
        self._of = np.full(len(graph), -1)
        self._of[decided] = [number.setdefault(c, len(number)) for c in colours[decided].tolist()]
        self.members = [np.flatnonzero(self._of == c) for c in range(len(number))]
        self._bytes = [int(graph.storage_bytes[m].sum()) for m in self.members]

    def order(self, random: np.random.Generator) -> list[int]:
        """Lists the classes, those that take most memory first; equals in random order."""
        shuffled = random.permutation(len(self.members)).tolist()
        return sorted(shuffled, key=lambda c: -self._bytes[c])

    def moves(self, state: State, c: int) -> Iterator[Move]:
        """Yields the moves that are about one class."""
        members, choice = self.members[c], state.choice
        if (choice.recomputed & self._saveable)[members].any():
            yield Move(save=(c,))
            if above := self._above(c, choice.recomputed, choice.saved & self._droppable):
                yield Move(save=(c,), drop=tuple(above))
        if not (choice.saved & self._droppable)[members].any():
            return
        yield Move(drop=(c,))
        dropped = self.after(state, Move(drop=(c,))).choice
        again = dropped.recomputed & ~choice.recomputed & self._saveable
        below = self._walk(c, self._space.graph.operands, dropped.recomputed, again)
        above = self._above(c, choice.recomputed, choice.recomputed & self._saveable)
        for other in (*below[:_REACH], *above[:_REACH]):
            yield Move(save=(other,), drop=(c,))
        last = self._above(c, choice.recomputed, choice.recomputed & self._saveable & self._space.graph.needed)
        for several in (below[:2], last):
            if len(several) > 1:
                yield Move(save=tuple(several), drop=(c,))

    def after(self, state: State, move: Move) -> State:
        """Returns the state that a move leads to."""
        wanted = state.choice.saved.copy()
        for c in move.drop:
            wanted[self.members[c]] = False
        for c in move.save:
            wanted[self.members[c]] |= self._saveable[self.members[c]]
        return self._space.state(wanted)

    def saves(self, state: State) -> list[int]:
        """Lists the classes of which something is recomputed that could be saved."""
        return self._classes(np.flatnonzero(state.choice.recomputed & self._saveable).tolist())

    def drops(self, state: State) -> list[int]:
        """Lists the classes of which something is saved that could be recomputed."""
        return self._classes(np.flatnonzero(state.choice.saved & self._droppable).tolist())

    def names(self, move: Move) -> str:
        """Puts a move into words, each class by its first value."""
        words = [
            f"{verb} {self._space.graph.names[int(self.members[c][0])]}"
            + (f" and {len(self.members[c]) - 1} like it" if len(self.members[c]) > 1 else "")
            for verb, classes in (("save", move.save), ("drop", move.drop))
            for c in classes
        ]
        return ", ".join(words)

    def _above(self, c: int, through: BoolArray, wanted: BoolArray) -> list[int]:
        return self._walk(c, self._space.readers, through, wanted)

    def _walk(self, c: int, along: Sequence[Sequence[int]], through: BoolArray, wanted: BoolArray) -> list[int]:
        """Lists other classes of `wanted` values that are met on ways through those of `through`, the nearest first."""
        layer: list[int] = self.members[c].tolist()
        seen, met = set(layer), list[int]()
        while layer:
            ahead = list(dict.fromkeys(u for v in layer for u in along[v] if u not in seen))
            seen.update(ahead)
            met += [u for u in ahead if wanted[u]]
            layer = [u for u in ahead if through[u]]
        return [other for other in self._classes(met) if other != c]

    def _classes(self, values: Iterable[int]) -> list[int]:
        return [c for c in dict.fromkeys(int(self._of[v]) for v in values) if c >= 0]
