"""Lets a command take a group of options as one parameter: a dataclass, of which each field is an option."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from importlib.util import find_spec
from inspect import Parameter, Signature, signature
from typing import Any, get_type_hints

import typer

from remat.answer.plan import Plan
from remat.answer.solver import Solver
from remat.cli.inputs import cost_model_of, solver_if_named
from remat.cli.options import CostModelName, ModelOptions, PlanName, SolverName, SolverOptions
from remat.errors import NotInstalled
from remat.facts.graph import Graph
from remat.improve.choose import choose
from remat.problem.costmodel import CostModel

_TORCHS = "pytorch:"


@dataclass(frozen=True)
class Question:
    """Says what is to be solved, and by which solver."""

    cost_model: CostModelName = None
    solver: SolverName = None
    model_options: ModelOptions = None
    solver_options: SolverOptions = None

    def model(self) -> CostModel:
        """Makes the cost model; without a name, it is the default one."""
        return cost_model_of(self.cost_model, self.model_options)

    def chosen_solver(self) -> Solver | None:
        """Makes the solver; without a name, it is None: the problem then decides who solves it."""
        return solver_if_named(self.solver, self.solver_options)


@dataclass(frozen=True)
class WantedPlan(Question):
    """Says which plan a command looks at: that of a file, PyTorch's own, or the answer to a question."""

    plan: PlanName = None

    @property
    def is_named(self) -> bool:
        """Says whether any option names a plan, or what to solve for one."""
        return any(getattr(self, option.name) for option in fields(self))

    def plan_of(self, graph: Graph) -> Plan:
        """Reads the plan, asks PyTorch for it, or solves for it."""
        if self.plan not in (None, "solved"):
            if self.cost_model or self.solver or self.model_options or self.solver_options:
                raise typer.BadParameter(
                    f"-m and -s, -O and -S decide what to solve, but --plan {self.plan} is a plan already: leave them "
                    "out"
                )
            return _torchs_plan(graph, self.plan) if self.plan.startswith(_TORCHS) else Plan.load(self.plan)
        solution = choose(graph, self.model(), self.chosen_solver())
        assert solution.plan is not None  # choose() raises where there is none
        return solution.plan


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Returns a command that has an option for each field of the dataclasses which the given one takes."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        if name not in groups:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        types = get_type_hints(groups[name], include_extras=True)
        parameters += [
            Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default, annotation=types[option.name])
            for option in fields(groups[name])
        ]

    @wraps(command)
    def called(**typed: Any) -> None:
        made = {name: kind(**{one.name: typed.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()}
        command(**typed, **made)

    vars(called)["__signature__"] = Signature(parameters)  # what typer reads
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def _torchs_plan(graph: Graph, text: str) -> Plan:
    """Asks PyTorch for its plan at a memory budget; the plan also saves what PyTorch recomputes and we must not."""
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
