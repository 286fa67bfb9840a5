"""Declares once each argument and option that several commands share: how it is typed, and its help text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from remat.answer.registry import DEFAULT_BUDGET_SOLVER, DEFAULT_COST_MODEL, DEFAULT_SOLVER
from remat.cli.inputs import graph_file

PLUGIN = "NAME[:KEY=VALUE,...]"
"""How users name a plug-in with its options."""

PLAN = "FILE|solved|pytorch:BUDGET"
"""How users name a plan."""

_PICTURE = typer.Option("--output", "-o", help="Picture to write: .svg, .png or .pdf.")

GraphFile = Annotated[
    Path,
    typer.Argument(metavar="GRAPH", callback=graph_file, help="A graph file, or a name of `remat corpus list`."),
]
PlanFile = Annotated[
    str,
    typer.Option(
        metavar=PLAN,
        help="A plan file; `solved` to solve now; or PyTorch's own at a memory budget, as in `pytorch:0.5`.",
    ),
]
NewPlanFile = Annotated[Path | None, typer.Option("--output", "-o", help="Plan file to write.")]
NewPicture = Annotated[Path, _PICTURE]
NewPictureIfNamed = Annotated[Path | None, _PICTURE]

CostModelName = Annotated[
    str | None,
    typer.Option(
        "--cost-model", "-m", metavar=PLUGIN, help=f"See `remat costmodels`; {DEFAULT_COST_MODEL} when left out."
    ),
]
DeviceName = Annotated[
    str | None,
    typer.Option(
        "--device", help="To compile for: cpu, cuda; or a100, a100-40gb, h100, h200, which need not be there."
    ),
]
OptimizerName = Annotated[str, typer.Option(help="Of torch.optim, with options: adamw, sgd:momentum=0.9; or none.")]
SolverName = Annotated[
    str | None,
    typer.Option(
        "--solver",
        "-s",
        metavar=PLUGIN,
        help=f"See `remat solvers`; {DEFAULT_SOLVER}, or {DEFAULT_BUDGET_SOLVER} under a budget, when left out.",
    ),
]
EstimatorName = Annotated[str, typer.Option("--estimator", "-e", metavar=PLUGIN, help="See `remat estimators`.")]
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
    typer.Option("--time-limit", metavar="S", min=1e-9, help="Seconds for each solve or search that takes a limit."),
]
Budgets = Annotated[int, typer.Option("--refine", min=0, help="How many budgets to solve between the frontier's ends.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]
