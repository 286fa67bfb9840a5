"""Runs the commands of `remat` as a shell does, in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from typer.testing import CliRunner, Result

from remat.cli.app import app


def run(*arguments: object, code: int = 0) -> Result:
    """Runs one, on a wide terminal, and checks its exit code."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "300"})
    assert result.exit_code == code, result.output
    return result


def answer(*arguments: object) -> Any:
    """What `--json` prints; fails if there is anything else on standard output."""
    return json.loads(run(*arguments, "--json").stdout)


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Calls a function the first time only: later calls must have the same numbers and words."""
    found: list[Any] = []

    def called(*arguments: Any, **options: Any) -> Any:
        asked = [one for one in (*arguments, *options.values()) if isinstance(one, (str, int, float, type(None)))]
        if not found:
            found.extend([asked, function(*arguments, **options)])
        assert asked == found[0]
        return found[1]

    return called
