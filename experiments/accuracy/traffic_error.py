"""Measures how far predicted memory traffic is from what TorchInductor schedules, and whether it ranks plans alike.

`python -m experiments.accuracy.traffic_error` takes models, and for each of them legal plans that differ: autograd's
saves, PyTorch's and ours, points of the frontier, random ones. For each plan, `remat.predict_traffic` predicts the
bytes that the kernels of both passes read and write, from the `Graph` alone. Inductor's scheduler is asked for the
same, after all fusion and before code generation: see `remat.pytorch.inductor.scheduled`. A rank correlation of 1 means
that the two order a model's plans alike.

There are two parts. The rules of `remat.predict.kernels` were read in Inductor, and checked on
`experiments.models.workloads.KERNEL_ZOO`: its errors say how well they are copied. `experiments.models.held_out` has
models that no rule was written for: their errors are those to expect of a model of one's own.

`--backend triton` compares kernels for GPUs with TorchInductor's Triton schedule, without a device, and writes
`traffic_error_triton.json` and `.md`: of the same models, captured on a CPU, of graphs of the corpus, and of models
that were captured for a GPU. Each graph is counted by itself, for an H100. A large graph takes a minute a plan: of
those, two plans are compared.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

import remat
from experiments.accuracy.kernel_truth import PlanSelection, Truth, find_truth
from experiments.accuracy.traffic_error_report import markdown
from experiments.models.held_out import HELD_OUT, MENDED
from experiments.models.workloads import KERNEL_ZOO, Sample
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from remat.facts.corpus import Corpus
from remat.predict.kernels.backends import BACKENDS
from remat.words import near

console = Console()


@dataclass(frozen=True)
class ModelGroup:
    """Names models that are reported together.

    Attributes:
        models: by name.
        selection: which plans of each model are compared.
    """

    models: Mapping[str, Callable[[], Sample | remat.Graph]]
    selection: PlanSelection


PARTS: dict[str, ModelGroup] = {
    "zoo": ModelGroup(KERNEL_ZOO, PlanSelection()),
    "held-out": ModelGroup(
        HELD_OUT, PlanSelection(6, on_the_frontier=0, budgets=(1.0,), every_plan_through_the_model=False)
    ),
}

GPU = "h100"
_FEW = PlanSelection(2, on_the_frontier=0, budgets=(1.0,), every_plan_through_the_model=False)
_CORPUS = ("resnet18", "vgg16", "unet", "lstm-16", "qehvi-8")
_LARGE = (
    *("resnet50", "mobilenet-v2", "efficientnet-b0", "evonorm-resnet50", "hf-convnext-tiny", "hf-vit-base"),
    *("gpt2-small", "gpt2-small-fused", "gpt2-small-bf16", "hf-gpt2-sdpa", "hf-bert-base", "hf-albert-base"),
    "hf-mamba-130m",
)


def _stored(name: str) -> Callable[[], remat.Graph]:
    return lambda: Corpus.open().graph(name)


def _captured(make: Callable[[], Sample]) -> Callable[[], remat.Graph]:
    def capture() -> remat.Graph:
        module, args = make()
        return remat.capture(module, *args, device=GPU)

    return capture


TRITON_PARTS: dict[str, ModelGroup] = {
    "zoo": ModelGroup(KERNEL_ZOO, PlanSelection(every_plan_through_the_model=False)),
    "captured": ModelGroup(
        {name: _captured(make) for name, make in KERNEL_ZOO.items()}, PlanSelection(6, on_the_frontier=2)
    ),
    "corpus": ModelGroup({name: _stored(name) for name in _CORPUS}, PlanSelection(6, on_the_frontier=6)),
    "large": ModelGroup({name: _stored(name) for name in _LARGE}, _FEW),
    "held-out": ModelGroup(HELD_OUT, _FEW),
}


@dataclass(frozen=True)
class TrafficErrorRow:
    """Compares one model's traffic under one plan.

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
        """The relative error of the bytes; negative where the prediction is too low."""
        return self.predicted_bytes / self.inductor_bytes - 1


def main(
    only: Annotated[str, typer.Option(help="the models with this in their name")] = "",
    part: Annotated[str | None, typer.Option(help=f"{', '.join(TRITON_PARTS)}; else all")] = None,
    backend: Annotated[str, typer.Option(help="whose kernels: cpu, or triton for GPUs")] = "cpu",
    truth: Annotated[
        Path | None,
        typer.Option(
            help="a folder that keeps Inductor's counts: a run that is stopped goes on from there; a new one for "
            "models that have changed"
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(help="processes that ask Inductor", min=1)] = 2,
    output: Annotated[Path, typer.Option(help="folder for traffic_error.json and .md")] = RESULTS,
) -> None:
    """Predicts traffic, asks Inductor, and writes JSON and a table."""
    if backend not in BACKENDS:
        raise typer.BadParameter(f"--backend must be {' or '.join(BACKENDS)}, got {backend!r}{near(backend, BACKENDS)}")
    parts = _parts(backend)
    if part is not None and part not in parts:
        raise typer.BadParameter(f"--part must be {' or '.join(parts)}, got {part!r}{near(part, parts)}")
    wanted = [(name, model) for name in parts if part in (None, name) for model in parts[name].models if only in model]
    if not wanted:
        known = [model for name in parts if part in (None, name) for model in parts[name].models]
        raise typer.BadParameter(f"no model has {only!r} in its name; there are {', '.join(known)}")
    report: dict[str, Any] = {"provenance": provenance(gpu=False), "backend": backend}
    with TemporaryDirectory() as folder:
        failed = asked(wanted, kept := truth or Path(folder), jobs, backend)
        for name in dict.fromkeys(name for name, _ in wanted):
            report[name] = reported(
                [model for of, model in wanted if of == name], _kept(kept, name, backend), failed, backend
            )
    if len(failed) == len(wanted):
        raise typer.BadParameter(f"all models failed: {failed}")
    file = output / ("traffic_error.json" if backend == "cpu" else f"traffic_error_{backend}.json")
    write_results(file, report, text := markdown(report))
    console.print(text.split("\n## Every plan")[0], markup=False)
    console.print(f"written to {file} and .md")


def _parts(backend: str) -> dict[str, ModelGroup]:
    return PARTS if backend == "cpu" else TRITON_PARTS


def _kept(truth: Path, part: str, backend: str) -> Path:
    """Names a folder of its own for each part for GPUs, where parts have models of the same name."""
    return truth if backend == "cpu" else truth / part


def asked(wanted: Sequence[tuple[str, str]], truth: Path, jobs: int, backend: str) -> dict[str, str]:
    """Puts Inductor's counts of these models into a folder.

    Args:
        wanted: names of a part and of a model of it.
        truth: the folder.
        jobs: how many processes share the work; 1 for this one.
        backend: whose kernels.

    Returns:
        the reason of each model that failed, by its name.
    """
    failed: dict[str, str] = {}
    with ProcessPoolExecutor(jobs, get_context("spawn")) if jobs > 1 else nullcontext() as pool:
        answers = [pool.submit(ask, *which, truth, backend) if pool else None for which in wanted]
        for i, ((part, model), answer) in enumerate(zip(wanted, answers, strict=True)):
            if why := answer.result() if answer else ask(part, model, truth, backend):
                failed[model] = why
            console.print(f"{i + 1}/{len(wanted)} {model}{f' failed: {why}' if why else ''}", markup=False)
    return failed


def ask(part: str, model: str, truth: Path, backend: str) -> str:
    """Puts Inductor's counts of a model into a folder, unless they are there; returns why that failed, or ""."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations
        try:
            group = _parts(backend)[part]
            gpu = None if backend == "cpu" else GPU
            find_truth(model, group.models[model], group.selection, _kept(truth, part, backend), gpu)
        except Exception as error:  # one model that fails must not hide the others
            return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


def reported(models: Iterable[str], truth: Path, failed: dict[str, str], backend: str) -> dict[str, Any]:
    """Reports on the models of a part; those that fail are listed, and added to `failed`."""
    rows: list[TrafficErrorRow] = []
    found: list[dict[str, Any]] = []
    for name in (names := list(models)):
        if name in failed:
            continue
        about = Truth.load(truth, name)
        try:
            rows += (fresh := compared(name, about, backend))
        except remat.RematError as error:
            failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        found.append({"values": len(about.graph), "asked": about.graph.meta["asked"], **summary(name, fresh)})
    return {
        "overall": overall([row for row in rows if row.model not in MENDED]),
        "summary": found,
        "rows": [asdict(row) | {"error": row.error} for row in rows],
        "failed": {name: failed[name] for name in names if name in failed},
    }


def compared(model: str, truth: Truth, backend: str) -> list[TrafficErrorRow]:
    """Compares prediction and count: one row for each plan."""
    rows: list[TrafficErrorRow] = []
    for name, plan in truth.plans.items():
        predicted, kernels = remat.predict_traffic(truth.graph, plan, backend=backend), truth.kernels[name]
        inductor_bytes = sum(kernel.bytes for kernel in kernels)
        rows.append(TrafficErrorRow(model, name, predicted.bytes, inductor_bytes, len(predicted.kernels), len(kernels)))
    return rows


def overall(rows: list[TrafficErrorRow]) -> dict[str, Any]:
    """Sums up all models together; the answer is empty where there are no rows."""
    if not rows:
        return {}
    errors = sorted(abs(row.error) for row in rows)
    worst = max(rows, key=lambda row: abs(row.error))
    return {
        "models": len({row.model for row in rows}),
        "plans": len(rows),
        "exact": sum(row.predicted_bytes == row.inductor_bytes for row in rows),
        "within_1_percent": sum(error <= 0.01 for error in errors),
        "within_6_percent": sum(error <= 0.06 for error in errors),
        "median_error": statistics.median(errors),
        "p90_error": float(np.quantile(errors, 0.9)),
        "worst_error": errors[-1],
        "worst_model": worst.model,
        "worst_plan": worst.plan,
    }


def summary(model: str, rows: list[TrafficErrorRow]) -> dict[str, Any]:
    """Sums up one model's errors, and the rank correlation over its plans; None where all plans move the same."""
    errors = sorted(abs(row.error) for row in rows)
    worst = max(rows, key=lambda row: abs(row.error))
    predicted, inductor = ([getattr(row, name) for row in rows] for name in ("predicted_bytes", "inductor_bytes"))
    correlation = rank_correlation(predicted, inductor)
    return {
        "model": model,
        "plans": len(rows),
        "median_error": statistics.median(errors),
        "worst_error": worst.error,
        "worst_plan": worst.plan,
        "within_1_percent": sum(error <= 0.01 for error in errors) / len(rows),
        "rank_correlation": None if np.isnan(correlation) else correlation,
        "inductor_bytes": [min(inductor), max(inductor)],
    }


def rank_correlation(left: list[int], right: list[int]) -> float:
    """Computes Spearman's correlation, where equals share their mean rank; NaN if all are equal."""
    a, b = (_ranks(np.array(values)) for values in (left, right))
    if not a.std() or not b.std():
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def _ranks(values: Any) -> Any:
    _, position, count = np.unique(values, return_inverse=True, return_counts=True)
    return (count.cumsum() - (count - 1) / 2)[position]


if __name__ == "__main__":
    typer.run(main)
