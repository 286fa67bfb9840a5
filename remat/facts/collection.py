"""Pauses Python's search for cycles of garbage while very many objects are made."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def collection_paused() -> Generator[None]:
    """Pauses the cyclic garbage collector, in a block or, as a decorator, in a function.

    At the end of a block it looks through the objects that were made last, so that blocks within a longer one do not
    let memory grow. In a search of plans for a GPT-2 of 24 layers, the collector took a third of the time: again and
    again it looked through objects that were all in use.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)
        if was_enabled:
            gc.enable()
