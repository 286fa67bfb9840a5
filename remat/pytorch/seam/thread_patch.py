"""Replaces functions of torch by ours, inside a block and nowhere else.

A stand-in takes the place of torch's function as long as any block has exchanged it. It asks the stack of whoever calls
it: a block answers only where the function that entered it is still running below. So it answers in its own thread
alone, and no more once that function is left, even if the block was left without its last lines: a Ctrl-C may come
between any two instructions. There is no lock, which it might leave locked.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from remat.pytorch.seam.torch_names import assume_constant_result


class _StandIn:
    """Stands in the place of a function of torch, and calls the replacement of the innermost block around its caller.

    Outside of all such blocks it calls torch's own function.

    Attributes:
        own: torch's function.
        blocks: that have exchanged it, each with its function, the frame that entered it, and its thread.
        place: what stands in the place of torch's function: a function, so that it is a method where it is in a class.
    """

    def __init__(self, own: Callable[..., Any]) -> None:
        @functools.wraps(own)
        def place(*args: Any, **kwargs: Any) -> Any:
            return self.here()(*args, **kwargs)

        self.own, self.place = own, place
        self.blocks: list[tuple[Callable[..., Any], FrameType, int]] = []
        _stand_ins[place] = self

    def here(self) -> Callable[..., Any]:
        """Returns the function for this caller. Where Dynamo traces a call of it, it breaks the graph here."""
        running = _running(inspect.currentframe() if self.blocks else None)
        for ours, frame, _ in reversed(self.blocks):
            if frame in running:
                return ours
        return self.own

    def entered(self) -> tuple[FrameType, int]:
        """Returns the frame of the function that enters a block, and its thread.

        Blocks that this thread has left without running their last lines are removed.
        """
        running, thread = _running(inspect.currentframe()), threading.get_ident()
        for block in [*self.blocks]:
            if block[2] == thread and block[1] not in running:
                self.blocks.remove(block)
        while running[0].f_code.co_flags & inspect.CO_GENERATOR or running[0].f_code.co_filename == contextlib.__file__:
            del running[0]  # a context manager that is written as a generator
        return running[0], thread


_stand_ins: dict[Any, _StandIn] = {}
"""By what stands in torch's places, and by the places with torch's functions."""


@contextmanager
def thread_local_patch(owner: Any, name: str, ours: Callable[..., Any], *, constant: bool = False) -> Generator[None]:
    """Makes what runs inside the block call `ours` instead of `owner.name`.

    Args:
        owner: a module or a class that defines the function.
        name: of the function.
        ours: takes the same arguments, `self` included in a class.
        constant: Dynamo calls the function where a model does, and traces its result as a constant.
    """
    found = owner.__dict__[name]
    stand_in = _stand_ins.get(found) or _stand_ins.get((owner, name, found))
    if stand_in is None:
        stand_in = _stand_ins.setdefault((owner, name, found), _StandIn(found))
    block = ours, *stand_in.entered()
    place = assume_constant_result(stand_in.place) if constant else stand_in.place
    try:
        stand_in.blocks.append(block)
        setattr(owner, name, place)
        yield
    finally:
        # CPython raises a Ctrl-C after calls alone, so each of these three lines ends, whichever one is interrupted.
        try:
            if block in stand_in.blocks:
                stand_in.blocks.remove(block)
        finally:
            try:
                # Somebody else may have put another function in the place meanwhile: that is theirs to take back.
                if not stand_in.blocks and owner.__dict__[name] is stand_in.place:
                    setattr(owner, name, stand_in.own)
            finally:
                if stand_in.blocks and owner.__dict__[name] is stand_in.own:  # another thread has entered a block
                    setattr(owner, name, place)


def _running(frame: FrameType | None) -> list[FrameType]:
    """Lists the frames below one, the innermost first."""
    frames: list[FrameType] = []
    while frame is not None and (frame := frame.f_back) is not None:
        frames.append(frame)
    return frames


def torchs_own(owner: Any, name: str) -> Callable[..., Any]:
    """Returns torch's own function of this name, even inside a `with` block that replaces it."""
    found: Callable[..., Any] = owner.__dict__[name]
    return _stand_ins[found].own if found in _stand_ins else found


def in_place(owner: Any, name: str) -> Callable[..., Any]:
    """Returns the function that a caller gets now: torch's own, unless a block around replaces it."""
    found: Callable[..., Any] = owner.__dict__[name]
    return _stand_ins[found].here() if found in _stand_ins else found
