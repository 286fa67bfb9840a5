"""Pauses Python's search for cycles of garbage while very many objects are made."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager
from threading import Lock

_lock = Lock()
# How many blocks of all threads pause the collector now; and whether it was on before the first of them.
_state = {"blocks": 0, "was_enabled": False}


@contextmanager
def collection_paused() -> Generator[None]:
    """Pauses the cyclic garbage collector, in a block or, as a decorator, in a function, for all threads.

    Objects without cycles are freed as ever. In a search of plans for a GPT-2 of 24 layers, the collector took a third
    of the time: again and again it looked through objects that were all in use.
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
