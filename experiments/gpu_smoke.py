"""Checks all that can go wrong on a GPU, in one command: `python -m experiments.gpu_smoke`.

Every case of `experiments.models.cases` trains two steps under three strategies, and outputs, gradients,
parameters and buffers must equal eager's. Then one training step of a few models is measured under
every strategy. Without CUDA the same runs on the CPU, smaller.

Random numbers: with Inductor's `fallback_random`, compiled code calls eager's own random operators.
On the CPU they then draw eager's numbers, always. On CUDA each call takes as many numbers from the
generator as its kernel's launch needs, so the numbers agree only if compiled code makes eager's calls
on eager's shapes. A case there that draws, and differs from eager, is compared with the compiled run that
saves what autograd saves, from the same seed: nothing is recomputed there, so if a recomputed draw
were another draw, the two would differ. The row says which of the two it was compared with.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import remat
from costmodels import ByteTraffic
from experiments.demo import SaveLeast
from experiments.models import zoo
from experiments.models.cases import CASES
from experiments.models.model_case import ModelCase
from experiments.models.training import draws_random_numbers, train
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from remat.pytorch.measure.step_strategies import Strategy, usual_strategies
from remat.pytorch.measure.training_step import measure
from remat.words import human_bytes

MODELS: dict[str, remat.CostModel] = {
    "aggressive": ByteTraffic(mode="aggressive"),
    "save least": SaveLeast(),
    "conservative": ByteTraffic(),
}
OPTIONS = {"fallback_random": True}
console = Console(width=max(Console().width, 120))


@dataclass(frozen=True)
class SmokeRow:
    """Says whether one case is right under one strategy.

    Attributes:
        case, strategy: their names.
        verdict: "equal", "differs" or "error".
        reference: what it was compared with, "eager" or "compiled, nothing recomputed".
        detail: what differs, or the error.
        seconds: wall time, compilation included.
    """

    case: str
    strategy: str
    verdict: str
    reference: str
    detail: str
    seconds: float


def main(
    device: Annotated[str, typer.Option(help="cuda or cpu")] = "cuda" if torch.cuda.is_available() else "cpu",
    only: Annotated[str, typer.Option(help="the cases and measured models with this in their name")] = "",
    budget_minutes: Annotated[float, typer.Option(help="start nothing new after this")] = 7.0,
    output: Annotated[Path, typer.Option(help="where the JSON goes")] = RESULTS / "gpu_smoke.json",
) -> None:
    """Trains every case, measures a few models, writes JSON; fails on any mismatch."""
    torch.backends.cudnn.allow_tf32 = False  # convolutions would keep 10 bits, eager's other ones than ours
    deadline = time.monotonic() + 60 * budget_minutes
    rows: list[SmokeRow] = []
    measures: dict[str, list[dict[str, Any]]] = {}
    jobs = _jobs(device, only, rows, measures)
    if not jobs:
        raise typer.BadParameter(f"no case or model has {only!r} in its name", param_hint="--only")
    not_reached: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations
        for name, job in jobs.items():
            if time.monotonic() > deadline:
                not_reached.append(name)
                continue
            with console.status(name):
                job()
    report = {
        "provenance": provenance(),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else device,
        "cases": [asdict(row) for row in rows],
        "measures": measures,
        "not_reached": not_reached,
    }
    write_results(output, report)
    _show(rows, measures, not_reached)
    console.print(f"written to {output}")
    if any(row.verdict != "equal" for row in rows) or any(_failed(row) for each in measures.values() for row in each):
        raise typer.Exit(1)


def _jobs(
    device: str, only: str, rows: list[SmokeRow], measures: dict[str, list[dict[str, Any]]]
) -> Mapping[str, Callable[[], None]]:
    """Lists what to do in such an order that every case has run under one strategy if the time runs out."""
    jobs: dict[str, Callable[[], None]] = {}

    def add_cases(strategy: str) -> None:
        for case in CASES.values():
            if only in case.name:
                jobs[f"{strategy}: {case.name}"] = lambda case=case: rows.append(check(case, strategy, device))

    first, *others = MODELS
    add_cases(first)
    for name, build in measured_models(device).items():
        if only in name:
            jobs[f"measuring {name}"] = lambda name=name, build=build: measures.update({name: _measured(*build())})
    for strategy in others:
        add_cases(strategy)
    return jobs


def check(case: ModelCase, strategy: str, device: str) -> SmokeRow:
    """Trains a case in eager mode and under a strategy, and compares."""
    start = time.perf_counter()
    reference = "eager"

    def row(verdict: str, detail: str = "") -> SmokeRow:
        return SmokeRow(case.name, strategy, verdict, reference, detail, time.perf_counter() - start)

    def compiled(model: nn.Module) -> Callable[..., Any]:
        return remat.compile(model, cost_model=MODELS[strategy], options=OPTIONS, dynamic=case.dynamic)

    torch.compiler.reset()
    try:
        seen = train(case, compiled, device)
        detail = difference(seen, train(case, lambda model: model, device), case)
        if detail and device.startswith("cuda") and draws_random_numbers(case, device):
            reference = "compiled, nothing recomputed"
            torch.compiler.reset()
            own_saves = usual_strategies(options=OPTIONS, dynamic=case.dynamic)["autograd's own saves"]
            detail = difference(seen, train(case, own_saves, device), case)
    except Exception as error:  # one case that fails must not hide what the others do
        return row("error", f"{type(error).__name__}: {error}")
    return row("differs" if detail else "equal", detail)


def difference(seen: dict[str, Any], expected: dict[str, Any], case: ModelCase) -> str:
    """Says what differs by more than the case's tolerance; "" if nothing does."""
    try:
        torch.testing.assert_close(seen, expected, rtol=case.tolerance, atol=case.tolerance)
    except AssertionError as error:
        return str(error)
    return ""


def _pointwise(function: Callable[..., Tensor], inputs: int, device: str) -> tuple[Any, ...]:
    side = 8192 if device.startswith("cuda") else 512
    return function, *(torch.randn(side, side, device=device, requires_grad=True) for _ in range(inputs))


def _cos_cos(a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    return (a + b + c + d).cos().cos()


def _gpt2(device: str) -> tuple[Any, ...]:
    large = {"layers": 4, "width": 768, "heads": 12, "vocabulary": 16384, "context": 512, "batch": 8}
    small = {"layers": 1, "width": 64, "heads": 2, "vocabulary": 256, "context": 32, "batch": 2}
    model, args = zoo.gpt2(device=device, **(large if device.startswith("cuda") else small))
    return model, *args


def measured_models(device: str) -> dict[str, Callable[[], tuple[Any, ...]]]:
    """Lists what is measured: a model and its arguments, by name."""
    return {
        "cos(cos(a + b + c + d))": lambda: _pointwise(_cos_cos, 4, device),
        "GeLU written out": lambda: _pointwise(zoo.gelu, 1, device),
        "GPT-2 style": lambda: _gpt2(device),
    }


def _measured(model: Any, *args: Tensor) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    ways: dict[str, Strategy] = usual_strategies(list(MODELS.values()))
    frame = measure(model, *args, strategies=ways, repeats=20).astype(object)
    return frame.where(frame.notna(), None).to_dict(orient="records")


def _failed(row: dict[str, Any]) -> bool:
    """Tells whether a strategy of ours failed; PyTorch's own may fail."""
    return bool(row["error"]) and row["strategy"].startswith("remat")


def _show(rows: list[SmokeRow], measures: dict[str, list[dict[str, Any]]], not_reached: list[str]) -> None:
    table = Table("case", *MODELS, title="Two training steps against eager")
    for case in dict.fromkeys(row.case for row in rows):
        cells = {row.strategy: _cell(row) for row in rows if row.case == case}
        table.add_row(case, *(cells.get(strategy, "") for strategy in MODELS))
    console.print(table)
    for row in rows:
        if row.verdict != "equal":
            console.print(f"{row.case}, {row.strategy}, {row.verdict}: {row.detail}", style="red", markup=False)
    for name, measured in measures.items():
        console.print(_measures(name, measured))
    if not_reached:  # in order, so the first one says it all
        text = f"{len(not_reached)} jobs not reached in time, from {not_reached[0]!r} on: the JSON names them all"
        console.print(text, style="yellow", markup=False)


def _cell(row: SmokeRow) -> str:
    note = "" if row.reference == "eager" else " (to the compiled run that recomputes nothing)"
    return f"{row.verdict}{note}, {row.seconds:.1f} s"


def _measures(name: str, rows: list[dict[str, Any]]) -> Table:
    table = Table("strategy", title=name)
    for heading in ("moved", "kernels", "saved", "peak", "step: median", "fastest", "slowest"):
        table.add_column(heading, justify="right")
    for row in rows:
        if row["error"]:
            table.add_row(row["strategy"], row["error"])
            continue
        moved = "" if row["moved_bytes"] is None else human_bytes(row["moved_bytes"])
        memory = (human_bytes(row[column]) for column in ("saved_bytes", "peak_bytes"))
        times = (f"{1000 * row[column]:.2f} ms" for column in ("median_s", "fastest_s", "slowest_s"))
        table.add_row(row["strategy"], moved, str(row["kernels"] or ""), *memory, *times)
    return table


if __name__ == "__main__":
    typer.run(main)
