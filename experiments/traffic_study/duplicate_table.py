"""Counts what computing values again within a pass saves: `python -m experiments.traffic_study.duplicate_table`.

For each model of `experiments.models.workloads.KERNEL_ZOO`, TorchInductor plans the kernels of a training step twice:
as it is, and with the post-grad pass `remat.pytorch.inductor.duplicate.DuplicateAcrossKernels`. PyTorch's own
partitioner chooses what is saved, so that nothing but the pass differs. Kernels are counted after all fusion, before
code generation; nothing is compiled, and nothing runs on what is counted.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import fx
from torch._inductor.compile_fx import compile_fx

from experiments.models.workloads import KERNEL_ZOO, Sample
from experiments.report.markdown import cited, page, table
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from remat.pytorch.inductor.duplicate import DuplicateAcrossKernels
from remat.pytorch.inductor.lowered_graphs import visited
from remat.pytorch.inductor.traffic_count import InductorKernel, scheduled_kernels
from remat.pytorch.seam.restore import put_back

console = Console()


@dataclass(frozen=True)
class Count:
    """Sums up the kernels of a training step, by Inductor's count.

    Attributes:
        forward_bytes, backward_bytes: that the kernels of a pass read and write.
        forward_kernels, backward_kernels: how many, calls of libraries included.
        took_s: processor time for both passes, from Dynamo to the schedule.
    """

    forward_bytes: int
    backward_bytes: int
    forward_kernels: int
    backward_kernels: int
    took_s: float

    @property
    def bytes(self) -> int:
        """Bytes that the kernels of both passes move."""
        return self.forward_bytes + self.backward_bytes


def main(
    only: Annotated[str, typer.Option(help="the models with this in their name")] = "",
    output: Annotated[Path, typer.Option(help="folder for duplicate.json and .md")] = RESULTS,
) -> None:
    """Counts kernels and bytes with and without the pass, and writes JSON and a table."""
    names = [name for name in KERNEL_ZOO if only in name]
    if not names:
        raise typer.BadParameter(f"no model has {only!r} in its name; there are {', '.join(KERNEL_ZOO)}")
    report: dict[str, Any] = {"provenance": provenance(gpu=False), "rows": []}
    rows = report["rows"]
    with warnings.catch_warnings(), console.status("") as status:
        warnings.simplefilter("ignore")  # torch's own deprecations
        warnings.filterwarnings("error", message="DuplicateAcrossKernels leaves a graph")  # a bug, not a result
        for name in names:
            status.update(name)
            rows.append({"model": name, **compared(*_seeded(name))})
            console.print(_line(rows[-1]), markup=False)
    write_results(output / "duplicate.json", report, markdown(report))
    console.print(f"written to {output / 'duplicate.json'} and .md")


def compared(model: torch.nn.Module, args: tuple[Any, ...]) -> dict[str, Any]:
    """Compares counts without and with the pass, and computes what ratio of the bytes the pass leaves."""
    before = counted(model, args, {})
    after = counted(model, args, {"post_grad_custom_post_pass": DuplicateAcrossKernels()})
    return {
        "before": asdict(before),
        "after": asdict(after),
        "ratio": after.bytes / before.bytes,
        "forward_ratio": after.forward_bytes / before.forward_bytes,
        "backward_ratio": after.backward_bytes / before.backward_bytes,
    }


def counted(model: torch.nn.Module, args: tuple[Any, ...], options: Mapping[str, Any]) -> Count:
    """Counts what Inductor schedules of a model that trains, with these settings of Inductor."""
    kernels: list[InductorKernel] = []

    def backend(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compile_fx(graph_module, list(inputs), config_patches=dict(options))

    start = time.process_time()
    with visited(lambda lowering: kernels.extend(scheduled_kernels(lowering))), put_back(model, args, {}):
        torch.compile(model, backend=backend, dynamic=False)(*args)
    took_s = time.process_time() - start
    passes = [[kernel for kernel in kernels if kernel.backward == backward] for backward in (False, True)]
    moved = [sum(kernel.bytes for kernel in found) for found in passes]
    return Count(moved[0], moved[1], len(passes[0]), len(passes[1]), round(took_s, 2))


def _seeded(name: str) -> Sample:
    torch.manual_seed(0)
    return KERNEL_ZOO[name]()


def markdown(report: dict[str, Any]) -> str:
    """Makes the page of the table and its origin."""
    return page(
        "Bytes that kernels move, with values computed again within a pass",
        f"{cited(report['provenance'], 'experiments.traffic_study.duplicate_table')}. MB are 10^6 bytes, by "
        "TorchInductor's own count, calls of libraries included; PyTorch's partitioner chooses what is saved. "
        "Arithmetic is taken for free, and nothing is timed but the compiler: processor time from Dynamo to the "
        "schedule of both passes, the first model's with what is imported then.",
        table(_HEADINGS, map(_cells, report["rows"])),
    )


_HEADINGS = ("model", "moved, MB", "with the pass", "change", "forward", "backward")
_HEADINGS += ("kernels", "with the pass", "compiler, s", "with the pass")


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    sides = [Count(**row[side]) for side in ("before", "after")]
    return (
        row["model"],
        *(f"{side.bytes / 1e6:.2f}" for side in sides),
        *(_change(row[ratio]) for ratio in ("ratio", "forward_ratio", "backward_ratio")),
        *(str(side.forward_kernels + side.backward_kernels) for side in sides),
        *(f"{side.took_s:.1f}" for side in sides),
    )


def _change(ratio: float) -> str:
    return "0" if ratio == 1 else f"{100 * (ratio - 1):+.1f} %"


def _line(row: dict[str, Any]) -> str:
    changes = ", ".join(f"{side} {_change(row[f'{side}_ratio'])}" for side in ("forward", "backward"))
    return f"{row['model']}: {_change(row['ratio'])} bytes ({changes})"


if __name__ == "__main__":
    typer.run(main)
