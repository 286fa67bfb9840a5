"""Docstrings and the glossary name what there is: arguments, fields, classes; and what users call has a docstring."""

from __future__ import annotations

import ast
import dataclasses
import importlib.util
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType

import pytest

import remat
import remat.plugin

ROOT = Path(remat.__file__).parent.parent
ROOMS = ("remat", "solvers", "costmodels")
SECTION = re.compile(r"^(?:Args|Attributes):\n((?:(?: {4}.*)?\n)*)", re.MULTILINE)
ENTRY = re.compile(r"^ {4}([\w*]+(?:, [\w*]+)*):", re.MULTILINE)

Documented = ast.ClassDef | ast.FunctionDef


def listed(docstring: str) -> set[str]:
    """The names of all entries below `Args:` and `Attributes:`."""
    blocks = SECTION.findall(docstring + "\n")
    return {name.strip("*") for block in blocks for names in ENTRY.findall(block) for name in names.split(", ")}


def names_in(node: Documented) -> set[str]:
    """The parameters of a function; the fields, properties and constructor's parameters of a class."""
    if isinstance(node, ast.FunctionDef):
        return {part.arg for part in ast.walk(node.args) if isinstance(part, ast.arg)}
    names: set[str] = set()
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            names.add(part.target.id)
        elif isinstance(part, ast.FunctionDef):
            names |= {part.name, *(names_in(part) if part.name == "__init__" else ())}
            names |= {
                it.attr for it in ast.walk(part) if isinstance(it, ast.Attribute) and isinstance(it.ctx, ast.Store)
            }
    return names


def entries_without_a_name(source: str) -> list[str]:
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, Documented)]
    return [
        f"{node.name}: {name}"
        for node in nodes
        for name in sorted(listed(ast.get_docstring(node) or "") - names_in(node))
    ]


@pytest.mark.parametrize("room", ROOMS)
def test_a_docstring_lists_only_arguments_and_fields_that_there_are(room: str) -> None:
    wrong = {str(path): entries_without_a_name(path.read_text()) for path in sorted((ROOT / room).rglob("*.py"))}
    assert {name: entries for name, entries in wrong.items() if entries} == {}


def test_an_entry_for_a_renamed_argument_is_found() -> None:
    source = 'def f(owner):\n    """Does.\n\n    Args:\n        about: a graph.\n            about: it\n    """\n'
    assert entries_without_a_name(source) == ["f: about"]
    assert entries_without_a_name(source.replace("owner", "about")) == []


def without_docstring(module: ModuleType) -> Iterator[str]:
    """Functions, classes, public methods and properties of `remat` that a module gives without a docstring."""
    for name in dir(module):
        thing = getattr(module, name)
        if isinstance(thing, ModuleType) or not getattr(thing, "__module__", "").startswith("remat."):
            continue
        if not inspect.getdoc(thing):
            yield name
        for label, member in inspect.getmembers(thing) if inspect.isclass(thing) else ():
            is_ours = callable(member) or isinstance(inspect.getattr_static(thing, label), property | cached_property)
            if is_ours and not label.startswith("_") and not inspect.getdoc(member):
                yield f"{name}.{label}"


@pytest.mark.parametrize("module", [remat, remat.plugin], ids=["remat", "remat.plugin"])
def test_what_users_and_authors_of_plug_ins_call_has_a_docstring(module: ModuleType) -> None:
    assert list(without_docstring(module)) == []


def is_there(name: str) -> bool:
    """Whether a name leads to something; `Graph.view` is short for `remat.Graph.view`."""
    *owner, last = name.split(".")
    for prefix in ("", "remat.plugin.", "remat.", "solvers."):
        try:
            if not owner:
                return bool(resolve_name(name))
            thing = resolve_name(prefix + ".".join(owner))
        except (ImportError, AttributeError):
            continue
        fields = {field.name for field in dataclasses.fields(thing)} if dataclasses.is_dataclass(thing) else set[str]()
        if hasattr(thing, last) or last in fields or importlib.util.find_spec(name):
            return True
    return False


def test_the_glossary_names_what_is_in_the_code() -> None:
    rows = re.findall(r"^\|.*\| ([^|]*`[^|]*) \|$", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE)
    assert len(rows) > 30
    names = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert [name for name in names if name != "roofline" and not is_there(name)] == []
