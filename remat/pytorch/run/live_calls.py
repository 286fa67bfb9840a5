"""Counts the calls of compiled graphs whose saved values are alive, and records which were alive at the same time."""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from torch.compiler import is_dynamo_compiling

from remat.pytorch.seam.compilations import saved_values_freed

Together: TypeAlias = frozenset[tuple[str, int]]
"""Keys of graphs, and how many calls of each are alive at the same time."""


class LiveCalls:
    """Counts calls from their forward pass to their backward pass, by the keys of their graphs."""

    def __init__(self) -> None:
        self._live: Counter[str] = Counter()
        self._released: deque[str] = deque()
        self._begun: deque[weakref.finalize[[str], Any]] = deque()
        self._handed: dict[int, int] = {}
        self._seen: dict[Together, int] = {}

    @property
    def together(self) -> Together:
        """Returns the calls that are alive now."""
        self._count_released()
        return frozenset(self._live.items())

    @property
    def handed_bytes(self) -> int:
        """Returns the bytes that graphs have made for others and that are alive, where no plan can know."""
        return sum(self._handed.values())

    def began(self, key: str, handed: Mapping[int, int], node: Any) -> None:
        """Counts a call whose saved values are alive from now on.

        Args:
            handed: the bytes of each storage that another graph made for it, where no plan can know.
            node: of autograd, that holds the saved values. They are free once they were read, or nobody can read them
                any more, whichever comes first.
        """
        self._count_released()
        self._handed.update(handed)
        self._live[key] += 1
        ended = weakref.finalize(node, self._released.append, key)  # from any thread, at any time
        ended.atexit = False
        self._begun.append(ended)

        def read(*_: Any) -> None:
            if not is_dynamo_compiling():  # under compiled autograd, where Dynamo would watch what changes in here
                ended()

        node.register_prehook(read)  # not a hook after the node: torch would keep the incoming gradients alive for it

    def seen(self) -> Mapping[Together, int]:
        """Returns which calls were alive together when one ended, each with the most bytes handed over beside it."""
        self._count_released()
        return self._seen

    def forget(self) -> None:
        """Forgets what was alive at the same time so far."""
        self._seen.clear()

    def _count_released(self) -> None:
        # Those that no hook told of: the oldest one first, or each call would ask about all that are alive.
        while self._begun and ((call := self._begun[0].peek()) is None or saved_values_freed(call[0])):
            self._begun.popleft()()
        if self._released and self._live:
            together = frozenset(self._live.items())
            self._seen[together] = max(self._seen.get(together, 0), self.handed_bytes)
        while self._released:
            key = self._released.popleft()
            self._live[key] -= 1
            if not self._live[key]:
                del self._live[key]
        if not self._live:
            self._handed.clear()


def maximal_sets(seen: Collection[Together]) -> list[Together]:
    """Returns the sets of calls that are no part of another set."""
    counts = {together: dict(together) for together in seen}

    def within(small: Together, large: Together) -> bool:
        return all(counts[large].get(key, 0) >= times for key, times in small)

    return [one for one in seen if not any(one != other and within(one, other) for other in seen)]
