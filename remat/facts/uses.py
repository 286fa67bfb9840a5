"""Operates on uses, the pairs (producer, consumer) of a graph or a problem, in topological order."""

from __future__ import annotations

import graphlib
from collections.abc import Sequence

import numpy as np

from remat.errors import RematError
from remat.facts.columns import BoolArray, IntArray, any_set


def operands_of(length: int, producers: IntArray, consumers: IntArray) -> tuple[tuple[int, ...], ...]:
    """Returns, for each of `length` values, the positions of its operands, in the order of its uses."""
    order = consumers.argsort(kind="stable")
    used = tuple(producers[order].tolist())
    ends: list[int] = np.bincount(consumers, minlength=length).cumsum().tolist()
    return tuple([used[start:end] for start, end in zip([0, *ends], ends, strict=False)])


def propagate_to_operands(operands: Sequence[Sequence[int]], marked: BoolArray, through: BoolArray) -> BoolArray:
    """Propagates marks backwards: from every marked value of `through` to its operands, and so on.

    Values are in topological order, so one sweep from the last to the first visits all users of a value before the
    value. All masks, and the result, are (n,).
    """
    if not any_set(marked & through):
        return marked
    is_marked: list[bool] = marked.tolist()
    positions: list[int] = np.flatnonzero(through)[::-1].tolist()
    for v in positions:
        if is_marked[v]:
            for u in operands[v]:
                is_marked[u] = True
    return np.array(is_marked, np.bool_)


def check_uses(
    names: tuple[str, ...], producers: IntArray, consumers: IntArray, label: str, error: type[RematError]
) -> None:
    """Checks that uses join existing values, go from earlier to later ones, and are unique.

    In topological order there is no cycle, so the slow search for a cycle runs only to explain a violation.
    """
    n = len(names)
    if not len(producers):
        return
    # If the producer comes first, both ends are in range if it is not negative and the consumer is below n.
    if any_set(producers >= consumers) or any_set(producers < 0) or any_set(consumers >= n):
        raise error(_explain_ends(names, producers, consumers, label))
    codes = producers * n + consumers
    codes.sort()
    is_repeated = codes[1:] == codes[:-1]
    if any_set(is_repeated):
        u, v = divmod(int(codes[1:][is_repeated][0]), n)
        raise error(f"{label} must list each use once, got {names[u]!r} -> {names[v]!r} twice")


def _explain_ends(names: tuple[str, ...], producers: IntArray, consumers: IntArray, label: str) -> str:
    n, ends = len(names), np.stack([producers, consumers])
    outside = np.flatnonzero(((ends < 0) | (ends >= n)).any(axis=0))
    if not len(outside):
        return _explain_order(names, producers, consumers, int(np.flatnonzero(producers >= consumers)[0]), label)
    use = int(outside[0])
    return (
        f"{label} use {use} joins values {int(producers[use])} and {int(consumers[use])}, "
        f"but there are only {n} values (0 to {n - 1})"
    )


def _explain_order(names: tuple[str, ...], producers: IntArray, consumers: IntArray, use: int, label: str) -> str:
    arguments: dict[int, set[int]] = {}
    for u, v in zip(producers.tolist(), consumers.tolist(), strict=True):
        arguments.setdefault(v, set()).add(u)
    try:
        graphlib.TopologicalSorter(arguments).prepare()
    except graphlib.CycleError as cycle:
        around: list[int] = cycle.args[1]
        loop = " -> ".join(repr(names[i]) for i in around)
        return f"{label} must be acyclic, got the cycle {loop}"
    return (
        f"{label} must list values in topological order, but {names[consumers[use]]!r} "
        f"uses {names[producers[use]]!r}, which comes later"
    )
