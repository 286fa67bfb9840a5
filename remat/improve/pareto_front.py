"""Finds the Pareto front of items that each have two costs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

_Item = TypeVar("_Item")


def pareto_front(items: Iterable[_Item], key: Callable[[_Item], tuple[float, float]]) -> list[_Item]:
    """Returns the items that no other item beats: the first cost rises from each to the next, and the second falls.

    An item is beaten if another one has at most its first cost and at most its second. Of items with equal costs the
    first stays.

    Args:
        items: in any order.
        key: returns the two costs of an item; less is better.

    >>> pareto_front([(3, 1), (1, 5), (2, 5), (2, 4)], key=lambda costs: costs)
    [(1, 5), (2, 4), (3, 1)]
    """
    front: list[_Item] = []
    least = None
    for item in sorted(items, key=key):  # so each item has at least the first costs of those before it
        second = key(item)[1]
        if least is None or second < least:
            front.append(item)
            least = second
    return front
