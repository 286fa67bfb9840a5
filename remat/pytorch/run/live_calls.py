"""Counts the calls of compiled graphs whose saved values are alive, and records which were alive at the same time."""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Collection, Mapping
from itertools import count
from typing import Any, TypeAlias

from torch import Tensor
from torch.compiler import is_dynamo_compiling

from remat.pytorch.run.shared_storages import Shared, SharedStorages
from remat.pytorch.seam.compilations import saved_values_freed

Together: TypeAlias = frozenset[tuple[str, int]]
"""Keys of graphs, and how many calls of each are alive at the same time."""


class LiveCalls:
    """Counts calls from their forward pass to their backward pass, by the keys of their graphs."""

    def __init__(self) -> None:
        self._numbers = count()
        self._live: dict[int, str] = {}
        self._released: deque[int] = deque()
        self._begun: deque[weakref.finalize[[int], Any]] = deque()
        self._handed: dict[int, int] = {}
        self._storages = SharedStorages()
        self._seen: dict[Together, tuple[int, Shared]] = {}

    @property
    def together(self) -> Together:
        """Returns the calls that are alive now."""
        self._count_released()
        return self._alive

    @property
    def _alive(self) -> Together:
        return frozenset(Counter(self._live.values()).items())

    @property
    def shared(self) -> Shared:
        """Returns the storages that several live calls share, or that other graphs handed to them."""
        return self._storages.among(self._live)

    @property
    def handed_bytes(self) -> int:
        """Returns the live bytes that graphs computed for other graphs, and that no plan counts."""
        return sum(self._handed.values())

    def began(
        self, key: str, handed: Mapping[int, int], taken: Mapping[str, Tensor], given: Mapping[str, Tensor], node: Any
    ) -> None:
        """Counts a call whose saved values are alive from now on.

        Args:
            handed: the bytes of each storage that another graph made for it, where no plan can know.
            taken, given: its activations (see `SharedStorages.note`).
            node: of autograd, that holds the saved values. They are free once they were read, or nobody can read them
                any more, whichever comes first.
        """
        self._count_released()
        self._handed.update(handed)
        number = next(self._numbers)
        self._live[number] = key
        self._storages.note(number, taken, given)
        ended = weakref.finalize(node, self._released.append, number)  # from any thread, at any time
        ended.atexit = False
        self._begun.append(ended)

        def read(*_: Any) -> None:
            if not is_dynamo_compiling():  # under compiled autograd, where Dynamo would watch what changes in here
                ended()

        node.register_prehook(read)  # not a hook after the node: torch would keep the incoming gradients alive for it

    def seen(self) -> Mapping[Together, tuple[int, Shared]]:
        """Returns which calls were alive together when one ended.

        With them come the most bytes that were handed over, and the storages that they had in common.
        """
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
            handed_bytes, shared = self._seen.get(self._alive, (0, ()))
            # Once plans are made, what is handed over is not looked at any more: what was found first is all.
            self._seen[self._alive] = max(handed_bytes, self.handed_bytes), max(shared, self.shared, key=_uses)
            self._storages.forget(all_of_them=False)
        while self._released:
            self._live.pop(self._released.popleft(), None)
        if not self._live:
            self._handed.clear()
            self._storages.forget(all_of_them=True)


def _uses(shared: Shared) -> int:
    return sum(len(uses) for _, uses in shared)


def maximal_sets(seen: Collection[Together]) -> list[Together]:
    """Returns the sets of calls that are no part of another set."""
    counts = {together: dict(together) for together in seen}

    def within(small: Together, large: Together) -> bool:
        return all(counts[large].get(key, 0) >= times for key, times in small)

    return [one for one in seen if not any(one != other and within(one, other) for other in seen)]
