"""Checks arguments at the entry points, so that an error names the argument."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from remat.errors import CaptureError, InvalidOption, RematError
from remat.facts.columns import is_whole
from remat.words import parse_bytes

_T = TypeVar("_T")


def checked_path(path: object) -> Path:
    """Returns the path of a file or folder; raises `InvalidOption` for anything but text or a path."""
    if not isinstance(path, str | os.PathLike):
        raise InvalidOption(f"a file must be named by text or a pathlib.Path, got {path!r}")
    return Path(cast(str, path))


def checked_list(label: str, items: Iterable[_T], error: type[RematError]) -> list[_T]:
    """Returns the items as a list; raises `error` for text, which Python would split, and for a single object."""
    if isinstance(items, str | bytes) or not isinstance(items, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise error(f"{label} must be a list or another sequence, got {cast(Any, items)!r}")
    return list(items)


def checked_flag(label: str, flag: object) -> bool:
    """Returns the same flag; raises an `InvalidOption` that begins with `label` for anything else.

    In Python any object can be a condition: "no" would be true.
    """
    if not isinstance(flag, bool):
        raise InvalidOption(f"{label} must be True or False, got {flag!r}")
    return flag


def checked_number(label: str, number: Any, least: int = 0) -> int:
    """Returns a whole number as an `int`; raises an `InvalidOption` that begins with `label` if it is below `least`."""
    if not is_whole(number) or number < least:
        raise InvalidOption(f"{label} must be a whole number of at least {least}, got {number!r}")
    return int(number)


def checked_bytes(label: str, amount: Any) -> int:
    """Converts a whole number, or a size such as "80GB", to a number of bytes.

    Raises an `InvalidOption` that begins with `label` for anything else.
    """
    if isinstance(amount, str):
        return parse_bytes(amount, label)
    if not is_whole(amount) or amount < 0:
        raise InvalidOption(f'{label} must be a whole number of bytes, or a size such as "80GB", got {amount!r}')
    return int(amount)


def model_and_arguments(label: str, answer: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Returns what a factory returned: a model, arguments, and keyword arguments if there are any.

    Raises a `CaptureError` that begins with `label` for anything else.
    """
    parts = list(cast(tuple[Any, ...], answer)) if type(answer) is tuple else [answer]
    triple: list[Any] = [*parts, {}] if len(parts) == 2 else parts
    if len(triple) == 3 and isinstance(triple[1], (tuple, list)) and isinstance(triple[2], dict):
        return triple[0], tuple(cast(Sequence[Any], triple[1])), cast(dict[str, Any], triple[2])
    got = ", ".join(type(part).__name__ for part in parts)
    raise CaptureError(
        f"{label} must return (model, tuple of args) or (model, tuple of args, dict of kwargs), got ({got})"
    )
