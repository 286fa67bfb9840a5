"""Trains a recipe with TorchInductor and with remat, and says how losses and memory compare.

Each recipe has a function `train(**how)` that trains a few steps and returns the losses; `how` is what its model is
compiled with.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table

import remat
from remat.pytorch.measure.saved import peak_bytes
from remat.pytorch.seam.torch_settings import every_joint_graph_partitioned
from remat.words import human_bytes

Train = Callable[..., list[float]]

WAYS: Mapping[str, dict[str, Any]] = {
    "TorchInductor": {"backend": "inductor"},
    "remat": {"backend": "remat", "options": {"remat.cost_model": "memory-budget:budget=0.5"}},
}
"""How the module is compiled: the second way saves half of what PyTorch's default saves, in each graph."""


def compare(train: Train, *, processes: int = 1) -> None:
    """Trains in both ways, and prints losses, saved bytes and peaks; with `--json`, one line for a program.

    Args:
        train: returns the losses of its steps.
        processes: how many ranks train together, with gloo on CPUs.
    """
    if processes > 1 and "RANK" not in os.environ:
        module = sys.modules["__main__"].__spec__.name  # type: ignore[union-attr]
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        sys.exit(subprocess.run([sys.executable, *launch, "-m", module, *sys.argv[1:]], check=False).returncode)
    if processes > 1:
        dist.init_process_group("gloo")
    found = {name: measured(train, how) for name, how in WAYS.items()}
    if processes == 1 or dist.get_rank() == 0:
        print(json.dumps(found)) if "--json" in sys.argv else show(found)
        sys.stdout.flush()
    if processes > 1:
        dist.destroy_process_group()
        os._exit(0)  # a thread of torch that wants Python's lock as Python ends may abort


def measured(train: Train, how: Mapping[str, Any]) -> dict[str, Any]:
    """Trains once: the losses, the most memory that tensors took at once, and what remat reports of its graphs."""
    torch.compiler.reset()
    gc.collect()  # what the run before left behind would be freed in this one, and count as less than nothing
    known = len(remat.last_report().graphs)
    losses: list[float] = []
    with warnings.catch_warnings(), every_joint_graph_partitioned():
        warnings.simplefilter("ignore")  # of the stacks
        peak = peak_bytes(lambda: losses.extend(train(**how)), torch.device("cpu"))
    graphs = [planned.row for planned in remat.last_report().graphs[known:]]
    sizes = {name: sum(row[name] for row in graphs) for name in ("saved_bytes", "default_saved_bytes")}
    return {"losses": losses, "peak_bytes": peak, "graphs": len(graphs), **sizes}


def show(runs: Mapping[str, Mapping[str, Any]]) -> None:
    """Prints what was found, for people."""
    theirs, ours = runs["TorchInductor"], runs["remat"]
    table = Table("", *runs, box=None)
    for step, losses in enumerate(zip(theirs["losses"], ours["losses"], strict=True), 1):
        table.add_row(f"loss {step}", *(f"{loss:.7f}" for loss in losses))
    saved = ours["default_saved_bytes"], ours["saved_bytes"]
    table.add_row(f"saved between the passes, {ours['graphs']} graphs", *map(human_bytes, saved))
    table.add_row("peak of the run, measured", *(human_bytes(run["peak_bytes"]) for run in runs.values()))
    console = Console(width=100)
    console.print(table)
    console.print(f"largest relative difference of a loss: {largest_difference(runs):.1e}")


def largest_difference(runs: Mapping[str, Mapping[str, Any]]) -> float:
    """The largest difference between two losses of a step, as a part of TorchInductor's."""
    pairs = zip(runs["TorchInductor"]["losses"], runs["remat"]["losses"], strict=True)
    return max(abs(ours - theirs) / abs(theirs) for theirs, ours in pairs)
