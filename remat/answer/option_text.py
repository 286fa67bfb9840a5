"""Parses and formats plug-ins with their options: `NAME` or `NAME:key=value,key=value`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, TypeVar

from remat.answer.solver import Solver
from remat.errors import InvalidOption
from remat.problem.costmodel import CostModel, Sum
from remat.words import near_of

_T = TypeVar("_T")


def split_options(text: str) -> tuple[str, list[str]]:
    """Splits a text into the name and the `key=value` pairs after the colon.

    >>> split_options('byte-traffic:mode=aggressive,rules={"random": false}')
    ('byte-traffic', ['mode=aggressive', 'rules={"random": false}'])
    """
    name, _, inline = text.partition(":")
    # Only a comma before a `key=` separates options, so JSON values may contain commas.
    return name, re.split(r",(?=\w+=)", inline) if inline else []


def options_of(plugin: type[Any]) -> dict[str, Field[Any]]:
    return {option.name: option for option in fields(plugin) if option.init}


def default_of(option: Field[Any]) -> Any:
    return option.default_factory() if option.default_factory is not MISSING else option.default


def label(plugin: Solver | CostModel) -> str:
    """Returns the name of a solver or cost model, or its constructor call if options differ from the defaults."""
    if isinstance(plugin, Sum):
        return " + ".join(label(part) for part in plugin.parts)
    changed = ", ".join(f"{name}={value!r}" for name, value in _changed(plugin).items())
    return f"{type(plugin).__name__}({changed})" if changed else plugin.name


def option_text(plugin: Any) -> str:
    """Formats a plug-in as users type it, with the options that differ from the defaults.

    >>> from costmodels import ByteTraffic
    >>> option_text(ByteTraffic() + ByteTraffic(mode="aggressive"))
    'byte-traffic + byte-traffic:mode=aggressive'
    """
    if isinstance(plugin, Sum):
        return " + ".join(map(option_text, plugin.parts))
    changed = ",".join(f"{name}={_typed(value)}" for name, value in _changed(plugin).items())
    return f"{plugin.name}:{changed}" if changed else plugin.name


def _typed(value: object) -> str:
    if isinstance(getattr(type(value), "name", None), str):  # a plug-in as an option of another
        return option_text(value)
    try:
        return value if isinstance(value, str) else json.dumps(value)
    except TypeError:
        return repr(value)


def _changed(plugin: object) -> dict[str, Any]:
    options = options_of(type(plugin)) if is_dataclass(type(plugin)) else {}
    values = {name: (getattr(plugin, name), default_of(option)) for name, option in options.items()}
    return {name: value for name, (value, default) in values.items() if _differ(value, default)}


def _differ(value: Any, default: Any) -> bool:
    try:
        return bool(value != default)
    except ValueError:  # arrays compare element by element
        return repr(value) != repr(default)


def from_options(plugin: type[_T], pairs: Sequence[str]) -> _T:
    """Makes an instance of a plug-in class from `key=value` pairs; a value is JSON, otherwise plain text.

    Raises `InvalidOption` for an unknown option, a value of the wrong type, or a missing required option.
    """
    name = getattr(plugin, "name", plugin.__name__)
    options = options_of(plugin)
    values: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals:
            raise InvalidOption(f"expected KEY=VALUE, got {pair!r}")
        if key not in options:
            raise InvalidOption(f"{name} has no option {key!r}{near_of(key, options)}")
        values[key] = _value(text)
        _check(f"{name}: {key}", values[key], options[key])
    missing = [key for key, option in options.items() if key not in values and default_of(option) is MISSING]
    if missing:
        raise InvalidOption(f"{name} needs a value for {', '.join(missing)}: {missing[0]}=VALUE")
    make: Callable[..., _T] = plugin
    try:
        return make(**values)
    except (TypeError, ValueError) as error:
        raise InvalidOption(str(error)) from error


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


# Refuses text for flags and mappings, because in Python the text "no" is true.
def _check(label: str, value: Any, option: Field[Any]) -> None:
    default = default_of(option)
    takes_text = "str" in str(option.type).split(" | ")
    if isinstance(default, bool) and not isinstance(value, bool) and not takes_text:
        raise InvalidOption(f"{label} must be true or false, got {value!r}")
    if isinstance(default, Mapping) and not isinstance(value, Mapping):
        raise InvalidOption(f'{label} must be a JSON object such as {{"name": false}}, got {value!r}')
