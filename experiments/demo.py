"""Shows the whole library on one small transformer: `make demo`, or `python -m experiments.demo`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

import remat
from costmodels import ByteTraffic
from experiments.models import zoo
from remat.pytorch.measure.saved import Saved, saved_activations
from remat.words import human_bytes

console = Console(width=max(Console().width, 120))


@dataclass(frozen=True)
class SaveLeast(remat.CostModel):
    """Recomputes everything that may be recomputed: only memory has a price.

    A cost model takes this much code.
    """

    name: ClassVar[str] = "save-least"
    unit: ClassVar[str] = "bytes"

    def terms(self, graph: remat.Graph) -> remat.plugin.Terms:
        """Prices a saved activation at its bytes; inputs are in memory anyway."""
        return replace(remat.plugin.Terms.nothing(graph), save_cost=graph.activation_bytes)


def main(
    layers: Annotated[int, typer.Option(help="transformer blocks")] = 2,
    output: Annotated[Path, typer.Option(help="folder for the picture and the graph")] = Path("demo-output"),
) -> None:
    """Captures, solves with every solver, proves, draws, and runs through TorchInductor."""
    output.mkdir(exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model, args = zoo.gpt2(layers=layers, device=device)

    console.rule("1. Capture the joint graph of a training step")
    with console.status("tracing a GPT-2-style transformer"):
        graph = remat.capture(model, *args)
    graph.save(output / "gpt2.json.gz")
    console.print(graph)

    console.rule("2. Pose it under byte-traffic; solve it with every solver")
    with console.status("solving"):
        frame = remat.compare(graph)
    console.print(_solver_table(frame))

    console.rule("3. The papers' small example, by hand: cos(cos(a + b + c + d)), one byte a value")
    example = small_example()
    solution = remat.solve(ByteTraffic().pose(example))
    remat.show(example, solution.plan, output / "example.png")
    assert solution.plan is not None
    console.print(f"save {', '.join(solution.plan.saved)}: {solution}")
    console.print(f"drawn in {output / 'example.png'}")

    console.rule(f"4. Run the plan through TorchInductor, on {device}")
    console.print(run_strategies(model, args))
    console.print("Saved memory is measured: distinct storages that autograd packs away, parameters and inputs apart.")


def small_example() -> remat.Graph:
    """Builds the joint graph of f(a, b, c, d) = cos(cos(a + b + c + d)), one byte a value."""
    g = remat.GraphBuilder()
    a, b, c, d = (g.input(name) for name in "abcd")
    total = g.op("add", g.op("add", g.op("add", a, b), c), d)
    inner = g.op("cos", total)
    g.output(g.op("cos", inner))
    outer_gradient = g.op("mul", g.tangent("tangents"), g.op("neg", g.op("sin", inner)))
    g.gradient(g.op("mul", outer_gradient, g.op("neg", g.op("sin", total))))
    return g.build()


def run_strategies(model: zoo.GPT2, args: tuple[Tensor, ...]) -> Table:
    """Runs one training step for each way to decide, and compares loss and gradients with eager's."""
    strategies: dict[str, Callable[[], Callable[..., Any]]] = {
        "save what autograd saves (eager)": lambda: model,
        "recompute everything": lambda: remat.compile(model, cost_model=SaveLeast()),
        "PyTorch's partitioner": lambda: torch.compile(model),
        "remat: PyTorch's prices": lambda: remat.compile(model),
        "remat: byte-traffic": lambda: remat.compile(model, cost_model=ByteTraffic()),
        "remat: byte-traffic, aggressive": lambda: remat.compile(model, cost_model=ByteTraffic(mode="aggressive")),
    }
    table = Table("strategy", "loss", "largest gradient error", "saved tensors", "saved memory")
    reference: list[Tensor] = []
    for name, build in strategies.items():
        with console.status(f"{name}: compiling and running"):
            torch.compiler.reset()
            loss, gradients, saved = _training_step(build(), model, args)
        reference = reference or gradients
        error = max(float((ours - theirs).abs().max()) for ours, theirs in zip(gradients, reference, strict=True))
        if error > 1e-4:
            raise SystemExit(f"{name}: a gradient differs from eager's by {error}")
        table.add_row(name, f"{loss:.6f}", f"{error:.1e}", str(saved.tensors), human_bytes(saved.bytes))
    return table


def _training_step(
    step: Callable[..., Any], model: zoo.GPT2, args: tuple[Tensor, ...]
) -> tuple[float, list[Tensor], Saved]:
    model.zero_grad()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations
        loss, saved = saved_activations(step, model, *args)
        loss.backward()
    return loss.item(), [parameter.grad.clone() for parameter in model.parameters()], saved


def _solver_table(frame: Any) -> Table:
    headings = "solver", "exact?", "objective", "saved tensors", "saved memory", "recomputed ops", "time", "certified"
    table = Table(*headings)
    for row in frame.to_dict("records"):
        if row["error"]:
            # The exhaustive solver is for small problems: it says so, and is left out.
            table.caption = f"Not in the table: {row['error'].split('; ')[0]}."
            continue
        table.add_row(
            row["solver"],
            _yes(row["exact"]),
            f"{row['objective']:,} B",
            str(row["saved_tensors"]),
            human_bytes(row["saved_bytes"]),
            str(row["recomputed_ops"]),
            f"{1000 * row['solve_time_s']:.1f} ms",
            row["certified"],
        )
    return table


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


if __name__ == "__main__":
    typer.run(main)
