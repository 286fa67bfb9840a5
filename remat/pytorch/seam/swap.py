"""Functions of torch exchanged for ours, in the thread that asks for it and in no other.

A function stands in the place of torch's as long as any thread has exchanged it, and asks each caller's thread
which one to call. torch's own settings belong to a thread in the same way, since 2.13.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

_Place: TypeAlias = tuple[Any, str]
"""A module or a class, and the name of a function in it."""

_lock = threading.Lock()
"""Held while something is put in a place, never while it runs: nobody can wait for someone who waits for them."""

_torchs: dict[_Place, tuple[Callable[..., Any], int]] = {}
"""What torch has in each place that is exchanged now, and how many blocks have exchanged it."""

_ours: ContextVar[Mapping[_Place, Callable[..., Any]]] = ContextVar("remat: exchanged functions of torch")


@contextmanager
def swapped(owner: Any, name: str, ours: Callable[..., Any]) -> Generator[None]:
    """Has this thread call `ours` instead of `owner.name` inside the block.

    Args:
        owner: a module or a class that defines the function.
        name: of the function.
        ours: takes the same arguments, `self` included in a class.
    """
    place = owner, name
    with _lock:
        own, blocks = _torchs.get(place, (_defined(place), 0))
        _torchs[place] = own, blocks + 1
        if not blocks:
            setattr(owner, name, _stand_in(place, own))
    token = _ours.set({**_of_this_thread(), place: ours})
    try:
        yield
    finally:
        _ours.reset(token)
        with _lock:
            own, blocks = _torchs.pop(place)
            if blocks > 1:
                _torchs[place] = own, blocks - 1
            else:
                setattr(owner, name, own)


def torchs_own(owner: Any, name: str) -> Callable[..., Any]:
    """Finds what torch itself has in a place, also while it is exchanged."""
    with _lock:
        return _torchs.get((owner, name), (_defined((owner, name)), 0))[0]


def in_place(owner: Any, name: str) -> Callable[..., Any]:
    """Finds what this thread has in a place now: torch's own, unless a block around has exchanged it."""
    return _of_this_thread().get((owner, name)) or torchs_own(owner, name)


def _defined(place: _Place) -> Callable[..., Any]:
    owner, name = place
    return owner.__dict__[name]


def _stand_in(place: _Place, own: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(own)
    def answer(*args: Any, **kwargs: Any) -> Any:
        return _of_this_thread().get(place, own)(*args, **kwargs)

    return answer


def _of_this_thread() -> Mapping[_Place, Callable[..., Any]]:
    return _ours.get({})
