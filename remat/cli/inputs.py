"""Turns what users type on the command line into objects: plug-ins with options, graphs, plans, models."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any, TypeVar

import typer

from remat.answer.option_text import from_options, split_options
from remat.answer.plan import Plan
from remat.answer.registry import DEFAULT_COST_MODEL, costmodel_class, solver_class
from remat.answer.solver import Solver
from remat.cli.wording import spoken
from remat.errors import CaptureError, InvalidOption, NotInstalled, UnknownName
from remat.facts.argument_checks import model_and_arguments
from remat.facts.corpus import Corpus
from remat.facts.graph import Graph
from remat.improve.choose import choose
from remat.problem.costmodel import CostModel
from remat.words import near

_TORCHS = "pytorch:"

_Plugin = TypeVar("_Plugin", Solver, CostModel)


def solver_of(text: str, options: Sequence[str] = ()) -> Solver:
    """Makes a solver from `NAME` or `NAME:key=value,key=value`, with further `key=value` options."""
    name, inline = split_options(text)
    return _configured(solver_class(name), inline, options, "-S")


def solver_if_named(text: str | None, options: Sequence[str] | None = None) -> Solver | None:
    """Makes a solver as `solver_of` does; returns None without a name, so that the problem decides who solves it."""
    if text is None and options:
        raise typer.BadParameter("-S sets an option of a solver: name it with -s")
    return None if text is None else solver_of(text, options or ())


def cost_model_of(text: str | None, options: Sequence[str] | None = None) -> CostModel:
    """Makes a cost model from `NAME` or `NAME:key=value,key=value`, with further options.

    Without a name, it is the default one.
    """
    name, inline = split_options(text or DEFAULT_COST_MODEL)
    return _configured(costmodel_class(name), inline, options or (), "-O")


def cost_models_of(texts: Sequence[str], options: Sequence[str] | None = None) -> list[CostModel]:
    """Makes cost models as `cost_model_of` does; further options are those of the only one."""
    if options and len(texts) != 1:
        how = "write -m NAME:KEY=VALUE for each" if texts else "name it with -m"
        raise typer.BadParameter(f"-O sets an option of one cost model: {how}")
    return [cost_model_of(text, options) for text in texts]


def chosen_plan(
    graph: Graph,
    plan: str,
    cost_model: str | None = None,
    solver: str | None = None,
    model_options: Sequence[str] | None = None,
    solver_options: Sequence[str] | None = None,
) -> Plan:
    """Reads the plan of `--plan FILE`, asks for that of `pytorch:BUDGET`, or solves for that of `solved`."""
    if plan != "solved":
        if cost_model or solver or model_options or solver_options:
            raise typer.BadParameter(
                f"-m and -s, -O and -S decide what to solve, but --plan {plan} is a plan already: leave them out"
            )
        return _torchs_plan(graph, plan) if plan.startswith(_TORCHS) else Plan.load(plan)
    model, chosen = cost_model_of(cost_model, model_options), solver_if_named(solver, solver_options)
    solution = choose(graph, model, chosen)
    assert solution.plan is not None  # choose() raises where there is none
    return solution.plan


def _torchs_plan(graph: Graph, text: str) -> Plan:
    """Asks PyTorch for its plan at a memory budget; what it recomputes and may not is saved, too."""
    try:
        budget = float(text.removeprefix(_TORCHS))
    except ValueError:
        budget = -1.0
    if not 0 <= budget <= 1:
        raise typer.BadParameter(f"--plan pytorch:BUDGET takes a number from 0 to 1, as in pytorch:0.5, got {text!r}")
    if find_spec("torch") is None:
        raise NotInstalled(f"--plan {text} needs torch: pip install 'remat[torch]'")
    from remat.pytorch.measure.torch_budgets import torchs_plans_of

    return torchs_plans_of(graph, [budget], legal=True)[budget]


def graph_file(path: Path) -> Path:
    """Returns the path of a graph file; of an instance of the corpus, if that is named and there is no such file.

    Raises:
        UnknownName: it is neither, and an instance has nearly that name.
    """
    if path.exists() or str(path) != path.stem:
        return path
    with suppress(NotInstalled):
        corpus = Corpus.open()
        names = [entry.name for entry in corpus.entries]
        if str(path) in names:
            return corpus.path(str(path))
        if hint := near(str(path), names):
            raise UnknownName(f"{path}: no such file, and no graph of the corpus is named so{hint}")
    return path


def load_factory(text: str) -> Callable[..., tuple[Any, tuple[Any, ...], dict[str, Any]]]:
    """Finds `MODULE:FACTORY`, whose results are read: (model, args) or (model, args, kwargs).

    The current directory is importable, as with `python -m`. A module may be named by its file: `my_models.py:gpt2`.

    Raises:
        CaptureError: there is no such module, or it cannot be called as it is called here.
        UnknownName: the module has no such name.
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
    def made(*given: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        try:
            signature(factory).bind(*given)
        except TypeError as error:
            how = "a batch size" if given else "no arguments"
            raise CaptureError(f"{text} is called with {how}: {error}") from None
        return model_and_arguments(text, factory(*given))

    return made


def _configured(plugin: type[_Plugin], inline: Sequence[str], pairs: Sequence[str], flag: str) -> _Plugin:
    """Makes a plug-in; an error names each option as it was typed: in its pair, or behind its flag."""
    try:
        return from_options(plugin, [*inline, *pairs])
    except InvalidOption as error:
        message = spoken(str(error))
        for key in {pair.partition("=")[0] for pair in pairs}:
            message = message.replace(f"{plugin.name}: {key} ", f"{flag} {key} ")
        raise InvalidOption(message) from error
