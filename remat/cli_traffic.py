"""The command about kernels and what they move."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from remat.cli_options import chosen_plan, load_graph
from remat.traffic import traffic as predict


def traffic(
    graph: Annotated[Path, typer.Argument(metavar="GRAPH", help="A graph file, as `remat capture` writes.")],
    plan: Annotated[str, typer.Option(metavar="FILE|solved", help="A plan file, or `solved` to solve now.")] = "solved",
    cost_model: Annotated[
        str | None, typer.Option("--cost-model", "-m", metavar="NAME[:KEY=VALUE,...]", help="See `remat costmodels`.")
    ] = None,
    solver: Annotated[
        str | None,
        typer.Option(
            "--solver", "-s", metavar="NAME[:KEY=VALUE,...]", help="See `remat solvers`; by default, that of `solve`."
        ),
    ] = None,
    fused: Annotated[bool, typer.Option(help="As TorchInductor fuses; or every operator by itself.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Predict the kernels of both passes of a plan, and what they read and write.

    \b
      remat traffic gpt2.json.gz --plan plan.json
      remat traffic gpt2.json.gz -m multi-read
      remat traffic gpt2.json.gz --no-fused
    """
    values = load_graph(graph)
    found = predict(values, chosen_plan(values, plan, cost_model, solver), fused=fused)
    if not as_json:
        return typer.echo(found)
    kernels: list[dict[str, Any]] = [
        {
            "backward": kernel.backward,
            "generated": kernel.generated,
            **{part: [values.names[v] for v in getattr(kernel, part)] for part in ("values", "reads", "writes")},
            "read_bytes": kernel.read_bytes,
            "written_bytes": kernel.written_bytes,
        }
        for kernel in found.kernels
    ]
    sums = {name: getattr(found, name) for name in ("reads", "writes", "read_bytes", "written_bytes", "bytes")}
    return typer.echo(json.dumps({"graph": str(graph), **sums, "kernels": kernels}, indent=1))
