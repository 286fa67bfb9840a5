"""Measures how far predicted peaks are from what compiled training steps hold on this CPU, by torch's own allocator.

`python -m experiments.accuracy.compiled_peaks` takes our ten small models (`KERNEL_ZOO`), the small cases of the tests
and the held-out models, among them eleven of the package `transformers`, and two plans of each: the cut of
`ByteTraffic()`, and the one that saves the fewest bytes. The third step of the compiled model is traced: every byte
that torch's allocator hands out and takes back, above what was held before. The caller holds the outputs, and makes
their tangents before. Predictions are those of `remat.timeline`, which sees only the graph and the plan, and (`values`)
of `remat.predict.memory.simulate`, for which each value is a step. The C++ kernels are left out: they allocate nothing,
so the trace is that of the step, in a fraction of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import remat
from costmodels import ByteTraffic
from experiments.accuracy.skipped_kernels import no_cpu_kernels
from experiments.models.cases import CASES
from experiments.models.held_out import HELD_OUT
from experiments.models.save_everything import SaveLeast, plan_of
from experiments.models.workloads import KERNEL_ZOO
from experiments.report.charts import draw_errors
from experiments.report.markdown import section, table
from experiments.report.result_table import ResultTable, Row
from remat.predict.memory import simulate
from remat.pytorch import capture_all
from remat.pytorch.measure.saved import peak_bytes
from remat.pytorch.seam.fakes import owned

LABELS = {"zoo": "our ten small models", "case": "small cases of the tests", "held out": "held-out models"}
PLANS: dict[str, remat.CostModel] = {"default": ByteTraffic(), "save least": SaveLeast()}
Made = tuple[nn.Module, tuple[Tensor, ...], bool | None]
"""A model, what it is called with, and whether its sizes are symbolic."""


def makers() -> dict[str, tuple[str, Callable[[], Made]]]:
    """Lists the models: their group ("zoo", "case" or "held out") and their maker, by name."""
    found: dict[str, tuple[str, Callable[[], Made]]] = {}
    for group, models in (("zoo", KERNEL_ZOO), ("held out", HELD_OUT)):
        found |= {name: (group, lambda make=make: (*make(), None)) for name, make in models.items()}
    for name, case in CASES.items():
        found[name] = "case", lambda case=case: (case.build(), case.inputs(), case.dynamic)
    return found


def measured_peak(
    model_case: Made, cost_model: remat.CostModel, *, kernels: bool, copy_stream: bool = False
) -> tuple[remat.Graph, remat.Plan, int]:
    """Compiles a model under the plan that a cost model leads to, and traces its third step.

    Raises:
        ValueError: the model has more than one joint graph.
    """
    model, args, dynamic = model_case
    graphs = capture_all(model, *args)
    if len(graphs) != 1:
        raise ValueError(f"it has {len(graphs)} joint graphs")
    chosen = plan_of(graphs[0], cost_model)
    torch.compiler.reset()
    step = remat.compile(model, plan=chosen, dynamic=dynamic, copy_stream=copy_stream)

    def differentiable(outputs: Any) -> list[Tensor]:
        return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.requires_grad]

    def forget() -> None:
        for tensor in owned(model, args):
            tensor.grad = None

    with nullcontext() if kernels else no_cpu_kernels():
        tangents = [torch.ones_like(tensor) for tensor in differentiable(step(*args))]

        def train() -> None:
            outputs = step(*args)  # the caller holds them all
            torch.autograd.backward(differentiable(outputs), tangents)

        train()
        forget()
        found = peak_bytes(train, torch.device("cpu"))
        forget()
    return graphs[0], chosen, found


def measure(case: tuple[str, str]) -> Iterator[Row]:
    """Compares the peak of one step, in bytes."""
    name, plan = case
    group, make = makers()[name]
    torch.random.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    graph, chosen, held = measured_peak(make(), PLANS[plan], kernels=False)
    predicted, values = remat.timeline(graph, chosen).peak_bytes, simulate(graph, chosen).peak_bytes
    yield {"model": name, "plan": plan, "group": group, "measured": held, "predicted": predicted, "values": values}


def errors(rows: Sequence[Row], of: str = "predicted") -> np.ndarray[Any, np.dtype[np.float64]]:
    """(k,) relative errors; positive where the prediction is too large."""
    return np.array([row[of] / row["measured"] - 1 for row in rows])


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Sums up each group and plan, and lists every step whose prediction is off by more than 3%."""
    lines: list[tuple[object, ...]] = []
    for group, label in (LABELS | {"all": "all"}).items():
        for plan in (*PLANS, "both"):
            of = [row for row in rows if group in (row["group"], "all") and plan in (row["plan"], "both")]
            if of:
                lines.append((label, plan, len(of), *_spread(of, "predicted"), *_spread(of, "values")))
    off = [(row, error) for row, error in zip(rows, errors(rows), strict=True) if abs(error) > 0.03]
    headings = ("median", "90% within", "worst")
    return [
        table(("models", "plan", "steps", *headings, *(f"{h}, by values" for h in headings)), lines),
        section("Off by more than 3%", table(("step", "off by"), [(row["case"], f"{e:+.1%}") for row, e in off])),
    ]


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws the errors of each group of models, and those of peaks that are predicted without kernels."""
    found = {label: errors([row for row in rows if row["group"] == group]) for group, label in LABELS.items()}
    draw_errors(found | {"all, predicted without kernels": errors(rows, "values")}, "predicted peaks", path)


def _spread(rows: Sequence[Mapping[str, Any]], of: str) -> tuple[str, str, str]:
    found = errors(rows, of)
    size = np.abs(found)
    return f"{np.median(size):.1%}", f"{np.quantile(size, 0.9):.1%}", f"{found[size.argmax()]:+.1%}"


TABLE = ResultTable(
    "experiments.accuracy.compiled_peaks",
    "Predicted peaks, beside what compiled steps hold",
    cases=lambda: [(name, plan) for name in makers() for plan in PLANS],
    key=", ".join,
    measure=measure,
    summary=summary,
    draw=draw,
)

if __name__ == "__main__":
    TABLE.command()
