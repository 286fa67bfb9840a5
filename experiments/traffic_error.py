"""How far predicted memory traffic is from what TorchInductor schedules, and whether it ranks plans alike.

`python -m experiments.traffic_error` takes every model of `experiments.models.KERNEL_ZOO` and, for each, two
dozen legal plans that differ: autograd's saves, PyTorch's and ours, points of the frontier, random ones. For
each plan, `remat.predict_traffic` predicts the bytes that the kernels of both passes read and write, from the
`Graph` alone. Inductor's scheduler is asked for the same, after all fusion and before code generation: see
`remat.pytorch.scheduled`. A rank correlation of 1 means that the two order a model's plans alike.
"""

from __future__ import annotations

import json
import statistics
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

import remat
from experiments.kernel_truth import Truth, find_truth
from experiments.models import KERNEL_ZOO
from experiments.provenance import provenance

RESULTS = Path(__file__).parent / "results"
console = Console()


@dataclass(frozen=True)
class Row:
    """One model under one plan.

    Attributes:
        model, plan: their names.
        predicted_bytes: read and written by the kernels of both passes, by `remat.predict_traffic`.
        inductor_bytes: the same, by Inductor.
        predicted_kernels, inductor_kernels: how many kernels those are.
    """

    model: str
    plan: str
    predicted_bytes: int
    inductor_bytes: int
    predicted_kernels: int
    inductor_kernels: int

    @property
    def error(self) -> float:
        """Relative; negative where the prediction is too low."""
        return self.predicted_bytes / self.inductor_bytes - 1


def main(
    only: Annotated[str, typer.Option(help="the models with this in their name")] = "",
    truth: Annotated[Path | None, typer.Option(help="a folder that keeps Inductor's counts for the next time")] = None,
    output: Annotated[Path, typer.Option(help="folder for traffic_error.json and .md")] = RESULTS,
) -> None:
    """Predicts, asks Inductor; writes JSON and a table."""
    rows: list[Row] = []
    failed: dict[str, str] = {}
    models = [name for name in KERNEL_ZOO if only in name]
    if not models:
        raise typer.BadParameter(f"no model has {only!r} in its name; there are {', '.join(KERNEL_ZOO)}")
    with warnings.catch_warnings(), console.status("") as status:
        warnings.simplefilter("ignore")  # torch's own deprecations
        for name in models:
            try:
                found = find_truth(name, truth, status.update)
                status.update(f"{name}: predicting")
                rows += compared(name, found)
            except Exception as error:  # one model that fails must not hide the others
                failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                console.print(f"{name} failed: {failed[name]}", markup=False)
    if not rows:
        raise typer.BadParameter(f"all models failed: {failed}")
    report: dict[str, Any] = {
        "provenance": provenance(),
        "summary": [summary(name, [row for row in rows if row.model == name]) for name in models if name not in failed],
        "rows": [asdict(row) for row in rows],
        "failed": failed,
    }
    output.mkdir(parents=True, exist_ok=True)
    (output / "traffic_error.json").write_text(json.dumps(report, indent=1) + "\n")
    (output / "traffic_error.md").write_text(text := _markdown(report, rows))
    console.print(text.split("\n## ")[0], markup=False)
    console.print(f"written to {output / 'traffic_error.json'} and .md")


def compared(model: str, truth: Truth) -> list[Row]:
    """A row for each plan."""
    rows: list[Row] = []
    for name, plan in truth.plans.items():
        predicted, kernels = remat.predict_traffic(truth.graph, plan), truth.kernels[name]
        inductor_bytes = sum(kernel.bytes for kernel in kernels)
        rows.append(Row(model, name, predicted.bytes, inductor_bytes, len(predicted.kernels), len(kernels)))
    return rows


def summary(model: str, rows: list[Row]) -> dict[str, Any]:
    """One model's errors, and the rank correlation over its plans."""
    errors = sorted(abs(row.error) for row in rows)
    worst = max(rows, key=lambda row: abs(row.error))
    predicted, inductor = ([getattr(row, name) for row in rows] for name in ("predicted_bytes", "inductor_bytes"))
    return {
        "model": model,
        "plans": len(rows),
        "median_error": statistics.median(errors),
        "worst_error": errors[-1],
        "worst_plan": worst.plan,
        "rank_correlation": rank_correlation(predicted, inductor),
        "inductor_bytes": [min(inductor), max(inductor)],
    }


def rank_correlation(left: list[int], right: list[int]) -> float:
    """Spearman's: Pearson's of the ranks, where equals share their mean rank; not a number if all are equal."""
    a, b = (_ranks(np.array(values)) for values in (left, right))
    if not a.std() or not b.std():
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: Any) -> Any:
    _, position, count = np.unique(values, return_inverse=True, return_counts=True)
    return (count.cumsum() - (count - 1) / 2)[position]


def _markdown(report: dict[str, Any], rows: list[Row]) -> str:
    origin = report["provenance"]
    lines = ["# Predicted memory traffic against TorchInductor's count", ""]
    lines += [f"{origin['command']}: torch {origin['torch']}, {origin['machine']}, {origin['date']}.", ""]
    lines += ["| model | plans | median error | worst | where | rank correlation | Inductor's bytes, from | to |"]
    lines += ["|---|---|---|---|---|---|---|---|"]
    for found in report["summary"]:
        errors = " | ".join(f"{100 * found[key]:.1f} %" for key in ("median_error", "worst_error"))
        span = " | ".join(f"{size:,}" for size in found["inductor_bytes"])
        lines.append(
            f"| {found['model']} | {found['plans']} | {errors} | {found['worst_plan']} | "
            f"{found['rank_correlation']:.3f} | {span} |"
        )
    if report["failed"]:
        lines += ["", "Failed:", "", *(f"- {name}: {why}" for name, why in report["failed"].items())]
    lines += [
        "",
        "## Every plan",
        "",
        "| model | plan | predicted bytes | Inductor's | error | predicted kernels | Inductor's |",
    ]
    lines += ["|---|---|---|---|---|---|---|"]
    lines += [
        f"| {row.model} | {row.plan} | {row.predicted_bytes:,} | {row.inductor_bytes:,} | {100 * row.error:+.1f} % | "
        f"{row.predicted_kernels} | {row.inductor_kernels} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    typer.run(main)
