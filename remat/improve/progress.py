"""Says how a search reports its progress, and how a caller ends it: by a time limit, or by Ctrl-C."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from remat.answer.solution import Termination, TerminationReason
from remat.errors import InvalidOption

Progress = Callable[[int, tuple[int, ...]], None]
"""A function that is called with the number of plans looked at so far, and a score; each search says which score."""

_interrupted = threading.Event()


def check_progress(progress: object) -> None:
    """Checks that `progress` can be called.

    Raises:
        InvalidOption: it is neither None nor a function.
    """
    if progress is not None and not callable(progress):
        raise InvalidOption(f"progress must be a function of a count and a score, got {progress!r}")


def is_over(deadline_s: float | None = None) -> bool:
    """Says if a search must end now and return the best plan so far: its time is up, or the user pressed Ctrl-C.

    Args:
        deadline_s: a time of `time.monotonic`; None for no limit.
    """
    return _interrupted.is_set() or (deadline_s is not None and time.monotonic() > deadline_s)


def ended_early() -> Termination:
    """Describes why `is_over` ended a search."""
    limit, what = ("interrupt", "Ctrl-C") if _interrupted.is_set() else ("time", "the time limit")
    return Termination(TerminationReason.FEASIBLE, limit=limit, detail=f"{what} stopped the search: the best so far")


@contextmanager
def ending_at_ctrl_c() -> Generator[Callable[[], bool]]:
    """Lets the first Ctrl-C end the searches in a block, which then return the best plan so far.

    Yields a function that says if Ctrl-C was pressed. The second Ctrl-C raises KeyboardInterrupt, as usual; outside the
    main thread, where Python allows no signal handler, the first one does.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return

    def end(*_: object) -> None:
        signal.signal(signal.SIGINT, before)
        _interrupted.set()

    before = signal.signal(signal.SIGINT, end)
    try:
        yield _interrupted.is_set
    finally:
        signal.signal(signal.SIGINT, before)
        _interrupted.clear()
