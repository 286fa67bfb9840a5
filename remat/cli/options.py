"""Declares the options that several commands share, and makes commands from functions.

A parameter of such a function is an option, or a group of options: a dataclass in which each field is an option.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import wraps
from importlib.util import find_spec
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from remat.answer.plan import Plan
from remat.answer.registry import DEFAULT_BUDGET_SOLVER, DEFAULT_COST_MODEL, DEFAULT_SOLVER
from remat.answer.solver import Solver
from remat.cli.inputs import cost_model_of, graph_file, graph_files, solver_of
from remat.cli.output import Answer, quiet, show
from remat.errors import NotInstalled
from remat.facts.graph import Graph
from remat.improve.choose import choose
from remat.problem.costmodel import CostModel
from remat.words import pip_install

_GRAPH = "A graph file, or a name from `remat corpus list`."


def _picture(path: Path | None) -> Path | None:
    if path is not None:  # checked before a search of minutes, not after it
        from remat.pictures import checked_picture

        checked_picture(path)
    return path


_PICTURE = typer.Option("--output", "-o", callback=_picture, help="Picture to write: .svg, .png or .pdf.")


def plugin_option(*flags: str, help: str) -> Any:
    return typer.Option(*flags, metavar="NAME[:...]", help=help)


GraphFile = Annotated[Path, typer.Argument(metavar="GRAPH", callback=graph_file, help=_GRAPH)]
GraphFiles = Annotated[list[Path], typer.Argument(metavar="GRAPH...", callback=graph_files, help=_GRAPH)]
_PLAN = "A plan file; `solved` to solve now; or PyTorch's own plan at a memory budget, such as `pytorch:0.5`."
PlanName = Annotated[str | None, typer.Option(metavar="PLAN", help=_PLAN)]
NewPlanFile = Annotated[Path | None, typer.Option("--output", "-o", help="Plan file to write.")]
NewPicture = Annotated[Path, _PICTURE]
NewPictureIfNamed = Annotated[Path | None, _PICTURE]

_MODEL = f"NAME or NAME:KEY=VALUE,...: see `remat plugins costmodels`; {DEFAULT_COST_MODEL} if left out."
CostModelName = Annotated[str | None, plugin_option("--cost-model", "-m", help=_MODEL)]
_MODEL_OPTION = "Option of the cost model, as JSON or text. Repeatable. With several -m, write -m NAME:KEY=VALUE."
ModelOptions = Annotated[list[str] | None, typer.Option("-O", metavar="KEY=VALUE", help=_MODEL_OPTION)]
_SOLVER = f"See `remat plugins solvers`; if left out, {DEFAULT_SOLVER}, or {DEFAULT_BUDGET_SOLVER} with a budget."
SolverName = Annotated[str | None, plugin_option("--solver", "-s", help=_SOLVER)]
_SOLVER_OPTION = "Option of the solver. Repeatable."
SolverOptions = Annotated[list[str] | None, typer.Option("-S", metavar="KEY=VALUE", help=_SOLVER_OPTION)]

_DEVICE = "Compile for this device: cpu, cuda; or a100, a100-40gb, h100, h200, even if this machine has none."
DeviceName = Annotated[str | None, typer.Option("--device", help=_DEVICE)]
_OPTIMIZER = "An optimizer of torch.optim with its options (adamw, sgd:momentum=0.9), or `none`."
OptimizerName = Annotated[str, typer.Option(help=_OPTIMIZER)]
_LIMIT = (
    "Seconds for all searches together, which then use the best plan so far; a search for a peak is short without it."
)
TimeLimit = Annotated[float | None, typer.Option("--time-limit", metavar="S", min=0.001, help=_LIMIT)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


_TORCHS = "pytorch:"


@dataclass(frozen=True)
class Question:
    """Holds the options of the problem to solve, and of the solver."""

    cost_model: CostModelName = None
    solver: SolverName = None
    model_options: ModelOptions = None
    solver_options: SolverOptions = None

    def model(self) -> CostModel:
        return cost_model_of(self.cost_model, self.model_options)

    def chosen_solver(self) -> Solver | None:
        """Returns the named solver; None without a name, so that the solver depends on the problem."""
        if self.solver is None and self.solver_options:
            raise typer.BadParameter("-S sets an option of a solver: name it with -s")
        return None if self.solver is None else solver_of(self.solver, self.solver_options or ())


@dataclass(frozen=True)
class PlanOptions(Question):
    """Holds the options that choose the plan of a command: a plan from a file, PyTorch's own, or a solved one."""

    plan: PlanName = None

    @property
    def is_named(self) -> bool:
        return any(getattr(self, option.name) for option in fields(self))

    def plan_of(self, graph: Graph) -> Plan:
        """Returns the plan: from its file, from PyTorch, or by solving."""
        if self.plan not in (None, "solved"):
            if self.cost_model or self.solver or self.model_options or self.solver_options:
                raise typer.BadParameter(
                    f"-m and -s, -O and -S decide what to solve, but --plan {self.plan} is a plan already: leave them "
                    "out"
                )
            return _torchs_plan(graph, self.plan) if self.plan.startswith(_TORCHS) else Plan.load(self.plan)
        solution = choose(graph, self.model(), self.chosen_solver())
        assert solution.plan is not None  # choose() raises if there is none
        return solution.plan


def command(answer: Callable[..., Answer]) -> Callable[..., None]:
    """Makes a command from a function, with an option for each field of its groups, and --json."""
    hints = get_type_hints(answer, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    options: dict[str, tuple[Any, Any]] = {}  # annotation, default
    for name, parameter in signature(answer).parameters.items():
        if name in groups:
            types = get_type_hints(groups[name], include_extras=True)
            options |= {one.name: (types[one.name], one.default) for one in fields(groups[name])}
        else:
            options[name] = hints[name], parameter.default
    options["as_json"] = Json, False

    @wraps(answer)
    def called(as_json: bool, **typed: Any) -> None:
        quiet.set(as_json)
        filled = {
            name: kind(**{one.name: typed.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()
        }
        show(answer(**typed, **filled))

    vars(called)["__signature__"] = Signature(  # what typer reads
        [Parameter(name, Parameter.KEYWORD_ONLY, default=one[1], annotation=one[0]) for name, one in options.items()]
    )
    called.__annotations__ = {name: annotation for name, (annotation, _) in options.items()}
    return called


# PyTorch's plan at a memory budget, which also saves what PyTorch recomputes illegally.
def _torchs_plan(graph: Graph, text: str) -> Plan:
    try:
        budget = float(text.removeprefix(_TORCHS))
    except ValueError:
        budget = -1.0
    if not 0 <= budget <= 1:
        raise typer.BadParameter(f"--plan pytorch:BUDGET takes a number from 0 to 1, as in pytorch:0.5, got {text!r}")
    if find_spec("torch") is None:
        raise NotInstalled(f"--plan {text} needs torch: {pip_install('torch')}")
    from remat.pytorch.measure.torch_budgets import torchs_plans_of

    return torchs_plans_of(graph, [budget], legal=True)[budget]
