"""Measures how far forecasts of training are off, on this CPU: `python -m experiments.accuracy.forecast_error`.

For each model, `remat.forecast` with AdamW, from the graph alone, under PyTorch's plan, and under a budget of the
device that is halfway between that plan's peak and the least that is found. Beside it a first and a later training step
of the compiled model, each by every byte that torch's allocator hands out and takes back. What is alive before a step,
such as parameters, inputs and, in the later step, the optimizer's state, is added as its tensors say. A row that is
finished is kept; `--fresh` begins anew.
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
from costmodels import MemoryBudget
from experiments.models.held_out import HELD_OUT
from experiments.models.hugging_face import NextToken
from experiments.models.published import resnet50
from experiments.models.workloads import KERNEL_ZOO, Sample
from experiments.report.markdown import bullets, cited, page, section, table
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from remat.predict.whole_step import Forecast
from remat.pytorch.ahead.forecasting import PYTORCH
from remat.pytorch.measure.peak import peak_bytes
from remat.pytorch.measure.training_step import mean_square

STEPS = ("first", "later")
BUDGET = "a budget of the device"

CPU = torch.device("cpu")

console = Console()


class Loss(nn.Module):
    """Applies a model, and makes a loss of what it returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Tensor) -> Tensor:
        return mean_square(self.model(*args))


def _resnet50() -> Sample:
    return resnet50(), (torch.randn(8, 3, 224, 224), torch.randint(10, (8,)))


def _gpt2() -> Sample:
    from transformers import GPT2Config, GPT2LMHeadModel

    return NextToken(GPT2LMHeadModel(GPT2Config(use_cache=False))), (torch.randint(1, 50_000, (2, 256)),)


MODELS: dict[str, Callable[[], Sample]] = {
    **KERNEL_ZOO,
    **{name: make for name, make in HELD_OUT.items() if name.startswith("HF ")},
    "ResNet-50, 8 images": _resnet50,
    "GPT-2 small, 2 x 256 words": _gpt2,
}


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
            write_results(path, document, markdown(document))


def compared(make: Callable[[], Sample]) -> dict[str, Any]:
    """Forecasts a model under two plans, and trains it for two steps under each."""
    torch.manual_seed(0)
    inner, args = make()
    model = Loss(inner)

    def told(budget: MemoryBudget) -> Forecast:
        return remat.forecast(model, *args, optimizer=torch.optim.AdamW, cost_models=[budget])

    least = told(MemoryBudget(0.0, of="peak"))
    limit = (least.plans[-1].peak_bytes + least[PYTORCH].peak_bytes) // 2
    budget = MemoryBudget(limit, of="device")
    row: dict[str, Any] = {"parameter_bytes": least.parameter_bytes, "budget_bytes": limit}
    for name, plan, cost_model in (
        (PYTORCH, least[PYTORCH], None),
        (BUDGET, told(budget).plans[-1], budget),
    ):
        torch.compiler.reset()
        first, later, state = measured(model, args, cost_model)
        row["state_bytes"] = {"forecast": least.optimizer.state_bytes, "real": state}
        row[name] = {
            "first": {"forecast": plan.first_bytes, "real": first},
            "later": {"forecast": plan.later_bytes, "real": later},
        }
    return row


def measured(model: nn.Module, args: tuple[Any, ...], cost_model: MemoryBudget | None) -> tuple[int, int, int]:
    """What the first and a later step hold, and the optimizer's state, in bytes."""
    step: Any = remat.compile(model, cost_model=cost_model, dynamic=False)
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
    later = own + state + peak_bytes(train, CPU)
    model.zero_grad()
    return first, later, state


def alive(model: nn.Module, args: tuple[Any, ...]) -> list[Tensor]:
    """Lists what is alive all the time, one tensor for each storage."""
    tensors = (*model.parameters(), *model.buffers(), *(arg for arg in args if isinstance(arg, Tensor)))
    return list({tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}.values())


def error(pair: dict[str, int]) -> float:
    """By how much a forecast is off, as a share of what is real."""
    return pair["forecast"] / pair["real"] - 1


def errors(rows: dict[str, Any], plan: str) -> dict[tuple[str, str], float]:
    """By how much each step under a plan is off, by model and step."""
    return {(name, step): error(row[plan][step]) for name, row in rows.items() for step in STEPS}


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """Medians and worst cases of the errors under each plan, and how many budgets are kept."""
    found: dict[str, Any] = {"models": len(rows)}
    for plan in (PYTORCH, BUDGET):
        off = errors(rows, plan)
        worst = max(off, key=lambda key: abs(off[key]))
        found[plan] = {"median": statistics.median(map(abs, off.values())), "worst": off[worst], "worst_is": worst}
    kept = [all(row[BUDGET][step]["real"] <= row["budget_bytes"] for step in STEPS) for row in rows.values()]
    found["budgets_kept"] = sum(kept)
    found["states_that_differ"] = sum(
        row["state_bytes"]["forecast"] != row["state_bytes"]["real"] for row in rows.values()
    )
    return found


def markdown(document: dict[str, Any]) -> str:
    """Makes the page of the table and its origin."""
    found, rows = document["summary"], document["rows"]
    return page(
        "Forecasts of training, beside what it holds",
        bullets(
            [
                *(
                    f"under {plan}, both steps of {found['models']} models: off by {found[plan]['median']:.3%} in the "
                    f"median, by {found[plan]['worst']:+.2%} at worst ({': '.join(found[plan]['worst_is'])} step)"
                    for plan in (PYTORCH, BUDGET)
                ),
                f"budgets of the device that both steps keep: {found['budgets_kept']} of {found['models']}",
                f"the optimizer's state differs on {found['states_that_differ']}",
                "AdamW; compiled with kernels.",
                cited(document["provenance"], "experiments.accuracy.forecast_error"),
            ]
        ),
        section("Under PyTorch's plan", table(("model", *_HEADINGS), _lines(rows, PYTORCH))),
        section("Under a budget of the device", table(("model", "budget", *_HEADINGS), _lines(rows, BUDGET))),
    )


_HEADINGS = ("first: real", "forecast", "off by", "later: real", "forecast", "off by")


def _lines(rows: dict[str, Any], plan: str) -> list[tuple[object, ...]]:
    lines: list[tuple[object, ...]] = []
    for name, row in rows.items():
        cells: list[object] = [name, row["budget_bytes"]] if plan == BUDGET else [name]
        for step in STEPS:
            pair = row[plan][step]
            cells += [pair["real"], pair["forecast"], f"{error(pair):+.2%}"]
        lines.append(tuple(cells))
    return lines


if __name__ == "__main__":
    typer.run(main)
