"""Converts what users type to objects: plug-ins with options, graphs, plans, models."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

import typer

from remat.answer.option_text import from_options, split_options
from remat.answer.registry import DEFAULT_COST_MODEL, costmodel_class, solver_class
from remat.answer.solver import Solver
from remat.errors import CaptureError, InvalidOption, NotInstalled, UnknownName
from remat.facts.argument_checks import model_and_arguments
from remat.facts.corpus import Corpus
from remat.problem.costmodel import CostModel
from remat.words import near

_Plugin = TypeVar("_Plugin", Solver, CostModel)


def solver_of(text: str, options: Sequence[str] = ()) -> Solver:
    """Makes a solver from `NAME` or `NAME:key=value,key=value`, with further `key=value` options."""
    return _configured(solver_class(split_options(text)[0]), text, options, "-S")


def cost_model_of(text: str | None, options: Sequence[str] | None = None) -> CostModel:
    """Makes a cost model from `NAME` or `NAME:key=value,key=value`, with further options; None means the default."""
    text = text or DEFAULT_COST_MODEL
    return _configured(costmodel_class(split_options(text)[0]), text, options or (), "-O")


def cost_models_of(texts: Sequence[str], options: Sequence[str] | None = None) -> list[CostModel]:
    """Makes cost models like `cost_model_of`; further options are allowed only for a single one."""
    if options and len(texts) != 1:
        how = "write -m NAME:KEY=VALUE for each" if texts else "name it with -m"
        raise typer.BadParameter(f"-O sets an option of one cost model: {how}")
    return [cost_model_of(text, options) for text in texts]


def graph_file(path: Path) -> Path:
    """Returns the path of a graph file, or of the instance of the corpus with this name if there is no such file."""
    name = path.name.removesuffix(".gz").removesuffix(".json")
    if path.exists():
        return path
    with suppress(NotInstalled):
        corpus = Corpus.open()
        names = [entry.name for entry in corpus.entries]
        if str(path) in names:
            return corpus.path(str(path))
        if name in names:
            raise UnknownName(
                f"{path}: no such file, but the corpus has this graph: name it {name!r}, or copy it with "
                f"`remat corpus get {name} -o {path}`"
            )
        if str(path) == path.stem:
            hint = near(name, names) or "; `remat corpus list` names all"
            raise UnknownName(f"{path}: no such file, and no graph of the corpus has this name{hint}")
    return path


def graph_files(paths: list[Path]) -> list[Path]:
    return [*map(graph_file, paths)]


def load_factory(text: str, read: Callable[[str, Any], Any] = model_and_arguments) -> Callable[..., Any]:
    """Imports `MODULE:FACTORY` and returns a function that calls it and reads its result.

    By default, the result is (model, args[, kwargs]). The current directory is importable, as with `python -m`. A
    module may be named by its file: `my_models.py:gpt2`.
    """
    module_name, _, name = text.partition(":")
    if not module_name or not name:
        raise typer.BadParameter(f"expected MODULE:FACTORY, such as my_package.models:gpt2, got {text!r}")
    sys.path.insert(0, str(Path.cwd()))
    if module_name.endswith(".py") and (file := Path(module_name).resolve()).is_file():
        root = Path.cwd() if file.is_relative_to(Path.cwd()) else file.parent
        sys.path.insert(0, str(root))
        module_name = ".".join(file.relative_to(root).with_suffix("").parts)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise CaptureError(f"cannot import {module_name!r}: {error}") from error
    if not hasattr(module, name):
        raise UnknownName(f"{module_name} has no {name!r}{near(name, dir(module))}")
    factory = getattr(module, name)
    if not callable(factory):
        raise CaptureError(f"{text} must be a function that returns (model, args[, kwargs]), got {factory!r}")

    @wraps(factory)
    def build(*args: Any) -> Any:
        try:
            signature(factory).bind(*args)
        except TypeError as error:
            how = "a batch size" if args else "no arguments"
            raise CaptureError(f"{text} must be a function that can be called with {how}: {error}") from None
        return read(text, factory(*args))

    return build


# An error begins with what the user typed.
def _configured(plugin: type[_Plugin], text: str, pairs: Sequence[str], flag: str) -> _Plugin:
    try:
        return from_options(plugin, [*split_options(text)[1], *pairs])
    except InvalidOption as error:
        typed = [*([text] if ":" in text or not pairs else []), *(f"{flag} {pair}" for pair in pairs)]
        raise InvalidOption(f"{' '.join(typed)}: {error}") from error
