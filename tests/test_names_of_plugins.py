"""The core knows no plug-in by name: what it takes by default stands in the registry, and nowhere else."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import remat
from remat.answer.registry import costmodel_names, solver_names
from remat.plugin import estimator_names

CORE = Path(remat.__file__).parent
NAMES = {*solver_names(), *costmodel_names(), *estimator_names()}
COLUMNS = {"flops"}
"""Also a column of `Graph`, and a unit."""

ENGLISH = {"exhaustive", "profile", "roofline"}
"""Words that a sentence may hold: they name a plug-in only where nothing but options follows."""

ALLOWED = {
    "answer/registry.py": NAMES,  # the defaults
    "cli/app.py": {"ortools", "pulp"},  # the examples of `remat --help`
    "predict/time/profile.py": {"profile"},  # the core's own estimators say what they are called
    "predict/time/roofline.py": {"roofline"},
}

_ALONE, _ANYWHERE = ("|".join(sorted(names)) for names in (ENGLISH, NAMES - COLUMNS - ENGLISH))
WORD = re.compile(rf"(?<![\w-])({_ANYWHERE})(?![\w-])|^({_ALONE})(?=:|$)")


def texts(source: str) -> Iterator[tuple[int, str]]:
    """(line, text) of each text in Python source that is no docstring."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, documented)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.lineno, node.value


def named(text: str) -> list[str]:
    return [match.group() for match in WORD.finditer(text)]


def test_no_plugin_is_known_by_name() -> None:
    found = [
        f"{path}:{line} {name}"
        for file in sorted(CORE.rglob("*.py"))
        for line, text in texts(file.read_text())
        for name in named(text)
        if name not in ALLOWED.get(path := file.relative_to(CORE).as_posix(), set())
    ]
    assert found == []


def test_a_name_is_found_in_the_middle_of_a_text_but_not_in_a_docstring() -> None:
    source = '"""Like pulp."""\ndef f():\n    """As ortools."""\n    return f"use {1} ortools:threads=2, scipy-like"'
    assert [(line, named(text)) for line, text in texts(source) if named(text)] == [(4, ["ortools"])]
    assert [named(text) for text in ("profile", "roofline:device=a100", "a profile of pulp")] == [
        ["profile"],
        ["roofline"],
        ["pulp"],
    ]
