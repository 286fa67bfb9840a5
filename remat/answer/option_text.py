"""Plug-ins with options, as text: `NAME` or `NAME:key=value,key=value`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

from remat.answer.plan_facts import default_of
from remat.errors import InvalidOption
from remat.words import near

_T = TypeVar("_T")


def split_options(text: str) -> tuple[str, list[str]]:
    """The name, and the `key=value` pairs behind its colon.

    >>> split_options('byte-traffic:mode=aggressive,rules={"random": false}')
    ('byte-traffic', ['mode=aggressive', 'rules={"random": false}'])
    """
    name, _, inline = text.partition(":")
    # A comma separates options only before the next `key=`, so that JSON values may hold some.
    return name, re.split(r",(?=\w+=)", inline) if inline else []


def options_of(plugin: type[Any]) -> dict[str, Field[Any]]:
    """The options of a plug-in class: its dataclass fields."""
    return {option.name: option for option in fields(plugin) if option.init}


def configured(plugin: type[_T], pairs: Sequence[str]) -> _T:
    """An instance of a plug-in class, with options given as `key=value`; values are JSON, or else text.

    Raises:
        InvalidOption: no such option, a value of the wrong kind, or one is missing.
    """
    name = getattr(plugin, "name", plugin.__name__)
    known = options_of(plugin)
    chosen: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise InvalidOption(f"expected KEY=VALUE, got {pair!r}")
        if key not in known:
            listed = ", ".join(known) or "none"
            raise InvalidOption(f"{name} has no option {key!r}{near(key, known) or '.'} There are: {listed}")
        chosen[key] = _value(text)
        _check(f"{name}: {key}", chosen[key], known[key])
    missing = [key for key, option in known.items() if key not in chosen and default_of(option) is MISSING]
    if missing:
        raise InvalidOption(f"{name} needs a value for {', '.join(missing)}: {missing[0]}=VALUE")
    make: Callable[..., _T] = plugin
    try:
        return make(**chosen)
    except (TypeError, ValueError) as error:
        raise InvalidOption(str(error)) from error


def _value(text: str) -> Any:
    """JSON where it is JSON, else the text itself: `true`, `0.5`, `{"a": 1}`, `8GB`, `aggressive`."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _check(label: str, value: Any, option: Field[Any]) -> None:
    """Refuses text where the default says that something else is meant: "yes" is true, in Python."""
    default = default_of(option)
    if isinstance(default, bool) and not isinstance(value, bool):
        raise InvalidOption(f"{label} must be true or false, got {value!r}")
    if isinstance(default, Mapping) and not isinstance(value, Mapping):
        raise InvalidOption(f'{label} must be a JSON object such as {{"name": false}}, got {value!r}')
