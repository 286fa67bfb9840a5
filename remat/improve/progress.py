"""Says how a search tells a caller how far it is, and how a caller ends it: by a time limit, or by Ctrl-C."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from remat.answer.solution import Termination, TerminationReason
from remat.errors import InvalidOption

Progress = Callable[[int, tuple[int, ...]], None]
"""Called with the number of plans looked at so far, and a score; each search says which."""

_asked = threading.Event()


def check_progress(progress: object) -> None:
    """Refuses what cannot be called.

    Raises:
        InvalidOption: it is neither None nor a function.
    """
    if progress is not None and not callable(progress):
        raise InvalidOption(f"progress must be a function of a count and a score, got {progress!r}")


def is_over(deadline_s: float | None = None) -> bool:
    """Whether a search is to end with the best so far: its time is up (of `time.monotonic`), or Ctrl-C was pressed."""
    return _asked.is_set() or (deadline_s is not None and time.monotonic() > deadline_s)


def ended_early() -> Termination:
    """Says what ended a search for which `is_over`."""
    limit, what = ("interrupt", "Ctrl-C") if _asked.is_set() else ("time", "the time limit")
    return Termination(TerminationReason.FEASIBLE, limit=limit, detail=f"{what} stopped the search: the best so far")


@contextmanager
def ending_at_ctrl_c() -> Generator[Callable[[], bool]]:
    """Has the first Ctrl-C end the searches in a block with the best so far; gives a way to ask whether it came.

    The second one raises KeyboardInterrupt, as without this; and so does the first one in another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def end(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        _asked.set()

    before = signal.signal(signal.SIGINT, end)
    try:
        yield _asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
        _asked.clear()
