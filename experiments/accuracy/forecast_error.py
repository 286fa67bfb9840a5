"""Measures how far forecasts of training are off, on this CPU: `python -m experiments.accuracy.forecast_error`.

For each model, `remat.forecast` with AdamW, from the graph alone; beside it a first and a later training step of the
compiled model, each by every byte that torch's allocator hands out and takes back. What is alive before a step, such as
parameters, inputs and, in the later step, the optimizer's state, is added as its tensors say. A row that is finished is
kept; `--fresh` begins anew.
"""

from __future__ import annotations

import gc
import json
import statistics
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor, nn

import remat
from experiments.models.held_out import HELD_OUT
from experiments.models.workloads import KERNEL_ZOO, Sample
from experiments.report.markdown import bullets, cited, page, table
from experiments.report.provenance import provenance
from remat.pytorch.ahead.forecasting import PYTORCH
from remat.pytorch.measure.peak import peak_bytes
from remat.pytorch.measure.training_step import mean_square
from remat.pytorch.seam.no_kernels import no_cpu_kernels

RESULTS = Path(__file__).parents[1] / "results"
STEPS = ("first", "later")
MODELS = {name: make for name, make in (KERNEL_ZOO | HELD_OUT).items() if name in KERNEL_ZOO or name.startswith("HF ")}
CPU = torch.device("cpu")

console = Console()


class Loss(nn.Module):
    """Applies a model, and makes a loss of what it returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Tensor) -> Tensor:
        return mean_square(self.model(*args))


def main(
    only: Annotated[list[str] | None, typer.Option(help="a model; repeatable")] = None,
    fresh: Annotated[bool, typer.Option(help="measure finished rows again")] = False,
    output: Annotated[Path, typer.Option(help="folder for forecast_error.json and .md")] = RESULTS,
) -> None:
    """Compares forecasts with real steps, and writes forecast_error.json and .md after each model."""
    path = output / "forecast_error.json"
    rows: dict[str, Any] = {} if fresh or not path.exists() else json.loads(path.read_text())["rows"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations
        for name, make in MODELS.items():
            if name in rows or (only and name not in only):
                continue
            rows[name] = compared(make)
            console.print(name, rows[name], markup=False, highlight=False)
            document = {"provenance": provenance(gpu=False), "summary": summary(rows), "rows": rows}
            path.write_text(json.dumps(document, indent=1) + "\n")
            path.with_suffix(".md").write_text(markdown(document))


def compared(make: Callable[[], Sample]) -> dict[str, Any]:
    """Forecasts a model, and trains it for two steps."""
    torch.manual_seed(0)
    torch.compiler.reset()
    inner, args = make()
    model = Loss(inner)
    told = remat.forecast(model, *args, optimizer=torch.optim.AdamW)
    with no_cpu_kernels():
        first, later, state = measured(model, args)
    plan = told[PYTORCH]
    return {
        "parameter_bytes": told.parameter_bytes,
        "state_bytes": {"forecast": told.optimizer.state_bytes, "real": state},
        "first": {"forecast": plan.first_bytes, "real": first},
        "later": {"forecast": plan.later_bytes, "real": later},
    }


def measured(model: nn.Module, args: tuple[Any, ...]) -> tuple[int, int, int]:
    """What the first and a later step hold, and the optimizer's state, in bytes."""
    step: Any = remat.compile(model, dynamic=False)
    step(*args).backward()  # compiles
    model.zero_grad()
    gc.collect()
    optimizer = torch.optim.AdamW(model.parameters())

    def train() -> None:
        step(*args).backward()
        optimizer.step()

    own = sum(tensor.untyped_storage().nbytes() for tensor in alive(model, args))
    first = own + peak_bytes(train, CPU)
    state = sum(leaf.nbytes for one in optimizer.state.values() for leaf in one.values() if isinstance(leaf, Tensor))
    model.zero_grad()
    gc.collect()
    return first, own + state + peak_bytes(train, CPU), state


def alive(model: nn.Module, args: tuple[Any, ...]) -> list[Tensor]:
    """Lists what is alive all the time, one tensor for each storage."""
    tensors = (*model.parameters(), *model.buffers(), *(arg for arg in args if isinstance(arg, Tensor)))
    return list({tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}.values())


def error(pair: dict[str, int]) -> float:
    """By how much a forecast is off, as a share of what is real."""
    return pair["forecast"] / pair["real"] - 1


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """Medians and worst cases of the errors of each step."""
    found: dict[str, Any] = {"models": len(rows)}
    for step in STEPS:
        errors = [error(row[step]) for row in rows.values()]
        found[step] = {"median": statistics.median(map(abs, errors)), "worst": max(errors, key=abs)}
    found["states_that_differ"] = sum(
        row["state_bytes"]["forecast"] != row["state_bytes"]["real"] for row in rows.values()
    )
    return found


def markdown(document: dict[str, Any]) -> str:
    """Makes the page of the table and its origin."""
    found = document["summary"]
    figures = [
        (
            name,
            *(
                cell
                for step in STEPS
                for cell in (row[step]["real"], row[step]["forecast"], f"{error(row[step]):+.2%}")
            ),
        )
        for name, row in document["rows"].items()
    ]
    return page(
        "Forecasts of training, beside what it holds",
        bullets(
            [
                *(
                    f"{step} step: off by {found[step]['median']:.2%} in the median of {found['models']} models, "
                    f"{found[step]['worst']:+.2%} at worst"
                    for step in STEPS
                ),
                f"the optimizer's state differs on {found['states_that_differ']}",
                "AdamW, PyTorch's plan. Generated kernels are left out of the real steps: they allocate nothing.",
                cited(document["provenance"], "experiments.accuracy.forecast_error"),
            ]
        ),
        table(("model", "first: real", "forecast", "off by", "later: real", "forecast", "off by"), figures),
    )


if __name__ == "__main__":
    typer.run(main)
