"""Measures how far simulated peak memory is from TorchInductor's own estimate, and from what runs hold.

`python -m experiments.accuracy.peak_error` captures every case of `experiments.models.cases` and a few GPT-2-style
models, and solves each under four cost models. For each plan, `remat.predict.memory` simulates the peaks of
the forward and of the backward pass. Inductor's planner is asked about the very graphs that the plan
makes, after fusion and scheduling: see `experiments.accuracy.inductor_peak`. Neither counts parameters,
arguments and tangents, nor outputs that the backward pass does not read.

Models named in `MEASURED` are also compiled and run: the most memory held during a whole step, above
what was held before, against the simulated peak of the step. On CUDA that is
`torch.cuda.max_memory_allocated`: `python -m experiments.accuracy.peak_error --device cuda`.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

import torch
import typer
from rich.console import Console
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import remat
from costmodels import ByteTraffic
from experiments.accuracy.inductor_peak import InductorPeak, inductor_peaks
from experiments.accuracy.peak_error_page import markdown
from experiments.demo import SaveLeast
from experiments.models import zoo
from experiments.models.cases import CASES
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from remat.predict.memory import Simulator, lower_bound, simulate
from remat.pytorch import capture_all
from remat.pytorch.measure.peak import peak_bytes
from remat.pytorch.seam.fakes import owned

console = Console()


@dataclass(frozen=True)
class SaveEverything(remat.CostModel):
    """Saves what autograd saves: no operator of the forward pass runs twice."""

    name: ClassVar[str] = "save-everything"
    unit: ClassVar[str] = "bytes"

    def terms(self, graph: remat.Graph) -> remat.plugin.Terms:
        """Prices each save at the bytes it moves; of the forward pass, only views may be computed again."""
        nothing = remat.plugin.Terms.nothing(graph)
        forward = (graph.region == remat.plugin.Region.FORWARD) & ~graph.view
        bans = nothing.cannot_recompute.also(forward, "everything is saved")
        return replace(nothing, save_cost=graph.moved_bytes, cannot_recompute=bans)


PLANS: dict[str, remat.CostModel] = {
    "save everything": SaveEverything(),
    "conservative": ByteTraffic(),
    "aggressive": ByteTraffic(mode="aggressive"),
    "save least": SaveLeast(),
}

GPT2: dict[str, dict[str, int | float]] = {
    "GPT-2 style, 2 layers": {"layers": 2, "width": 128, "heads": 4, "vocabulary": 512, "context": 64},
    "GPT-2 style, dropout": {"layers": 1, "width": 128, "heads": 4, "context": 64, "dropout": 0.1},
    "GPT-2 style, long context": {"layers": 1, "width": 64, "heads": 2, "vocabulary": 256, "context": 512},
    "GPT-2 style, wide": {"layers": 1, "width": 512, "heads": 8, "vocabulary": 256, "context": 64},
    "GPT-2 style, 4 layers": {"layers": 4, "width": 64, "heads": 2, "vocabulary": 256, "context": 64},
}

MEASURED = ("pointwise chain", "two calls of one layer", "GPT-2 style, 2 layers")

_Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class PeakRow:
    """Describes the peaks of one pass of one joint graph under one plan.

    Attributes:
        model, plan: their names; a model with graph breaks has several graphs, numbered from 1.
        backward: the pass.
        simulated_bytes: the peak by `remat.predict.memory`.
        in_order_bytes: by Inductor, kernels in the order of the graph.
        inductor_bytes: by Inductor, in the order that it chooses.
    """

    model: str
    plan: str
    backward: bool
    simulated_bytes: int
    in_order_bytes: int
    inductor_bytes: int


@dataclass(frozen=True)
class Run:
    """Describes a training step that has run: its simulated and measured peak, and the bound that no plan beats."""

    model: str
    plan: str
    simulated_bytes: int
    measured_bytes: int
    lower_bound_bytes: int


def main(
    device: Annotated[str, typer.Option(help="cuda or cpu")] = "cpu",
    only: Annotated[str, typer.Option(help="the models with this in their name")] = "",
    measure: Annotated[bool, typer.Option(help="compile and run a few of them, too")] = True,
    output: Annotated[Path, typer.Option(help="folder for peak_error.json and .md")] = RESULTS,
) -> None:
    """Simulates peaks, asks Inductor, measures some steps, and writes JSON and a table."""
    rows: list[PeakRow] = []
    runs: list[Run] = []
    failed: dict[str, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations
        for name, build in _models(device):
            if only not in name:
                continue
            try:
                subject = PeakSubject.of(name, build)
                for plan, cost_model in PLANS.items():
                    with console.status(f"{name}: {plan}"):
                        rows += subject.compare(plan, cost_model)
                        if measure and name in MEASURED:
                            runs.append(subject.measure(plan, cost_model, device))
            except Exception as error:  # one model that fails must not hide the others
                failed[name] = f"{type(error).__name__}: {error}".splitlines()[0]
    if not rows:
        raise typer.BadParameter(f"no model has {only!r} in its name, or all failed: {failed}", param_hint="--only")
    summary = {f"{part}, {against}": numbers for part, against, numbers in _summary(rows)}
    report: dict[str, Any] = {
        "provenance": provenance() | {"device": device},
        "summary": summary,
        "rows": [asdict(row) for row in rows],
        "runs": [asdict(run) for run in runs],
        "failed": failed,
    }
    write_results(output / "peak_error.json", report, text := markdown(report))
    console.print(text.split("\n## ")[0], markup=False)
    console.print(f"written to {output / 'peak_error.json'} and .md")


def _models(device: str) -> Iterator[tuple[str, Callable[[], tuple[nn.Module, _Inputs]]]]:
    def of_case(name: str) -> tuple[nn.Module, _Inputs]:
        torch.manual_seed(0)
        with torch.device(device):
            return CASES[name].build(), CASES[name].inputs()

    for name in CASES:
        yield name, lambda name=name: of_case(name)
    larger = 4 if device.startswith("cuda") else 1
    for name, given in GPT2.items():
        sizes = {**given, "width": larger * given["width"], "context": larger * given["context"]}
        yield name, lambda sizes=sizes: zoo.gpt2(device=device, **sizes)


@dataclass(frozen=True)
class PeakSubject:
    """Holds a model and its joint graphs, and compares peaks under plans.

    Attributes:
        asked: what Inductor answered, by plans: cost models often agree.
    """

    name: str
    model: nn.Module
    args: _Inputs
    graphs: tuple[remat.Graph, ...]
    asked: dict[tuple[remat.Plan, ...], list[InductorPeak]] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, build: Callable[[], tuple[nn.Module, _Inputs]]) -> PeakSubject:
        model, args = build()
        return cls(name, model, args, tuple(capture_all(model, *args)))

    def compare(self, plan_name: str, cost_model: remat.CostModel) -> list[PeakRow]:
        """Compares the simulated peaks with Inductor's: two rows for each joint graph."""
        plans = tuple(solved(graph, cost_model) for graph in self.graphs)
        if plans not in self.asked:
            self.asked[plans] = self._ask(plans)
        found: list[PeakRow] = []
        for i, (graph, plan) in enumerate(zip(self.graphs, plans, strict=True)):
            timeline = Simulator(graph, holds_outputs=False).timeline(remat.Choice.from_plan(graph, plan).saved)
            label = self.name if len(self.graphs) == 1 else f"{self.name}, graph {i + 1}"
            simulated = timeline.forward_peak_bytes, timeline.backward_peak_bytes
            for bytes_, peak in zip(simulated, self.asked[plans][2 * i : 2 * i + 2], strict=True):
                found.append(PeakRow(label, plan_name, peak.backward, bytes_, peak.in_order_bytes, peak.bytes))
        return found

    def _ask(self, plans: tuple[remat.Plan, ...]) -> list[InductorPeak]:
        free = {
            name
            for graph in self.graphs
            for name, base in zip(graph.names, graph.base.tolist(), strict=True)
            if graph.input[base]
        }
        asked = inductor_peaks(self.model, *self.args, plans=plans, alive_anyway=free)
        if [peak.backward for peak in asked] != [False, True] * len(self.graphs):
            raise RuntimeError(f"{len(self.graphs)} joint graphs, but Inductor scheduled {len(asked)} passes")
        return asked

    def measure(self, plan_name: str, cost_model: remat.CostModel, device: str) -> Run:
        """Runs the step twice, as the first call compiles. Tangents are made before, as the simulation assumes."""
        (graph,) = self.graphs
        plan = solved(graph, cost_model)
        torch.compiler.reset()
        step = remat.compile(self.model, plan=plan)

        def outputs() -> list[Tensor]:
            found = tree_leaves(step(*self.args))
            return [leaf for leaf in found if isinstance(leaf, Tensor) and leaf.requires_grad]

        tangents = [torch.ones_like(tensor) for tensor in outputs()]

        def train() -> None:
            results = outputs()  # the caller holds them
            torch.autograd.backward(results, tangents)

        def forget() -> None:
            for tensor in owned(self.model, self.args):
                tensor.grad = None

        train()
        forget()
        measured = peak_bytes(train, torch.device(device))
        forget()
        simulated = simulate(graph, plan).peak_bytes
        return Run(self.name, plan_name, simulated, measured, lower_bound(graph).bytes)


def solved(graph: remat.Graph, cost_model: remat.CostModel) -> remat.Plan:
    """Finds the optimal plan, for this graph alone."""
    plan = remat.solve(cost_model.pose(graph)).plan
    assert plan is not None  # solve() raises where there is none
    return plan


def _summary(rows: list[PeakRow]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for part, backward in (("forward", False), ("backward", True)):
        chosen = [row for row in rows if row.backward == backward]
        for against in ("in_order_bytes", "inductor_bytes"):
            errors = sorted(
                ((_error(row.simulated_bytes, getattr(row, against)), row) for row in chosen), key=lambda pair: pair[0]
            )
            worst, row = errors[-1]
            yield (
                part,
                against,
                {
                    "passes": len(errors),
                    "median_error": statistics.median(error for error, _ in errors),
                    "90 % below": errors[int(0.9 * (len(errors) - 1))][0],
                    "worst_error": worst,
                    "worst_case": f"{row.model}: {row.plan}",
                },
            )


def _error(simulated: int, reference: int) -> float:
    """Computes the relative error; a reference of no bytes counts as one byte."""
    return abs(simulated - reference) / max(reference, 1)


if __name__ == "__main__":
    typer.run(main)
