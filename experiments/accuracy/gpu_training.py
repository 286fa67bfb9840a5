"""Trains small models on a GPU under our plans, beside eager mode: `python -m experiments.accuracy.gpu_training`.

Every case of `experiments.models.cases` trains two steps under three strategies, and outputs, gradients, parameters and
buffers must equal eager's. Without CUDA the same runs on the CPU.

Random numbers: with Inductor's `fallback_random`, compiled code calls eager's own random operators. On the CPU these
always draw eager's numbers. On CUDA, each call takes as many numbers from the generator as its kernel's launch needs,
so the numbers agree only if compiled code makes eager's calls on eager's shapes. If a case on CUDA draws random numbers
and differs from eager mode, it is compared with a compiled run from the same seed that recomputes nothing: if our step
drew other numbers a second time, the two runs would differ. `reference` says which comparison was made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

import remat
from costmodels import ByteTraffic
from experiments.models.cases import CASES
from experiments.models.model_case import ModelCase
from experiments.models.save_everything import SaveLeast
from experiments.models.training import draws_random_numbers, train
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable, Row
from remat.pytorch.measure.training_step import usual_strategies

STRATEGIES: dict[str, remat.CostModel] = {
    "aggressive": ByteTraffic(mode="aggressive"),
    "save least": SaveLeast(),
    "conservative": ByteTraffic(),
}
OPTIONS = {"fallback_random": True}


def measure(job: tuple[str, str]) -> Iterator[Row]:
    """Trains a case in eager mode and under a strategy, and compares."""
    case, strategy = CASES[job[0]], job[1]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cudnn.allow_tf32 = False  # convolutions would keep 10 bits, eager's other ones than ours
    reference = "eager"

    def compiled(model: nn.Module) -> Callable[..., Any]:
        return remat.compile(model, cost_model=STRATEGIES[strategy], options=OPTIONS, dynamic=case.dynamic)

    torch.compiler.reset()
    found = train(case, compiled, device)
    detail = difference(found, train(case, lambda model: model, device), case)
    if detail and device == "cuda" and draws_random_numbers(case, device):
        reference = "compiled, nothing recomputed"
        torch.compiler.reset()
        own_saves = usual_strategies(options=OPTIONS, dynamic=case.dynamic)["autograd's own saves"]
        detail = difference(found, train(case, own_saves, device), case)
    yield {
        "strategy": strategy,
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "verdict": "differs" if detail else "equal",
        "reference": reference,
        "detail": detail,
    }


def difference(actual: dict[str, Any], expected: dict[str, Any], case: ModelCase) -> str:
    """Says what differs by more than the case's tolerance; "" if nothing does."""
    try:
        torch.testing.assert_close(actual, expected, rtol=case.tolerance, atol=case.tolerance)
    except AssertionError as error:
        return str(error)
    return ""


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Counts what is equal on each device, and lists what is not."""
    found: list[str] = []
    for device in dict.fromkeys(row["device"] for row in rows):
        own = [row for row in rows if row["device"] == device]
        wrong = [f"{row['case']} ({row['detail']})" for row in own if row["verdict"] != "equal"]
        found.append(f"{device}: {len(own) - len(wrong)} of {len(own)} equal{''.join(f'; {one}' for one in wrong)}")
    return [bullets(found)]


TABLE = ResultTable(
    "experiments.accuracy.gpu_training",
    "Training on a GPU, beside eager mode",
    cases=lambda: [(name, strategy) for strategy in STRATEGIES for name in CASES],
    key=", ".join,
    measure=measure,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
