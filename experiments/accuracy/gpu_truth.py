"""Compares what is known of a GPU without one with what a GPU does: graphs, kernels, bytes, memory and time.

First `python -m experiments.accuracy.gpu_truth FOLDER --device h100` on a machine without a GPU, or on one whose
GPU is hidden (`CUDA_VISIBLE_DEVICES=`), and `... OTHER --device cuda` on one with an H100; both with the same
torch. Then `python -m experiments.accuracy.gpu_compared OTHER FOLDER` writes the table.

Where there is a GPU, the model is captured on it and each plan trains: outputs and gradients are eager's or the row
says what is wrong, kernels and bytes are those of the compiled step by TorchInductor's own count, the peak is the
allocator's, and times are medians, with nothing else on the GPU only if `--jobs 1`. Where there is none, the model is
captured for it, and kernels are those of TorchInductor's Triton schedule. Predictions are made of that graph, by the
second command.
"""

from __future__ import annotations

import json
import re
import traceback
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor, nn

import remat
from costmodels import ByteTraffic
from experiments.accuracy.peak_error import SaveEverything
from experiments.demo import SaveLeast
from experiments.models.held_out import HELD_OUT
from experiments.models.published import bottleneck_net, mobilenet_v2, resnet50
from experiments.models.workloads import KERNEL_ZOO, Bert, EvoNorm, Mixer, Sample, ViT
from experiments.models.zoo import gpt2
from experiments.report.provenance import provenance
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.measure.torch_budgets import torchs_plans_of
from remat.pytorch.measure.training_step import measure

console = Console()


class MixedPrecision(nn.Module):
    """Runs a model in automatic mixed precision on a GPU."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return self.model(*args)


def _mixed(sample: Sample) -> Sample:
    return MixedPrecision(sample[0]), sample[1]


def _pictures(model: Callable[[], nn.Module], batch: int) -> Sample:
    return model(), (torch.randn(batch, 3, 224, 224), torch.randint(10, (batch,)))


def _gpt2(*, fused: bool) -> Sample:
    return gpt2(layers=6, width=768, heads=12, vocabulary=32768, context=1024, batch=8, fused=fused)


def _bert() -> Sample:
    words = torch.randint(32768, (16, 512))
    masked = torch.rand(16, 512) < 1 / 6
    real = torch.arange(512).expand(16, 512) < 384
    return Bert(6, 768, 12, 32768, 512), (words, real, words.where(masked, -100))


def _evonorm() -> nn.Module:
    return bottleneck_net((3, 4), (64, 128), norm=lambda width: EvoNorm(width, 8), act=nn.Identity)


LARGE: dict[str, Callable[[], Sample]] = {
    "GPT-2, 6 layers, attention written out, AMP": lambda: _mixed(_gpt2(fused=False)),
    "GPT-2, 6 layers, fused attention, AMP": lambda: _mixed(_gpt2(fused=True)),
    "GPT-2, 6 layers, fused attention": lambda: _gpt2(fused=True),
    "BERT, 6 layers, AMP": lambda: _mixed(_bert()),
    "ViT, 6 layers, AMP": lambda: _mixed(_pictures(lambda: ViT(6, 768, 12, 224, 16, 1000), 64)),
    "MLP-Mixer, 6 layers": lambda: (Mixer(6, 196, 768), (torch.randn(64, 196, 768), torch.randint(10, (64,)))),
    "ResNet-50": lambda: _pictures(resnet50, 64),
    "ResNet-50, AMP": lambda: _mixed(_pictures(resnet50, 64)),
    "EvoNorm ResNet, 2 stages": lambda: _pictures(_evonorm, 32),
    "MobileNet-v2, AMP": lambda: _mixed(_pictures(mobilenet_v2, 64)),
}
"""Models whose kernels run long enough to be timed."""

GROUPS: Mapping[str, Mapping[str, Callable[[], Sample]]] = {"zoo": KERNEL_ZOO, "large": LARGE, "held-out": HELD_OUT}


def plans_of(graph: remat.Graph, device: str) -> dict[str, remat.Plan]:
    """Makes the plans of a graph, by name: those that are one plan come once."""
    models = {
        "autograd's saves": SaveEverything(),
        "ours": ByteTraffic(),
        "aggressive": ByteTraffic(mode="aggressive"),
        "least saved": SaveLeast(),
    }
    plans = {"PyTorch": torchs_plans_of(graph, [1.0], device=device)[1.0]}
    for name, model in models.items():
        plan = remat.choose(graph, model).plan
        assert plan is not None  # choose() raises where there is none
        if not any(_same(graph, plan, other) for other in plans.values()):
            plans[name] = plan
    return plans


def _same(graph: remat.Graph, plan: remat.Plan, other: remat.Plan) -> bool:
    return remat.Choice.from_plan(graph, plan) == remat.Choice.from_plan(graph, other)


def looked_at(make: Callable[[], Sample], device: str, repeats: int) -> tuple[remat.Graph, dict[str, Any]]:
    """Captures a model on or for a device, and says of a few plans what is scheduled, and what a GPU did."""
    torch.manual_seed(0)
    model, args = make()
    if device == "cuda":
        model, args = model.to(device), tuple(arg.to(device) for arg in args)
    graph = remat.capture(model, *args, device=None if device == "cuda" else device)
    plans = plans_of(graph, device)
    scheduled = Scheduled(graph, device=device)
    rows: list[dict[str, Any]] = [
        {
            "plan": name,
            "digest": plan.digest,
            "saved": plan.saved,
            "recomputed": plan.recomputed,
            "scheduled": [[kernel.backward, kernel.generated, kernel.bytes] for kernel in scheduled.kernels(plan)],
        }
        for name, plan in plans.items()
    ]
    if device == "cuda":
        for row, real in zip(rows, _real(model, args, plans, repeats), strict=True):
            row["real"] = real
    values = [
        f"{name} {operator} {shape} {dtype}"
        for name, operator, shape, dtype in zip(graph.names, graph.ops, graph.shapes, graph.dtypes, strict=True)
    ]
    return graph, {"values": values, "rows": rows}


def _real(
    model: nn.Module, args: tuple[Tensor, ...], plans: Mapping[str, remat.Plan], repeats: int
) -> list[dict[str, Any]]:
    """Trains under each plan on the GPU."""
    steps = {name: partial(remat.compile, plan=plan, dynamic=False) for name, plan in plans.items()}
    is_half = isinstance(model, MixedPrecision)
    frame = measure(model, *args, strategies=steps, repeats=repeats, tolerance=0.1 if is_half else 0.01)
    return frame.astype(object).where(frame.notna(), None).to_dict(orient="records")


def graph_file(file: Path) -> Path:
    """Names the file of the graph beside that of what was seen."""
    return file.with_suffix(".graph.json.gz")


def look_at(group: str, model: str, device: str, repeats: int, file: Path) -> str:
    """Looks at a model and writes what was seen; returns why that failed, or ""."""
    torch.backends.cudnn.allow_tf32 = False  # convolutions would keep 10 bits, eager's other ones than ours
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations
        try:
            graph, seen = looked_at(GROUPS[group][model], device, repeats)
            graph.save(graph_file(file))
            file.write_text(json.dumps({"model": model} | seen))
        except Exception as error:  # one model that fails must not hide the others
            file.with_suffix(".failed").write_text(traceback.format_exc())
            return f"{type(error).__name__}: {error}".splitlines()[0]
    return ""


app = typer.Typer(add_completion=False, help=__doc__)


@app.command()
def look(
    folder: Annotated[Path, typer.Argument(help="where what is seen is kept; what is there is not looked at again")],
    device: Annotated[str, typer.Option(help="cuda, or the name of a GPU that need not be there")] = "cuda",
    group: Annotated[str, typer.Option(help=", ".join(GROUPS))] = "zoo",
    only: Annotated[str, typer.Option(help="the models with this in their name")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="processes; 1 where times shall mean something")] = 1,
    repeats: Annotated[int, typer.Option(min=0, help="timed steps of each plan")] = 10,
) -> None:
    """Looks at models one by one, and keeps what was seen in a folder."""
    if group not in GROUPS:
        raise typer.BadParameter(f"--group must be {' or '.join(GROUPS)}, got {group!r}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "provenance.json").write_text(json.dumps(provenance() | {"device": device}))
    files = {name: folder / f"{group}--{re.sub('[^a-z0-9]+', '-', name.lower())}.json" for name in GROUPS[group]}
    todo = {name: file for name, file in files.items() if only in name and not file.exists()}
    with ProcessPoolExecutor(jobs, get_context("spawn"), max_tasks_per_child=1) as pool:
        seen = {name: pool.submit(look_at, group, name, device, repeats, file) for name, file in todo.items()}
        for name, answer in seen.items():
            console.print(f"{name}: {answer.result() or 'seen'}", markup=False)


if __name__ == "__main__":
    app()
