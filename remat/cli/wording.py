"""Says the library's messages in the words of the shell: options as they are typed, and no endless values."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from remat.answer.registry import (
    costmodel_class,
    costmodel_names,
    estimator_class,
    estimator_names,
    solver_class,
    solver_names,
)
from remat.errors import RematError, without_endless_words
from remat.improve.refine.named_objectives import OBJECTIVES

_OPTIONS = {
    "cost_model": "-m",
    "solver": "-s",
    "time_limit_s": "--time-limit",
    "extra_bytes": "--extra",
    "starts": "--start",
    **{
        name: f"--{name}"
        for name in ("device", "objective", "oracle", "optimizer", "memory", "budgets", "seed", "plan")
    },
}
"""What arguments of the library's functions are called on the command line."""

_COMMANDS = {
    "choose": "solve",
    "predict_traffic": "traffic",
    "traffic_frontier": "traffic-frontier",
    "largest_batch": "largest-batch",
    **{name: name for name in ("capture", "compare", "explain", "forecast", "frontier", "refine", "show", "timeline")},
}
"""The commands that do what the library's functions do."""

# What stands in parentheses may hold some, once: remat.forecast(model, cost_models=[MemoryBudget(0.5)]).
_CALL = re.compile(r"\bremat\.(\w+)\((?:[^()]|\([^()]*\))*\)")
_GRAPH = re.compile(r"\b(?:Graph|Plan)(?:\.(?=\w)|: )")
_GIVEN = re.compile(r"""\b(\w+)=(?:"([^"]*)"|'([^']*)')""")
_ARGUMENT = re.compile(rf"^({'|'.join(_OPTIONS)})(?= must |\[)")


def spoken(message: str) -> str:
    """Rewords a message of the library for somebody who typed a command.

    >>> spoken("MemoryBudget.of must be one of saved, peak, got 'all'")
    "memory-budget: of must be one of saved, peak, got 'all'"
    >>> spoken("10 s were not enough; solver=Portfolio(seconds=60) looks longer")
    '10 s were not enough; -s portfolio:seconds=60 looks longer'
    >>> spoken("time_limit_s must be positive, got " + 300 * "9")[:60]
    '--time-limit must be positive, got 9999999999999999999999999'
    >>> spoken("ByteTraffic(mode='aggressive') + multi-read")
    'byte-traffic:mode=aggressive + multi-read'
    """
    names = _plugins()
    kinds = "|".join(names)
    message = re.sub(rf"\b({kinds})\.(?=\w)", lambda found: f"{names[found[1]]}: ", message)
    made = rf"(?:\b(solver|cost_model|objective)=)?\b(?:{kinds})\((?:[^()]|\([^()]*\))*\)"
    message = re.sub(made, lambda found: _typed(found[0], found[1]), message)
    message = _CALL.sub(_command, message)
    message = _GRAPH.sub("", message)
    message = _GIVEN.sub(_option, message)
    message = _ARGUMENT.sub(lambda found: _OPTIONS[found[1]], message)
    return without_endless_words(message)


def _typed(code: str, argument: str | None) -> str:
    """Writes the code that makes a plug-in as `name:key=value`, behind the option that takes it, if one was named."""
    try:
        call: Any = ast.parse(code.removeprefix(f"{argument}="), mode="eval").body
    except SyntaxError:
        return code
    if call.args:  # their keys are not known
        return code
    pairs = ",".join(f"{keyword.arg}={_value(keyword.value)}" for keyword in call.keywords)
    name = ":".join(filter(None, (_plugins()[call.func.id], pairs)))
    return f"{_OPTIONS[argument]} {name}" if argument else name


def _command(found: re.Match[str]) -> str:
    name = found[1]
    return f"`remat {_COMMANDS[name]}`" if name in _COMMANDS else f"remat.{name} in Python"


def _value(node: Any) -> str:
    try:
        value = ast.literal_eval(node)
    except ValueError:  # another plug-in
        return spoken(ast.unparse(node))
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _option(found: re.Match[str]) -> str:
    """Writes an argument as its option, and an option of a plug-in without the quotes that a shell would take away."""
    value = found[2] or found[3] or ""
    return f"{_OPTIONS[found[1]]} {value}" if found[1] in _OPTIONS else f"{found[1]}={value}"


def _plugins() -> dict[str, str]:
    found = {kind.__name__: name for name, kind in OBJECTIVES.items()}
    groups: Iterable[tuple[Callable[[], list[str]], Callable[[str], type[Any]]]] = (
        (estimator_names, estimator_class),
        (solver_names, solver_class),
        (costmodel_names, costmodel_class),
    )
    for names, load in groups:
        with suppress(RematError):  # the message to be reworded may be that of such an error
            for name in names():
                with suppress(RematError):  # nothing can come from what is not installed
                    found[load(name).__name__] = name
    return found
