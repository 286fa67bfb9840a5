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
from typing import Any
from weakref import WeakKeyDictionary

from remat.pytorch.seam.torch_names import assume_constant_result

_lock = threading.Lock()
"""Held while something is put in a place, never while it runs: nobody can wait for someone who waits for them."""


class _StandIn:
    """Finds what the caller's thread has exchanged last, or else torch's own function.

    Attributes:
        own: torch's function.
        blocks: a thread's number and its function, for each block that has exchanged it; the last one entered is last.
        place: what stands in the place of torch's function: a function, so that it is a method where it is in a class.
    """

    def __init__(self, own: Callable[..., Any]) -> None:
        @functools.wraps(own)
        def place(*args: Any, **kwargs: Any) -> Any:
            return self.here()(*args, **kwargs)

        self.own, self.place = own, place
        self.blocks: tuple[tuple[int, Callable[..., Any]], ...] = ()
        _stand_ins[place] = self

    def here(self) -> Callable[..., Any]:
        """Finds what this thread is to call."""
        this = threading.get_ident()
        return next((ours for thread, ours in reversed(self.blocks) if thread == this), self.own)


_stand_ins: WeakKeyDictionary[Callable[..., Any], _StandIn] = WeakKeyDictionary()
"""By what stands in torch's places."""


@contextmanager
def swapped(owner: Any, name: str, ours: Callable[..., Any], *, constant: bool = False) -> Generator[None]:
    """Has this thread call `ours` instead of `owner.name` inside the block.

    Args:
        owner: a module or a class that defines the function.
        name: of the function.
        ours: takes the same arguments, `self` included in a class.
        constant: Dynamo calls the function where a model does, and traces its result as a constant.
    """
    block = threading.get_ident(), ours
    with _lock:
        found: Callable[..., Any] = owner.__dict__[name]
        stand_in = _stand_ins.get(found) or _StandIn(found)
        stand_in.blocks = (*stand_in.blocks, block)
        setattr(owner, name, assume_constant_result(stand_in.place) if constant else stand_in.place)
    try:
        yield
    finally:
        with _lock:
            stand_in.blocks = tuple(other for other in stand_in.blocks if other is not block)
            # Somebody else may have put another function in the place meanwhile: that is theirs to take back.
            if not stand_in.blocks and owner.__dict__[name] is stand_in.place:
                setattr(owner, name, stand_in.own)


def torchs_own(owner: Any, name: str) -> Callable[..., Any]:
    """Finds what torch itself has in a place, also while it is exchanged."""
    found: Callable[..., Any] = owner.__dict__[name]
    return _stand_ins[found].own if found in _stand_ins else found


def in_place(owner: Any, name: str) -> Callable[..., Any]:
    """Finds what this thread has in a place now: torch's own, unless a block around has exchanged it."""
    found: Callable[..., Any] = owner.__dict__[name]
    return _stand_ins[found].here() if found in _stand_ins else found
