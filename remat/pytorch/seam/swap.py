"""Functions of torch exchanged for ours, in the thread that asks for it and in no other.

A stand-in takes the place of torch's function as long as any thread has exchanged it, and asks each caller's thread
which function to call. A thread is known by its number: a `ContextVar` would go along into threads that run in a copy
of this one's context, as those of `asyncio.to_thread` do, and could not be put back from another context.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import MethodType
from typing import Any

_lock = threading.Lock()
"""Held while something is put in a place, never while it runs: nobody can wait for someone who waits for them."""


class _StandIn:
    """Calls what the caller's thread has exchanged last, or else torch's own function; a method where it is in a class.

    Attributes:
        own: torch's function.
        blocks: a thread's number and its function, for each block that has exchanged it; the last one entered is last.
    """

    def __init__(self, own: Callable[..., Any]) -> None:
        functools.update_wrapper(self, own)
        self.own = own
        self.blocks: tuple[tuple[int, Callable[..., Any]], ...] = ()

    def here(self) -> Callable[..., Any]:
        """Finds what this thread is to call."""
        this = threading.get_ident()
        return next((ours for thread, ours in reversed(self.blocks) if thread == this), self.own)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.here()(*args, **kwargs)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else MethodType(self, instance)


@contextmanager
def swapped(owner: Any, name: str, ours: Callable[..., Any]) -> Generator[None]:
    """Has this thread call `ours` instead of `owner.name` inside the block.

    Args:
        owner: a module or a class that defines the function.
        name: of the function.
        ours: takes the same arguments, `self` included in a class.
    """
    block = threading.get_ident(), ours
    with _lock:
        found: Callable[..., Any] = owner.__dict__[name]
        stand_in = found if isinstance(found, _StandIn) else _StandIn(found)
        stand_in.blocks = (*stand_in.blocks, block)
        setattr(owner, name, stand_in)
    try:
        yield
    finally:
        with _lock:
            stand_in.blocks = tuple(other for other in stand_in.blocks if other is not block)
            # Somebody else may have put another function in the place meanwhile: that is theirs to take back.
            if not stand_in.blocks and owner.__dict__[name] is stand_in:
                setattr(owner, name, stand_in.own)


def torchs_own(owner: Any, name: str) -> Callable[..., Any]:
    """Finds what torch itself has in a place, also while it is exchanged."""
    found: Callable[..., Any] = owner.__dict__[name]
    return found.own if isinstance(found, _StandIn) else found


def in_place(owner: Any, name: str) -> Callable[..., Any]:
    """Finds what this thread has in a place now: torch's own, unless a block around has exchanged it."""
    found: Callable[..., Any] = owner.__dict__[name]
    return found.here() if isinstance(found, _StandIn) else found
