"""What a caller gave as a path or a list, checked where it comes in: the message is about the argument."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from remat.errors import CaptureError, InvalidOption, RematError

_T = TypeVar("_T")


def checked_path(path: object) -> Path:
    """Returns the path of a file or folder that was named.

    Raises:
        InvalidOption: it is neither text nor a path.
    """
    if not isinstance(path, str | os.PathLike):
        raise InvalidOption(f"a file is named by text or a pathlib.Path, got {path!r}")
    return Path(cast(str, path))


def checked_list(label: str, items: Iterable[_T], error: type[RematError]) -> list[_T]:
    """Lists what was given as several things; text is one thing."""
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise error(f"{label} must be a list or the like, got {cast(Any, items)!r}")
    return list(items)


def checked_flag(label: str, flag: object) -> bool:
    """Returns the same flag. Any other object is true or false, too: "no" would be true.

    Raises:
        InvalidOption: it is neither True nor False; the message begins with `label`.
    """
    if not isinstance(flag, bool):
        raise InvalidOption(f"{label} must be True or False, got {flag!r}")
    return flag


def model_and_arguments(label: str, answer: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Reads what a factory returned: a model, arguments, and keyword arguments if there are any.

    Raises:
        CaptureError: it is something else.
    """
    parts = list(cast(tuple[Any, ...], answer)) if type(answer) is tuple else [answer]
    whole: list[Any] = [*parts, {}] if len(parts) == 2 else parts
    if len(whole) == 3 and isinstance(whole[1], (tuple, list)) and isinstance(whole[2], dict):
        return whole[0], tuple(cast(Sequence[Any], whole[1])), cast(dict[str, Any], whole[2])
    got = ", ".join(type(part).__name__ for part in parts)
    raise CaptureError(
        f"{label} must return (model, tuple of args) or (model, tuple of args, dict of kwargs), got ({got})"
    )
