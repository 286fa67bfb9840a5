"""Trains one small transformer in PyTorch's ways and in ours, at the same peaks of memory: `make demo`.

`python -m experiments.demo` does the same. It takes one to two minutes on two cores, and needs no network.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

import remat
from costmodels import ByteTraffic, MemoryBudget
from experiments import cover
from experiments.bench.measured_steps import checkpoint_layers
from experiments.models import zoo
from experiments.report.charts import chart
from remat.pytorch.measure.saved import peak_bytes
from remat.words import human_bytes

console = Console(width=80)
DEFAULT, CHECKPOINTED = "PyTorch's plan", "all blocks checkpointed"
TURNS = 7


@dataclass
class Way:
    """A way to train, and what was measured of it.

    Attributes:
        name: for the table.
        step: the compiled model.
        model: whose gradients are compared.
        gradient_error: the largest difference of a gradient from eager mode's.
        peak_bytes: the most memory of a step, above what is held between steps.
        seconds: times of steps.
    """

    name: str
    step: Callable[..., Any]
    model: zoo.GPT2
    gradient_error: float = 0.0
    peak_bytes: int = 0
    seconds: tuple[float, ...] = ()

    @property
    def step_s(self) -> float:
        """The median of the times."""
        return statistics.median(self.seconds)


def main(
    layers: Annotated[int, typer.Option(help="transformer blocks")] = 2,
    output: Annotated[Path, typer.Option(help="folder for the pictures and the graph")] = Path("demo-output"),
) -> None:
    """Trains a small GPT in four ways, and shows peaks, times, a proof, and two pictures."""
    output.mkdir(exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def gpt() -> tuple[zoo.GPT2, tuple[Tensor]]:
        return zoo.gpt2(layers=layers, width=256, context=128, batch=8, fused=True, device=device)

    console.rule(f"1. Train a small GPT of {layers} blocks on {device}")
    ways = [*trained(gpt, device)]
    console.print(measured_table(ways))
    base, checkpointed, _, ours = (way.step_s for way in ways)
    console.print(
        f"At the peak of {CHECKPOINTED}, remat adds {ours / base - 1:.0%} to the step of PyTorch's plan, and "
        f"checkpointing {checkpointed / base - 1:.0%}.\nPeaks and steps are measured; times depend on what else the "
        "machine does. [dim]Results of larger models, with the worst cases: docs/results.md[/dim]"
    )

    console.rule("2. The proof")
    model, args = gpt()
    graph = remat.capture(model, *args)
    best = remat.solve(ByteTraffic().pose(graph))
    assert best.is_proven
    console.print(
        f"The saves of the plan with the least memory traffic move {human_bytes(best.objective or 0)}, and no plan "
        f"moves less: {best.certificate}."
    )
    half = remat.solve(MemoryBudget(0.5).pose(graph))
    console.print(
        f"With half of what PyTorch saves, recomputing takes {half.objective:,} ns (estimated), and no plan takes less "
        f"than {half.bound:,} ns."
    )

    console.rule("3. The pictures")
    draw(ways, output / "peaks.svg")
    cover.draw(output / "example.svg")
    graph.save(output / "gpt2.json.gz")
    console.print(f"{output / 'peaks.svg'}: the table above")
    console.print(f"{output / 'example.svg'}: cos(cos(a + b + c + d)), what is saved of it, and what is computed again")
    console.print(f"{output / 'gpt2.json.gz'}: the graph; try remat frontier {output / 'gpt2.json.gz'}")


def trained(gpt: Callable[[], tuple[zoo.GPT2, tuple[Tensor]]], device: str) -> Iterator[Way]:
    """Trains in PyTorch's ways, then in ours within the peak of each; gradients must be those of eager mode."""
    model, args = gpt()
    model(*args).backward()
    expected = [parameter.grad for parameter in model.parameters()]
    ways: list[Way] = []
    for name in (DEFAULT, CHECKPOINTED):
        model, args = gpt()
        if name == CHECKPOINTED:
            checkpoint_layers(model)
        ways.append(_first(Way(name, torch.compile(model), model), args, expected, device))
    for rival in ways[:2]:
        model, args = gpt()
        step = remat.compile(model, cost_model=MemoryBudget(rival.peak_bytes, of="peak"))
        ways.append(_first(Way(f"remat, same peak as {rival.name}", step, model), args, expected, device))
    with console.status("timing all of them, in turns"):
        for _ in range(TURNS):
            for way in ways:
                start = time.perf_counter()
                _step(way, args, device)
                way.seconds += (time.perf_counter() - start,)
    yield from ways


def _first(way: Way, args: tuple[Tensor, ...], expected: list[Tensor], device: str) -> Way:
    with console.status(f"{way.name}: compiling and running"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations
        _step(way, args, device)
        gradients = [parameter.grad for parameter in way.model.parameters()]
        pairs = zip(gradients, expected, strict=True)
        way.gradient_error = max(float((ours - theirs).abs().max()) for ours, theirs in pairs)  # type: ignore[operator]
        if way.gradient_error > 1e-4:
            raise SystemExit(f"{way.name}: a gradient differs from eager's by {way.gradient_error}")
        way.model.zero_grad()
        way.peak_bytes = peak_bytes(lambda: _step(way, args, device), torch.device(device))
    return way


def _step(way: Way, args: tuple[Tensor, ...], device: str) -> None:
    way.model.zero_grad()
    way.step(*args).backward()
    if device == "cuda":
        torch.cuda.synchronize()


def measured_table(ways: list[Way]) -> Table:
    """Shows each way: peak, step, and the largest difference of a gradient from eager mode."""
    table = Table("", "peak", "step", "gradient error", box=None)
    for way in (ways[0], ways[2], ways[1], ways[3]):
        ms = f"{1e3 * way.step_s:.1f} ms"
        table.add_row(way.name, human_bytes(way.peak_bytes), ms, f"{way.gradient_error:.0e}")
    return table


def draw(ways: list[Way], path: Path) -> None:
    """Draws peaks against times of steps."""
    with chart(path) as axes:
        for way, marker in zip(ways, "soDv", strict=True):
            axes.plot(way.peak_bytes / 1e6, 1e3 * way.step_s, marker, markersize=9, label=way.name)
        axes.legend()
        axes.set(xlabel="peak, MB, measured", ylabel="step, ms, measured")
        axes.margins(0.4)


if __name__ == "__main__":
    typer.run(main)
