"""Defines every error that `remat` raises on purpose.

Each message says what was expected, what came, and what to do about it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_BEGINNING, _END = 1500, 400
_ENDLESS = re.compile(r"(\S{60})(\S{140,})")


class RematError(Exception):
    """Serves as the base class of every error below: `except remat.RematError` catches them all.

    A message of more than 1,900 characters loses its middle.
    """

    def __init__(self, message: str = "") -> None:
        if len(message) > _BEGINNING + _END:
            message = without_endless_words(message)
        omitted = len(message) - _BEGINNING - _END
        if omitted > 0:
            message = f"{message[:_BEGINNING]} ... ({omitted:,} characters are left out) ... {message[-_END:]}"
        super().__init__(message)


def without_endless_words(message: str) -> str:
    """Shortens words of 200 characters or more, such as the repr of an array."""
    return _ENDLESS.sub(lambda word: f"{word[1]}... ({len(word[0]):,} characters)", message)


class InvalidGraph(RematError):
    """A graph (or a graph file) breaks one of the rules of `remat.Graph`."""


class InvalidProblem(RematError):
    """A problem's arrays contradict each other or are out of range."""


class InvalidPlan(RematError):
    """A plan is not a legal answer to the problem, or does not cost what it claims."""


class CertificateRejected(RematError):
    """A solver's proof of optimality does not prove what the solver claims."""


class UnknownName(RematError):
    """No solver, cost model or value has this name."""


class InvalidOption(RematError, ValueError):
    """An option of a solver, a cost model or a call is not allowed."""


class NotInstalled(RematError):
    """The package behind a solver or a feature is missing."""


class UnsupportedProblem(RematError):
    """The chosen solver cannot take this problem."""


class LimitReached(RematError):
    """A limit stopped the solver before it had any plan."""


class CaptureError(RematError):
    """A model's joint graph could not be captured."""


class CannotRebuild(RematError):
    """An operator or its arguments cannot be rebuilt from a graph's columns; the message says why."""


class UnsupportedTorch(RematError):
    """The installed torch lacks something that `remat` uses."""


class Infeasible(RematError):
    """No plan exists.

    Attributes:
        path: the values that contradict each other, in dataflow order, each with the reasons that forbid
            it; empty when a byte budget makes the problem infeasible.
    """

    def __init__(self, message: str, path: Sequence[tuple[str, tuple[str, ...]]] = ()) -> None:
        super().__init__(message)
        self.path = tuple(path)
