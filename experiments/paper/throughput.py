"""Measures Figure 5, at one batch: `python -m experiments.paper.throughput`.

Ten models, each under the methods of the paper and under ours, at the largest batch that was published for
no-checkpoint. `experiments.paper.largest_batch` has each method at its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import torch
import typer

from experiments.paper import geomean
from experiments.paper.batch_schedule import scheduled_batch
from experiments.paper.measure_table import command
from experiments.paper.methods import METHODS, MIN_CUT, NO, SCHEDULED, compiled
from experiments.paper.row_file import Rows
from experiments.paper.scheduled_step import compared, computed, unwritten
from experiments.paper.table import VIRTUAL, Figures, PaperTable, Setting, TableCase, Unavailable
from experiments.paper.table_page import called
from experiments.paper.ten_models import MODELS, Whole
from experiments.paper.without_device import FIGURES
from remat.pytorch.measure.step_values import Outcome
from remat.pytorch.measure.training_step import measure_step
from remat.pytorch.seam.torch_settings import nothing_donated

TOLERANCE = 0.02
"""The tolerance between methods, relative to the largest element: half precision has 8 to 11 bits."""

SETTINGS = [("cuda", "published"), (VIRTUAL, "published"), ("cuda", "small"), ("cpu", "small")]


def case(whole: Whole, method: str, setting: Setting) -> Figures:
    """Measures training steps of one model under one method: timed on CUDA, scheduled and interpreted on the CPU.

    Raises:
        Unavailable: the published size is asked for without CUDA, or a package is missing.
        WrongStep: the small model's outputs or gradients are not those of no-checkpoint.
    """
    if setting.is_virtual:
        return _without_device(whole, method)
    if setting.device == "cpu" and not setting.is_small:
        raise Unavailable("needs CUDA; on the CPU there is --size small")
    source, batch = whole.source(setting), whole.batch(setting)
    model, args = source.sample(setting.device, batch)
    step = compiled(method, model, source.layers_of, args)
    if setting.device == "cpu":
        found = unwritten(step, model, args)
        return {
            "batch": batch,
            "saved_mib": found.saved_bytes / 2**20,
            "moved_mib": found.moved_bytes / 2**20,
            "kernels": len(found.kernels),
            **_checked(found.outcome, whole, method, setting),
        }
    figures = _figures(batch, measure_step(step, model, *args, repeats=setting.repeats).row())
    if not setting.is_small:
        return figures
    return {**figures, **_checked(computed(step, model, args), whole, method, setting)}


def _without_device(whole: Whole, method: str) -> Figures:
    if method not in SCHEDULED:
        raise Unavailable("plans are refined for the kernels of a CPU here")
    found = scheduled_batch(whole, method, whole.batches[NO])
    return {
        "batch": found.batch,
        "modelled_samples_per_s": found.samples_per_s,
        "saved_mib": found.step.saved_bytes / 2**20,
        "peak_mib": found.step.peak_bytes / 2**20,
        "moved_mib": found.step.bytes / 2**20,
        "accesses": found.step.accesses,
        **found.step.figures,
    }


def _checked(seen: Outcome, whole: Whole, method: str, setting: Setting) -> Figures:
    """Compares a method with no-checkpoint, and no-checkpoint with eager mode, as half precision alone rounds."""
    expected, eager_error = reference(whole, setting)
    if method == NO:
        return {"eager_error": eager_error}
    return {"error": compared(seen, expected, TOLERANCE)}


@lru_cache(maxsize=1)
def reference(whole: Whole, setting: Setting) -> tuple[Outcome, float]:
    """Returns what no-checkpoint computes, and how far that is from eager mode; kept for the methods of one model."""
    torch.manual_seed(setting.seed)
    source = whole.source(setting)
    model, args = source.sample(setting.device, whole.batch(setting))
    step = compiled(NO, model, source.layers_of, args)
    with nothing_donated():
        once = unwritten(step, model, args).outcome if setting.device == "cpu" else computed(step, model, args)
    eager = computed(model, model, args)
    return once, once.difference(eager)[0]


def _figures(batch: int, row: Mapping[str, Any]) -> Figures:
    return {
        "batch": batch,
        "samples_per_s": batch / row["median_s"],
        "step_ms": 1e3 * row["median_s"],
        "saved_mib": row["saved_bytes"] / 2**20,
        "peak_mib": row["peak_bytes"] / 2**20,
        "moved_mib": row["moved_bytes"] / 2**20,
        "kernels": int(row["kernels"]),
    }


def summary(rows: Rows, folder: Path) -> Sequence[str]:
    """Computes the dotted lines of Figure 5."""
    del folder
    columns = {called(TABLE, *where): where for where in SETTINGS}
    return [
        geomean.block(
            "Samples a second, times those of no-checkpoint at the same batch: geometric means",
            {MIN_CUT: "1.10"},
            {
                name: geomean.measured(
                    rows, *where, "modelled_samples_per_s" if where[0] == VIRTUAL else "samples_per_s"
                )
                for name, where in columns.items()
            },
        ),
        *(
            geomean.block(
                f"{title}, times those of no-checkpoint: geometric means",
                {},
                {name: geomean.measured(rows, *where, figure) for name, where in columns.items()},
            )
            for title, figure in (("Saved bytes", "saved_mib"), ("Bytes moved by Inductor's count", "moved_mib"))
        ),
    ]


NOTES = """
- Published: one A100 of 40 GB, medians of 50 runs, PyTorch of 2022. Figure 5 prints no numbers beside its bars; the
  text gives the geometric mean.
- The batch is the published one of no-checkpoint (Table 2), at which all methods run here.
- "no-checkpoint" saves what autograd would, "full-checkpoint" is `torch.utils.checkpoint` around every block of a
  model, "min-cut" is PyTorch's own partitioner as installed, "ours" is `byte-traffic`; all are compiled by
  TorchInductor. "ours, refined" is the same plan after local search on the predicted traffic.
- At the published size the models are those of torchvision, timm and transformers that TorchBench takes:
  efficientnet_b0, regnety_120, resnest14d, vovnet39a; GPT-2 and ALBERT with 512 tokens and attention written out;
  images of 224 x 224; float16 autocast, no optimizer.
- Without a device the models are the same packages'. "min-cut" is PyTorch's own plan of the captured graph; under
  "full-checkpoint" what is marked to be saved is saved, also where PyTorch's partitioner recomputes it (elements of
  tuples, such as the output of a pooling that ends a layer). No plan is refined there.
- Small: our own models of two to six layers without dropout, batch 8, images of 64 x 64 or 64 tokens, bfloat16
  autocast on the CPU. On the CPU nothing is timed, as that would say nothing about a GPU: TorchInductor schedules its
  kernels (for a CPU), writes none, and the two graphs run operator by operator. Outputs, gradients and buffers of small
  models are compared with those of no-checkpoint. "Of no-checkpoint, to eager" is how far these are from eager mode:
  the rounding of half precision, largest in gradients of normalizations over few elements.
"""

TABLE = PaperTable(
    name="throughput",
    title="Throughput at one batch (Figure 5)",
    source="paper, sections 4.2 and 4.3, Figure 5; NVIDIA A100-40GB",
    figures={
        "batch": "batch",
        "samples_per_s": "samples / s",
        "step_ms": "step, ms",
        "saved_mib": "saved, MiB",
        "peak_mib": "peak, MiB",
        "moved_mib": "moved by Inductor's count, MiB",
        "accesses": "tensors read and written by kernels",
        **FIGURES,
        "modelled_samples_per_s": "samples / s, modelled",
        "error": "largest relative error to no-checkpoint",
        "eager_error": "of no-checkpoint, to eager",
    },
    cases=[
        TableCase(f"{whole.name}, {method}", partial(case, whole, method)) for whole in MODELS for method in METHODS
    ],
    notes=NOTES,
    summary=summary,
)

if __name__ == "__main__":
    typer.run(command(TABLE))
