"""Replaces functions of torch, only inside a block.

A stand-in replaces torch's function as long as any block needs it. It searches the stack of its caller: a block applies
only if the function that entered it is still running there. So a block applies only in its own thread, and not after
that function has ended, even if the block was left without its cleanup: Ctrl-C may come between any two instructions.
There is no lock, because it might stay locked.
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

_stand_ins: dict[Any, _StandIn] = {}
"""The stand-ins by their replacements, and by (owner, name, torch's function)."""


class _StandIn:
    """Replaces a function of torch, and calls the replacement of the innermost block around its caller.

    Outside all such blocks, it calls torch's own function.

    Attributes:
        blocks: for each active block, its function, the frame that entered it, and its thread.
        place: the object that replaces torch's function; a plain function, so that it becomes a method in a class.
    """

    def __init__(self, own: Callable[..., Any]) -> None:
        @functools.wraps(own)
        def place(*args: Any, **kwargs: Any) -> Any:
            return self.here()(*args, **kwargs)

        self.own, self.place = own, place
        self.blocks: list[tuple[Callable[..., Any], FrameType, int]] = []
        _stand_ins[place] = self

    def here(self) -> Callable[..., Any]:
        """Returns the replacement of the innermost block around the caller, or else torch's own function.

        If Dynamo traces a call of it, Dynamo breaks the graph here.
        """
        running = callers_of(inspect.currentframe() if self.blocks else None)
        for replacement, frame, _ in reversed(self.blocks):
            if frame in running:
                return replacement
        return self.own

    def entered(self) -> tuple[FrameType, int]:
        """Returns the frame of the function that enters a block, and its thread.

        Blocks that this thread has left without their cleanup are removed.
        """
        running, thread = callers_of(inspect.currentframe()), threading.get_ident()
        for block in [*self.blocks]:
            if block[2] == thread and block[1] not in running:
                self.blocks.remove(block)
        while running[0].f_code.co_flags & inspect.CO_GENERATOR or running[0].f_code.co_filename == contextlib.__file__:
            del running[0]  # a context manager that is written as a generator
        return running[0], thread


@contextmanager
def thread_local_patch(
    owner: Any, name: str, replacement: Callable[..., Any], *, constant: bool = False
) -> Generator[None]:
    """Makes code inside the block call `replacement` instead of `owner.name`.

    Args:
        owner: the module or class that defines the function.
        replacement: takes the same arguments, with `self` in a class.
        constant: whether Dynamo calls the function where a model does, and traces its result as a constant.
    """
    current = owner.__dict__[name]
    stand_in = _stand_ins.get(current) or _stand_ins.get((owner, name, current))
    if stand_in is None:
        stand_in = _stand_ins.setdefault((owner, name, current), _StandIn(current))
    block = replacement, *stand_in.entered()
    place = assume_constant_result(stand_in.place) if constant else stand_in.place
    try:
        stand_in.blocks.append(block)
        setattr(owner, name, place)
        yield
    finally:
        # CPython raises a Ctrl-C only after calls, so all three statements complete even if one is interrupted.
        try:
            if block in stand_in.blocks:
                stand_in.blocks.remove(block)
        finally:
            try:
                # If other code has patched the function meanwhile, that code must restore it.
                if not stand_in.blocks and owner.__dict__[name] is stand_in.place:
                    setattr(owner, name, stand_in.own)
            finally:
                if stand_in.blocks and owner.__dict__[name] is stand_in.own:  # another thread has entered a block
                    setattr(owner, name, place)


def callers_of(frame: FrameType | None) -> list[FrameType]:
    """Returns the frames of all callers of a frame, the innermost first."""
    frames: list[FrameType] = []
    while frame is not None and (frame := frame.f_back) is not None:
        frames.append(frame)
    return frames


def torchs_own(owner: Any, name: str) -> Callable[..., Any]:
    """Returns torch's own function of this name, even inside a block that replaces it."""
    current: Callable[..., Any] = owner.__dict__[name]
    return _stand_ins[current].own if current in _stand_ins else current


def in_place(owner: Any, name: str) -> Callable[..., Any]:
    """Returns the function that a caller gets now: torch's own, or that of a block around it."""
    current: Callable[..., Any] = owner.__dict__[name]
    return _stand_ins[current].here() if current in _stand_ins else current
