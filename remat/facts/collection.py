"""Pauses Python's cyclic garbage collector while very many objects are made."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
# The number of active blocks of all threads, and whether the collector was on before the first of them.
_state = {"blocks": 0, "was_enabled": False}


@contextmanager
def collection_paused() -> Generator[None]:
    """Pauses the cyclic garbage collector, in a block or, as a decorator, in a function, for all threads.

    Objects without cycles are still freed. In a search of plans for a GPT-2 of 24 layers, the collector took a third of
    the time, because it repeatedly scanned objects that were all in use.
    """
    with _lock:
        if not _state["blocks"]:
            _state["was_enabled"] = gc.isenabled()
        _state["blocks"] += 1
    try:
        gc.disable()
        yield
    finally:
        with _lock:
            _state["blocks"] -= 1
            if not _state["blocks"] and _state["was_enabled"]:
                gc.enable()
