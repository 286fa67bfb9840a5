"""Functions of torch exchanged for ours, inside a block and nowhere else.

A stand-in takes the place of torch's function as long as any block has exchanged it. It asks the stack of whoever calls
it: a block answers only where the function that entered it is still running below. So it answers in its own thread
alone, and no more once that function is left, even if the block was left without its last lines: a Ctrl-C may come
between any two instructions, in those lines as well.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from remat.pytorch.seam.torch_names import assume_constant_result


@dataclass(frozen=True, eq=False)
class _Block:
    """A block that has exchanged a function.

    Attributes:
        ours: what is called instead.
        entered_by: the frame of the function with the block.
    """

    ours: Callable[..., Any]
    entered_by: FrameType


class _StandIn:
    """Finds what the block entered last has exchanged, of those that the caller runs in, or else torch's own function.

    Attributes:
        own: torch's function.
        blocks: that have exchanged it; the last one entered is last.
        place: what stands in the place of torch's function: a function, so that it is a method where it is in a class.
    """

    def __init__(self, own: Callable[..., Any]) -> None:
        @functools.wraps(own)
        def place(*args: Any, **kwargs: Any) -> Any:
            return self.here()(*args, **kwargs)

        self.own, self.place = own, place
        self.blocks: list[_Block] = []
        _stand_ins[place] = self

    def here(self) -> Callable[..., Any]:
        """Finds what the caller is to call."""
        running = _running(inspect.currentframe() if self.blocks else None)
        for block in reversed(self.blocks):
            if block.entered_by in running:
                return block.ours
        return self.own

    def forget_left_blocks(self) -> None:
        """Forgets the blocks that were left without their last lines, and with them the frames."""
        blocks = [block for block in self.blocks if not block.entered_by.f_code.co_flags & inspect.CO_COROUTINE]
        running = {frame for top in sys._current_frames().values() for frame in _running(top)}
        for block in blocks:
            if block.entered_by not in running:
                self.blocks.remove(block)


def _running(top: FrameType | None) -> set[FrameType]:
    """Collects the frames of a stack."""
    frames: set[FrameType] = set()
    while top is not None:
        frames.add(top)
        top = top.f_back
    return frames


_stand_ins: dict[Any, _StandIn] = {}
"""By what stands in torch's places, and by places with torch's functions. Without a lock: a Ctrl-C might leave it."""


@contextmanager
def swapped(owner: Any, name: str, ours: Callable[..., Any], *, constant: bool = False) -> Generator[None]:
    """Has what runs inside the block call `ours` instead of `owner.name`.

    Args:
        owner: a module or a class that defines the function.
        name: of the function.
        ours: takes the same arguments, `self` included in a class.
        constant: Dynamo calls the function where a model does, and traces its result as a constant.
    """
    found: Callable[..., Any] = owner.__dict__[name]
    stand_in = _stand_ins.get(found) or _stand_ins.get((owner, name, found))
    if stand_in is None:
        stand_in = _stand_ins.setdefault((owner, name, found), _StandIn(found))
    stand_in.forget_left_blocks()
    block = _Block(ours, _entered_by())
    place = assume_constant_result(stand_in.place) if constant else stand_in.place
    try:
        stand_in.blocks.append(block)
        setattr(owner, name, place)
        yield
    finally:
        with suppress(ValueError):
            stand_in.blocks.remove(block)
        # Somebody else may have put another function in the place meanwhile: that is theirs to take back.
        if not stand_in.blocks and owner.__dict__[name] is stand_in.place:
            setattr(owner, name, stand_in.own)
            if stand_in.blocks:  # another thread has entered a block just now
                setattr(owner, name, place)


def _entered_by() -> FrameType:
    """Finds the frame of the function with the block: not of a context manager that is written as a generator."""
    frame = inspect.currentframe()
    while frame is not None and (
        frame.f_code is _entered_by.__code__
        or frame.f_code.co_flags & inspect.CO_GENERATOR
        or frame.f_code.co_filename == contextlib.__file__
    ):
        frame = frame.f_back
    assert frame is not None
    return frame


def torchs_own(owner: Any, name: str) -> Callable[..., Any]:
    """Finds what torch itself has in a place, also while it is exchanged."""
    found: Callable[..., Any] = owner.__dict__[name]
    return _stand_ins[found].own if found in _stand_ins else found


def in_place(owner: Any, name: str) -> Callable[..., Any]:
    """Finds what a caller has in a place now: torch's own, unless a block around has exchanged it."""
    found: Callable[..., Any] = owner.__dict__[name]
    return _stand_ins[found].here() if found in _stand_ins else found
