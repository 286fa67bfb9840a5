"""Measures Table 2, and Figure 5 with each method at its own batch: `python -m experiments.paper.largest_batch`.

On CUDA batches are tried until memory runs out, up to seven minutes for one case: `--budget-minutes 0.1` does one at a
time. On the CPU nothing runs: remat estimates what a batch would take.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import typer

from experiments.paper import geomean
from experiments.paper.batch_schedule import largest_scheduled
from experiments.paper.batch_search import Found, largest_batch
from experiments.paper.batch_trial import Trials, allowed_bytes, estimated_bytes, weight_bytes
from experiments.paper.measure_table import command
from experiments.paper.methods import FULL, MIN_CUT, NO, OURS
from experiments.paper.row_file import Rows
from experiments.paper.table import VIRTUAL, Figures, PaperTable, Setting, TableCase
from experiments.paper.table_page import called
from experiments.paper.ten_models import MODELS, Whole
from experiments.report import markdown

TABLE_2 = (FULL, MIN_CUT, NO)
METHODS = (*TABLE_2, OURS)

SMALL_GIB = 0.125
"""The small models have to fit into this memory."""

SEARCH_S = 300.0
"""No trial begins after this: one may take a minute and more, most of it compilation."""

SETTINGS = [("cuda", "published"), (VIRTUAL, "published"), ("cuda", "small"), ("cpu", "published"), ("cpu", "small")]

_WANT_OF_MEMORY = ("out of memory", "above the limit")
"""The usual errors for want of memory contain these words; any other error is shown, as size may not be its cause."""


class NothingFits(Exception):
    """Raised when no batch that was tried fits; the message says which was the smallest, and why it does not."""


def case(whole: Whole, method: str, setting: Setting) -> Figures:
    """Finds the largest batch of one model under one method.

    Raises:
        Unavailable: a package is missing.
        NothingFits: no batch that was tried fits.
    """
    if setting.is_virtual:
        return without_device(whole, method, setting)
    return on_cuda(whole, method, setting) if setting.device == "cuda" else estimated(whole, method, setting)


def on_cuda(whole: Whole, method: str, setting: Setting) -> Figures:
    """Finds the largest batch by trial."""
    limit_bytes = allowed_bytes(_memory_gib(setting))
    trials = Trials(whole, method, setting, limit_bytes)
    found = largest_batch(
        trials.held_bytes,
        limit_bytes,
        first=whole.small_batch if setting.is_small else whole.batches.get(method, whole.batches[MIN_CUT]),
        at_rest_bytes=weight_bytes(whole.source(setting)),
        time_limit_s=SEARCH_S,
    )
    figures = _figures(found, "batch", "held_gib", "too_large")
    return figures | {"samples_per_s": found.batch / trials.step_s[found.batch], "limit_gib": limit_bytes / 2**30}


def estimated(whole: Whole, method: str, setting: Setting) -> Figures:
    """Finds the largest batch by simulation."""
    limit_gib = _memory_gib(setting)
    found = largest_batch(
        partial(estimated_bytes, whole, method, setting),
        int(limit_gib * 2**30),
        first=whole.small_batch if setting.is_small else whole.batches[NO] // 8,
    )
    return _figures(found, "estimated_batch", "estimated_gib", "estimated_too_large") | {"limit_gib": limit_gib}


def without_device(whole: Whole, method: str, setting: Setting) -> Figures:
    """Finds the largest batch that should fit, by TorchInductor's schedule."""
    found = largest_scheduled(whole, method, int(setting.memory_gib * 2**30), setting.trials)
    return {
        "estimated_batch": found.batch,
        "estimated_gib": found.held_bytes / 2**30,
        "limit_gib": setting.memory_gib,
        "modelled_samples_per_s": found.samples_per_s,
        "scheduled": ", ".join(map(str, found.scheduled)),
    }


def _memory_gib(setting: Setting) -> float:
    return SMALL_GIB if setting.is_small else setting.memory_gib


def _figures(found: Found, batch: str, held_gib: str, too_large: str) -> dict[str, float | int | str | None]:
    if not found.batch:
        ended = "" if found.is_settled else f" (the search ended after {found.trials} trials)"
        raise NothingFits(f"not a batch of {found.too_large}{ended}: {found.reason}")
    figures = {batch: found.batch, held_gib: found.held_bytes / 2**30, too_large: found.too_large}
    if found.reason and not any(words in found.reason.lower() for words in _WANT_OF_MEMORY):
        figures["failed"] = found.reason
    return figures


def summary(rows: Rows, folder: Path) -> Sequence[str]:
    """Computes geometric means over the models."""
    del folder
    published = geomean.means(
        {(whole.name, method): float(batch) for whole in MODELS for method, batch in whole.batches.items()}
    )
    table_2 = {method: f"{mean:.2f}" for method, (mean, _) in published.items()}
    columns = {called(TABLE, *where): where for where in SETTINGS}
    batches = {
        f"{name}{'' if device == 'cuda' else ', estimated'}": geomean.measured(
            rows, device, size, "batch" if device == "cuda" else "estimated_batch"
        )
        for name, (device, size) in columns.items()
    }
    speeds = {
        name: geomean.measured(rows, *where, "samples_per_s" if where[0] == "cuda" else "modelled_samples_per_s")
        for name, where in columns.items()
        if where[0] != "cpu"
    }
    return [
        geomean.block("Largest batch, times that of no-checkpoint: geometric means", table_2, batches),
        geomean.block(
            "Samples a second of each method at its largest batch, times those of no-checkpoint: geometric means",
            {MIN_CUT: "1.12"},
            speeds,
        ),
        *_errors(rows),
    ]


def _errors(rows: Rows) -> Iterator[str]:
    """Says how far the batches without a device are from the published ones, model by model."""
    found = {row.case: row.figures["estimated_batch"] for row in rows.of(VIRTUAL, "published") if not row.kind}
    if not found:
        return
    ratios = {
        whole.name: [
            found[case] / whole.batches[method] if (case := f"{whole.name}, {method}") in found else None
            for method in TABLE_2
        ]
        for whole in MODELS
    }
    kept = [[ratio for ratio in column if ratio] for column in zip(*ratios.values(), strict=True)]
    means = ["geometric mean", *(statistics.geometric_mean(column) if column else None for column in kept)]
    lines = [[name, *cells] for name, cells in ratios.items()]
    yield markdown.section(
        "Largest batch without a device, over the published one",
        markdown.table(["model", *TABLE_2], [*lines, means]),
    )


NOTES = """
- Published: TorchBench on one A100 of 40 GB. Ours: as much memory as that (`--memory-gib`, 39 by default: what its
  allocator gets beside CUDA's context), by `torch.cuda.set_per_process_memory_fraction`; small models get 0.125 GiB.
  The first step of a batch, which compiles, may use all of the device: Triton tries its configurations there.
  Beyond 16 samples the batch is found to a sixteenth of a power of two, or better; "too large" is the smallest batch
  that did not run. The search of one case ends after 300 s; then the two may be further apart.
- Methods and models are those of `throughput`. "ours" has no published figure.
- On the CPU, at either size, nothing runs: estimated is the peak of both passes as `remat.predict.memory` simulates it,
  on joint graphs without contents, and parameters, buffers and inputs. Workspaces and fragmentation are not in it. The
  models are our own there, at the published widths; RegNetX-1.6GF stands for timm_regnet.
- Without a device memory is parameters, their gradients, buffers and inputs, and what Inductor's memory planner expects
  of a step, on a straight line over the batch: through the batch that was scheduled, and through an empty one. With
  `--trials 2` of `experiments.paper.unlaunched_tables` the batch that is found is scheduled, too. No optimizer takes
  memory. Workspaces of cuDNN and cuBLAS and fragmentation are not in it; how finely the authors searched is not known.
- Published for vgg16 under full-checkpoint is a batch of 4,096. Of images of 224 x 224, the output of the first
  convolution alone would then take 24.5 GiB in half precision, and its ReLU as much.
- The published means of the batches are computed from Table 2; that of the throughput stands in the text.
"""

TABLE = PaperTable(
    name="largest_batch",
    title="The largest batch (Table 2), and throughput there (Figure 5)",
    source="paper, sections 4.1 to 4.3, Table 2 and Figure 5; NVIDIA A100-40GB",
    figures={
        "batch": "largest batch",
        "too_large": "too large",
        "failed": "why it did not run, if not for want of memory",
        "samples_per_s": "samples / s there",
        "held_gib": "held there, GiB",
        "estimated_batch": "largest batch, estimated",
        "estimated_too_large": "too large, estimated",
        "estimated_gib": "held there, estimated, GiB",
        "scheduled": "batches that were scheduled",
        "modelled_samples_per_s": "samples / s there, modelled",
        "limit_gib": "limit, GiB",
    },
    cases=[
        TableCase(
            f"{whole.name}, {method}",
            partial(case, whole, method),
            {"batch": whole.batches[method]} if method in whole.batches else {},
        )
        for whole in MODELS
        for method in METHODS
    ],
    notes=NOTES,
    summary=summary,
)

if __name__ == "__main__":
    typer.run(command(TABLE))
