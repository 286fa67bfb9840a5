"""Measures how far simulated peaks are from what TorchInductor plans for a GPU's kernels, without a GPU.

`python -m experiments.accuracy.gpu_peak_error [INSTANCE ...]` takes instances of the corpus and five plans of each. For
each pass Inductor's own planner is asked what the buffers of its Triton schedule take at most, in the order in which
the kernels run. Beside it are `remat.predict.memory.simulate`, in which a step is a value, and `remat.timeline` with
`device="a100"`, in which it is a predicted Triton kernel.
"""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import remat
from experiments.accuracy.inductor_peak import planned_peak
from experiments.accuracy.kernel_truth import PlanSelection, different_plans
from experiments.report.markdown import cited, page, table
from experiments.report.provenance import provenance
from remat.predict.memory import simulate
from remat.pytorch.inductor.scheduled import Scheduled

EXPERIMENTS = Path(__file__).parents[1]
DEVICE = "a100"
PLANS = PlanSelection(5, on_the_frontier=2, budgets=(), every_plan_through_the_model=False)
INSTANCES = (
    "small-bert",
    "small-dropout-mlp",
    "small-evonorm",
    "small-gpt-attention-written-out",
    "small-gpt-fused-attention",
    "small-layernorm-gelu-mlp",
    "small-mlp-mixer",
    "small-nn-transformerencoder",
    "small-resnet",
    "unet",
    "vgg16",
    "resnet18",
    "lstm-16",
    "hf-convnext-tiny",
    "mobilenet-v2",
)


@dataclass(frozen=True)
class PeakRow:
    """Compares the peak of one pass under one plan, in bytes.

    Attributes:
        instance, plan: their names.
        backward: which pass it is.
        inductor: by Inductor's planner, for its Triton schedule.
        values, kernels: simulated, with values or with predicted Triton kernels as steps.
    """

    instance: str
    plan: str
    backward: bool
    inductor: int
    values: int
    kernels: int


def rows_of(instance: str) -> Iterator[PeakRow]:
    """Asks Inductor about five plans of an instance."""
    graph = remat.Graph.load(EXPERIMENTS / "instances" / f"{instance}.json.gz")
    scheduled = Scheduled(graph, device=DEVICE)
    for name, plan in different_plans(graph, {}, PLANS):
        peaks: list[int] = []
        inputs = {value for value in plan.saved if graph.input[graph.base[graph.index[value]]]}

        def visit(lowering: Any, names: Any, _: Any, peaks: list[int] = peaks, inputs: set[str] = inputs) -> None:
            peaks.append(planned_peak(lowering, [passed for passed, own in names.items() if own in inputs]))

        scheduled.visit(plan, visit)
        by_value = simulate(graph, plan, holds_outputs=False)
        by_kernel = remat.timeline(graph, plan, holds_outputs=False, device=DEVICE)
        for backward, inductor in enumerate(peaks):
            simulated = [
                timeline.backward_peak_bytes if backward else timeline.forward_peak_bytes
                for timeline in (by_value, by_kernel)
            ]
            yield PeakRow(instance, name, bool(backward), inductor, *simulated)


def markdown(document: Mapping[str, Any]) -> str:
    """Writes the page: a line for each instance and one for all, with the median and the worst error of both."""
    rows, origin = [PeakRow(**row) for row in document["rows"]], document["provenance"]
    lines = []
    for instance in [*dict.fromkeys(row.instance for row in rows), "all"]:
        of = [row for row in rows if instance in (row.instance, "all")]
        errors = ([getattr(row, by) / row.inductor - 1 for row in of] for by in ("values", "kernels"))
        lines.append((instance, len(of), *map(_errors, errors)))
    return page(
        "Simulated peaks, beside TorchInductor's plan for a GPU's kernels",
        inspect.cleandoc(__doc__ or ""),
        f"An A100's schedule, without a device. {cited(origin, 'experiments.accuracy.gpu_peak_error')}.",
        table(("instance", "passes", "steps are values: median, worst", "steps are kernels: median, worst"), lines),
    )


def _errors(errors: Sequence[float]) -> str:
    worst = max(errors, key=abs)
    return f"{np.median(np.abs(errors)):.1%}, {worst:+.1%}"


def main() -> None:
    """Writes `gpu_peak_error.json` and `.md` into the folder of results."""
    warnings.simplefilter("ignore")  # torch's own deprecations
    rows: list[PeakRow] = []
    for instance in sys.argv[1:] or INSTANCES:
        rows += rows_of(instance)
        print(instance, flush=True)
    document = {"provenance": provenance(gpu=False), "rows": [asdict(row) for row in rows]}
    results = EXPERIMENTS / "results"
    (results / "gpu_peak_error.json").write_text(json.dumps(document, indent=1) + "\n")
    (results / "gpu_peak_error.md").write_text(text := markdown(document))
    print(text)


if __name__ == "__main__":
    main()
