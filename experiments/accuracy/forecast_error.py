"""Measures how far forecasts of training are off, on this CPU: `python -m experiments.accuracy.forecast_error`.

For each model, `remat.forecast` with AdamW sees only the graph. It forecasts PyTorch's plan, and a budget of the device
that is halfway between that plan's peak and the smallest peak that is found. A first and a later training step of the
compiled model are measured: every byte that torch's allocator hands out and takes back. The bytes of tensors that are
alive before a step are added: parameters, inputs and, in the later step, the optimizer's state. The steps are compiled
with kernels.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import remat
from costmodels import MemoryBudget
from experiments.models.held_out import HELD_OUT
from experiments.models.hugging_face import NextToken
from experiments.models.published import resnet50
from experiments.models.workloads import KERNEL_ZOO, Sample
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable, Row
from remat.predict.whole_step import Forecast
from remat.pytorch.ahead.forecasting import PYTORCH
from remat.pytorch.measure.saved import peak_bytes
from remat.pytorch.measure.training_step import mean_square

STEPS = ("first", "later")
BUDGET = "a budget of the device"

CPU = torch.device("cpu")


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


def measure(name: str) -> Iterator[Row]:
    """Forecasts a model under two plans, and trains it for two steps under each."""
    torch.manual_seed(0)
    inner, args = MODELS[name]()
    model = Loss(inner)

    def forecast_within(budget: MemoryBudget) -> Forecast:
        return remat.forecast(model, *args, optimizer=torch.optim.AdamW, cost_models=[budget])

    least = forecast_within(MemoryBudget(0.0, of="peak"))
    limit = (least.plans[-1].peak_bytes + least[PYTORCH].peak_bytes) // 2
    budget = MemoryBudget(limit, of="device")
    for plan, forecast, cost_model in (
        (PYTORCH, least[PYTORCH], None),
        (BUDGET, forecast_within(budget).plans[-1], budget),
    ):
        torch.compiler.reset()
        first, later, state = measured(model, args, cost_model)
        yield {
            "plan": plan,
            "budget_bytes": limit if cost_model else None,
            "first": {"forecast": forecast.first_bytes, "real": first},
            "later": {"forecast": forecast.later_bytes, "real": later},
            "optimizer": {"forecast": least.optimizer.state_bytes, "real": state},
        }


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


def errors(rows: Sequence[Row], plan: str) -> dict[tuple[str, str], float]:
    """By how much each step under a plan is off, as a share of what is real, by model and step."""
    return {
        (row["case"], step): row[step]["forecast"] / row[step]["real"] - 1
        for row in rows
        if row["plan"] == plan
        for step in STEPS
    }


def budgets_kept(rows: Sequence[Row]) -> int:
    """Counts the models of which both steps stay within the budget of the device."""
    return sum(all(row[step]["real"] <= row["budget_bytes"] for step in STEPS) for row in rows if row["plan"] == BUDGET)


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Medians and worst cases of the errors under each plan, and how many budgets are kept."""
    found: list[str] = []
    for plan in (PYTORCH, BUDGET):
        off = errors(rows, plan)
        worst = max(off, key=lambda key: abs(off[key]))
        found.append(
            f"under {plan}, both steps of {len(off) // 2} models: off by "
            f"{statistics.median(map(abs, off.values())):.3%} in the median, by {off[worst]:+.2%} at worst "
            f"({', '.join(worst)} step)"
        )
    found.append(f"budgets of the device that both steps keep: {budgets_kept(rows)}")
    differ = sum(row["optimizer"]["forecast"] != row["optimizer"]["real"] for row in rows)
    return [bullets([*found, f"the optimizer's state differs in {differ} rows"])]


TABLE = ResultTable(
    "experiments.accuracy.forecast_error",
    "Forecasts of training, beside what it holds",
    cases=lambda: MODELS,
    measure=measure,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
