"""Spreads compilations over Python's stack: the depth at which they start changes how long they take.

CPython 3.11 keeps the frames of Python calls in chunks of 16 KiB. A call that crosses the edge of a chunk maps memory,
and its return unmaps it, so a loop of such calls is slow: choosing takes up to 2.5 times as long, a whole compilation
a third longer. Which loop that is depends on the number of frames below, to the frame. Two ways to compile, one of
them with a frame more than the other, so differ by accident; only over many depths are they comparable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_FRAMES_IN_A_CHUNK = 136
"""So many frames of `at_depth`, of 120 bytes each, fill one chunk (CPython 3.11)."""


def depths(count: int) -> list[int]:
    """Spreads `count` depths evenly over a chunk."""
    return [i * _FRAMES_IN_A_CHUNK // count for i in range(count)]


def at_depth(frames: int, step: Callable[[], T]) -> T:
    """Calls a step with `frames` more frames on the stack."""
    return at_depth(frames - 1, step) if frames else step()
