"""Says how a search tells a caller how far it is."""

from __future__ import annotations

from collections.abc import Callable

from remat.errors import InvalidOption

Progress = Callable[[int, tuple[int, ...]], None]
"""Called with the number of plans looked at so far, and a score; each search says which."""


def check_progress(progress: object) -> None:
    """Refuses what cannot be called.

    Raises:
        InvalidOption: it is neither None nor a function.
    """
    if progress is not None and not callable(progress):
        raise InvalidOption(f"progress must be a function of a count and a score, got {progress!r}")
