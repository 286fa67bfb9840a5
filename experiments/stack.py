"""Compilations spread over Python's stack: where they start changes how long they take.

CPython keeps the frames of Python calls in chunks of 16 KiB, and of calls across the edge of a chunk each one maps and
unmaps memory: what loops there takes two or three times as long (CPython 3.11). Which loop that is depends on how many
frames lie below, to the frame. So two ways to compile, one of them with a frame more, differ by accident: a whole step
of a transformer of 10,000 values took 34 to 55 s of processor time. Only over many depths are they comparable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_FRAMES = 128
"""Of `at_depth`: more than fit into a chunk."""


def depths(count: int) -> list[int]:
    """So many depths, spread evenly over a chunk."""
    return [i * _FRAMES // count for i in range(count)]


def at_depth(frames: int, step: Callable[[], T]) -> T:
    """Calls a step with so many more frames on the stack."""
    return at_depth(frames - 1, step) if frames else step()
