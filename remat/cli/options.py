"""Declares once each argument and option that several commands share: how it is typed, and its help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remat.answer.registry import DEFAULT_BUDGET_SOLVER, DEFAULT_COST_MODEL, DEFAULT_SOLVER
from remat.cli.inputs import graph_file

PLUGIN = "NAME[:KEY=VALUE,...]"
"""How users name a plug-in with its options."""

_GRAPH = "A graph file, or a name from `remat corpus list`."
_PICTURE = typer.Option("--output", "-o", help="Picture to write: .svg, .png or .pdf.")

GraphFile = Annotated[Path, typer.Argument(metavar="GRAPH", callback=graph_file, help=_GRAPH)]
GraphFiles = Annotated[
    list[Path],
    typer.Argument(metavar="GRAPH...", callback=lambda paths: [*map(graph_file, paths)], help=_GRAPH),  # pyright: ignore
]
PlanName = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|solved|pytorch:BUDGET",
        help="A plan file; `solved` to solve now; or PyTorch's own plan at a memory budget, such as `pytorch:0.5`.",
    ),
]
NewPlanFile = Annotated[Path | None, typer.Option("--output", "-o", help="Plan file to write.")]
NewPicture = Annotated[Path, _PICTURE]
NewPictureIfNamed = Annotated[Path | None, _PICTURE]

CostModelName = Annotated[
    str | None,
    typer.Option(
        "--cost-model",
        "-m",
        metavar=PLUGIN,
        help=f"See `remat plugins costmodels`; {DEFAULT_COST_MODEL} when left out.",
    ),
]
DeviceName = Annotated[
    str | None,
    typer.Option(
        "--device",
        help="Compile for this device: cpu, cuda; or a100, a100-40gb, h100, h200, which need not be in this machine.",
    ),
]
OptimizerName = Annotated[
    str, typer.Option(help="An optimizer of torch.optim with its options (adamw, sgd:momentum=0.9), or `none`.")
]
SolverName = Annotated[
    str | None,
    typer.Option(
        "--solver",
        "-s",
        metavar=PLUGIN,
        help="See `remat plugins solvers`; "
        f"{DEFAULT_SOLVER}, or {DEFAULT_BUDGET_SOLVER} under a budget, when left out.",
    ),
]
ModelOptions = Annotated[
    list[str] | None,
    typer.Option(
        "-O",
        metavar="KEY=VALUE",
        help="Option of the cost model; JSON or text. Repeatable. With several -m, write -m NAME:KEY=VALUE.",
    ),
]
SolverOptions = Annotated[
    list[str] | None, typer.Option("-S", metavar="KEY=VALUE", help="Option of the solver. Repeatable.")
]

TimeLimit = Annotated[
    float | None,
    typer.Option(
        "--time-limit",
        metavar="S",
        min=1e-9,
        help="Seconds for all searches together; then the best plan so far is taken.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
