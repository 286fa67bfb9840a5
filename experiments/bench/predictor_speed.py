"""Measures how long a prediction takes: `python -m experiments.bench.predictor_speed`.

A GPT-2-style model of 12 layers, with attention written out, and legal plans that differ. For each plan the same
question twice, in turns and in one process: which kernels, and how many bytes? `remat.predict.kernels` predicts them,
and TorchInductor's scheduler is asked about the same `Graph`, without generating code
(`remat.pytorch.inductor.scheduled`). Both have read the graph before; what that takes is a column of its own. Times are
processor times of the process, ratios are of medians; the bytes and kernels of both are written down beside.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import numpy as np
import typer
from rich.console import Console

import remat
from experiments.accuracy.kernel_truth import PlanSelection, different_plans
from experiments.models.workloads import transformer
from experiments.report.markdown import cited, page, table
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from remat.predict.kernels import Fuser
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.measure.torch_budgets import torchs_plans

T = TypeVar("T")

console = Console()


@dataclass(frozen=True)
class PredictorRow:
    """Describes both answers for one plan, and their times.

    Attributes:
        plan: its name.
        predicted_s: of each repetition.
        inductor_s: of one dry scheduling.
        predicted_bytes, inductor_bytes: read and written by the kernels of both passes.
        predicted_kernels, inductor_kernels: how many.
    """

    plan: str
    predicted_s: list[float]
    inductor_s: float
    predicted_bytes: int
    inductor_bytes: int
    predicted_kernels: int
    inductor_kernels: int


def main(
    layers: Annotated[int, typer.Option(help="of the transformer; 12 make 2,533 values", min=1)] = 12,
    plans: Annotated[int, typer.Option(help="how many, one after the other", min=1)] = 8,
    repeats: Annotated[int, typer.Option(help="of each prediction", min=1)] = 3,
    output: Annotated[Path, typer.Option(help="folder for predictor_speed.json and .md")] = RESULTS,
) -> None:
    """Times predictions and Inductor's counts, and writes JSON and a table."""
    origin = provenance(gpu=False)
    with warnings.catch_warnings(), console.status("capturing") as status:
        warnings.simplefilter("ignore")  # torch's own deprecations
        model, args = transformer(layers)
        ((graph, torchs),) = torchs_plans(model, *args, budgets=(1.0,))
        fuser, fuser_s = _timed(lambda: Fuser(graph))
        scheduled, scheduled_s = _timed(lambda: Scheduled(graph))
        chosen = dict(different_plans(graph, torchs, PlanSelection(plans + 1, on_the_frontier=0)))
        rows: list[PredictorRow] = []
        for name, plan in chosen.items():
            status.update(name)
            rows.append(measured(name, plan, fuser, scheduled, repeats))
            console.print(f"{name}: {min(rows[-1].predicted_s):.3f} s, Inductor {rows[-1].inductor_s:.1f} s")
    rows = rows[1:]  # the first plan pays for what torch imports and compiles once
    report = {
        "provenance": origin,
        "graph": {"layers": layers, "values": len(graph)},
        "summary": summary(rows) | {"reading_s": fuser_s, "inductor_reading_s": scheduled_s},
        "rows": [asdict(row) for row in rows],
    }
    write_results(output / "predictor_speed.json", report, text := markdown(report))
    console.print(text, markup=False)


def measured(name: str, plan: remat.Plan, fuser: Fuser, scheduled: Scheduled, repeats: int) -> PredictorRow:
    """Predicts and counts the traffic of one plan, and times both."""
    saved = np.isin(fuser.graph.names, plan.saved)
    answers = [_timed(lambda: fuser.kernels(saved)) for _ in range(repeats)]
    truth, inductor_s = _timed(lambda: scheduled.kernels(plan))
    predicted = answers[0][0]
    return PredictorRow(
        name,
        [seconds for _, seconds in answers],
        inductor_s,
        sum(kernel.bytes for kernel in predicted),
        sum(kernel.bytes for kernel in truth),
        len(predicted),
        len(truth),
    )


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    start = time.process_time()
    return call(), time.process_time() - start


def summary(rows: list[PredictorRow]) -> dict[str, Any]:
    """Computes medians and extremes over plans, from the median of each plan's repetitions."""
    ours, theirs = [statistics.median(row.predicted_s) for row in rows], [row.inductor_s for row in rows]
    return {
        "predicted_s": {"median": statistics.median(ours), "fastest": min(ours), "slowest": max(ours)},
        "inductor_s": {"median": statistics.median(theirs), "fastest": min(theirs), "slowest": max(theirs)},
        "median_ratio": statistics.median(theirs) / statistics.median(ours),
        # The most careful reading: Inductor at its fastest against us at our slowest.
        "worst_ratio": min(theirs) / max(ours),
    }


def markdown(report: dict[str, Any]) -> str:
    """Makes the page of the tables and their origin."""
    found, graph = report["summary"], report["graph"]
    sides = (
        ("`remat.predict.kernels`", "predicted_s", "reading_s"),
        ("Inductor, without code generation", "inductor_s", "inductor_reading_s"),
    )
    times = [
        (label, *(f"{found[key][which]:.3f}" for which in ("median", "fastest", "slowest")), f"{found[reading]:.2f}")
        for label, key, reading in sides
    ]
    return page(
        "Predicting kernels, and asking TorchInductor",
        f"{cited(report['provenance'], 'experiments.bench.predictor_speed')}. A GPT-2-style model of "
        f"{graph['layers']} layers, {graph['values']:,} values; processor time, both in one process.",
        table(("a plan takes", "median, s", "fastest", "slowest", "reading the graph, once"), times),
        f"Of medians, {found['median_ratio']:.0f}x faster; Inductor at its fastest against the slowest prediction, "
        f"{found['worst_ratio']:.0f}x.",
        table(_HEADINGS, map(_cells, report["rows"])),
    )


_HEADINGS = (
    "plan",
    "predicted in, s",
    "Inductor, s",
    "predicted bytes",
    "Inductor's",
    "predicted kernels",
    "Inductor's",
)


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    return (
        row["plan"],
        f"{statistics.median(row['predicted_s']):.3f}",
        f"{row['inductor_s']:.1f}",
        row["predicted_bytes"],
        row["inductor_bytes"],
        row["predicted_kernels"],
        row["inductor_kernels"],
    )


if __name__ == "__main__":
    typer.run(main)
