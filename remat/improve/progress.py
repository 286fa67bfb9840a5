"""Defines how a search reports its progress, and how it ends: after so many predictions, in time, or by Ctrl-C."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

from remat.answer.solution import Termination, TerminationReason
from remat.answer.solver import Solver
from remat.errors import InvalidOption
from remat.problem.features import Feature

Progress = Callable[[int, tuple[int, ...]], None]
"""A function that is called with the number of plans so far, and with a score, which each search documents."""

_interrupted = threading.Event()

_deadline_s: ContextVar[float | None] = ContextVar("deadline_s", default=None)

# A list of one number, so that all that runs in a block counts down the same number.
_values_left: ContextVar[list[int] | None] = ContextVar("values_left", default=None)


class OutOfTime(Exception):
    """Ends a search that has no time, or no prediction, for another plan; the caller has the plans found before."""


def check_progress(progress: object) -> None:
    """Checks that `progress` can be called.

    Raises:
        InvalidOption: `progress` is neither None nor a function.
    """
    if progress is not None and not callable(progress):
        raise InvalidOption(f"progress must be a function of a count and a score, got {progress!r}")


def is_over(deadline_s: float | None = None) -> bool:
    """Says if a search must end now and return the best plan so far: its time is up, or the user pressed Ctrl-C.

    Args:
        deadline_s: one more deadline besides that of `ending_within`, a time of `time.monotonic`; None sets none.
    """
    ends = [one for one in (deadline_s, _deadline_s.get()) if one is not None]
    return _interrupted.is_set() or (bool(ends) and time.monotonic() > min(ends))


def go_on() -> None:
    """Raises `OutOfTime` if the search is over."""
    if is_over():
        raise OutOfTime


def count_prediction(values: int) -> None:
    """Counts the prediction of a step of so many values.

    Raises:
        OutOfTime: the search is over, or this prediction is one too many (`predicting_at_most`).
    """
    go_on()
    if (left := _values_left.get()) is not None:
        left[0] -= values
        if left[0] < 0:
            raise OutOfTime


def predictions_left(values: int) -> float:
    """Returns how many steps of so many values may still be predicted; infinity if that is not limited."""
    left = _values_left.get()
    return math.inf if left is None else max(left[0] // values, 0)


@contextmanager
def predicting_at_most(values: int) -> Generator[None]:
    """Makes the search in a block end with the best plan so far, once predicted steps have so many values together.

    Unlike a time limit, this leads to the same plan on every machine. Where a time limit is set, that alone counts.
    """
    token = _values_left.set(None if _deadline_s.get() is not None else [values])
    try:
        yield
    finally:
        _values_left.reset(token)


@contextmanager
def ending_within(time_limit_s: float | None) -> Generator[None]:
    """Makes all searches in a block end together after a time, each with its best plan so far; None sets no limit."""
    before = _deadline_s.get()
    ends = [
        one for one in (before, None if time_limit_s is None else time.monotonic() + time_limit_s) if one is not None
    ]
    token = _deadline_s.set(min(ends, default=None))
    try:
        yield
    finally:
        _deadline_s.reset(token)


def limit_for(solver: Solver, time_limit_s: float | None) -> float | None:
    """Returns the seconds that a solver may take: the limit, or what `ending_within` leaves, if that is less.

    None if neither limits the time, or if the solver takes no limit.
    """
    if Feature.TIME_LIMIT not in solver.features:
        return None
    deadline_s = _deadline_s.get()
    left_s = None if deadline_s is None else max(deadline_s - time.monotonic(), 1e-3)
    return min((limit for limit in (time_limit_s, left_s) if limit is not None), default=None)


def ended_early() -> Termination:
    """Describes why `is_over` ended a search."""
    limit, what = ("interrupt", "Ctrl-C") if _interrupted.is_set() else ("time", "the time limit")
    return Termination(TerminationReason.FEASIBLE, limit=limit, detail=f"{what} stopped the search: the best so far")


def end_at_ctrl_c() -> None:
    """Makes Ctrl-C end all searches of this process, a worker of a pool; each returns its best plan so far."""

    def end(*_: object) -> None:
        _interrupted.set()

    signal.signal(signal.SIGINT, end)


@contextmanager
def ending_at_ctrl_c() -> Generator[Callable[[], bool]]:
    """Makes the first Ctrl-C end the searches in a block, which then return their best plans so far.

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
