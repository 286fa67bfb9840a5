"""Declares each argument and option that several commands share, with its help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from remat.answer.registry import DEFAULT_BUDGET_SOLVER, DEFAULT_COST_MODEL, DEFAULT_SOLVER
from remat.cli.inputs import graph_file, graph_files

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
