"""Runs a check on many random inputs and reports the input that fails; all checks of plug-ins share this."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import TypeVar

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from remat.answer.solver import Solver
from remat.facts.graph import Graph
from remat.problem.costmodel import CostModel
from remat.problem.estimator import Estimator
from remat.problem.problem import Problem

_T = TypeVar("_T")


def for_all(
    strategy: st.SearchStrategy[_T],
    max_examples: int,
    plugin: Solver | CostModel | Estimator,
    check: Callable[[_T], None],
) -> None:
    """Runs a check on random inputs, and raises an `AssertionError` that names an input which fails it."""

    def attempt(example: _T) -> None:
        try:
            check(example)
        except Exception as error:
            what = str(error) if isinstance(error, AssertionError) else f"{plugin!r}: {type(error).__name__}: {error}"
            raise AssertionError(f"{what}\nfor {_code(example)}") from error

    suppressed = [HealthCheck.too_slow, HealthCheck.nested_given]
    options = settings(max_examples=max_examples, deadline=None, derandomize=True, database=None)
    try:
        settings(options, suppress_health_check=suppressed, report_multiple_bugs=False)(given(strategy)(attempt))()
    except Flaky as error:
        raise AssertionError(f"{plugin!r} is not deterministic: what failed once does not fail again") from error


def _code(example: object) -> str:
    if isinstance(example, Graph):
        uses = zip(example.producers.tolist(), example.consumers.tolist(), strict=True)
        return f"{example!r} with {', '.join(f'{example.names[u]} -> {example.names[v]}' for u, v in uses)}"
    if not isinstance(example, Problem):
        return repr(example)
    offload = ""
    if example.offload is not None:
        banned = example.offload.banned.mask.tolist()
        costs = ["inf" if no else str(cost) for cost, no in zip(example.offload.cost.tolist(), banned, strict=True)]
        offload = f", offload_cost=[{', '.join(costs)}]"
    code = (
        f"Problem.of({example.save_cost.tolist()}, "
        f"edges={list(zip(example.producers.tolist(), example.consumers.tolist(), strict=True))}, "
        f"needed={np.flatnonzero(example.needed).tolist()}, "
        f"recompute_cost={example.recompute_cost.tolist()}, save_bytes={example.save_bytes.tolist()}, "
        f"cannot_save={example.cannot_save.as_dict()}, cannot_recompute={example.cannot_recompute.as_dict()}, "
        f"budget_bytes={example.budget_bytes}{offload})"
    )
    rows = [f"BudgetRow({row.name!r}, {row.values.tolist()}, {row.bytes})" for row in example.rows]
    return f"replace({code}, rows=({', '.join(rows)},))" if rows else code


def require(condition: bool, requirement: str) -> None:
    if not condition:
        raise AssertionError(requirement)


def require_options(plugin: Solver | CostModel | Estimator) -> None:
    """Requires that a plug-in has a name, and options that are a frozen dataclass with a readable repr."""
    cls, parameters = type(plugin), getattr(type(plugin), "__dataclass_params__", None)
    require(isinstance(getattr(cls, "name", None), str), f"{cls.__name__}.name must be a string: what users type")
    require(parameters is not None and parameters.frozen, f"{cls.__name__} must be a @dataclass(frozen=True)")
    require(" at 0x" not in repr(plugin), f"{cls.__name__} must have a repr that shows its options, got {plugin!r}")


def is_hashable(solver: Solver | Estimator) -> bool:
    """Returns whether a plug-in is hashable, and a copy of it has the same hash."""
    try:
        return hash(solver) == hash(copy.deepcopy(solver))
    except TypeError:
        return False


def with_other_labels(graph: Graph) -> Graph:
    labels = tuple(f"value {i}" for i in range(len(graph)))
    return dataclasses.replace(graph, names=labels, storage=len(graph) - graph.storage)
