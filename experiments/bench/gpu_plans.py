"""Compares memory and traffic of our plans with PyTorch's for GPUs: `python -m experiments.bench.gpu_plans`.

For stored graphs: what PyTorch's partitioner saves at each memory budget from 0.1 to 1.0, and what its kernels move by
TorchInductor's Triton schedule, without a device. Beside it the plan of `remat.traffic_frontier` that saves no more,
by the same schedule, and a floor below which no plan is. Then the fewest bytes that a plan saves which moves no more,
1% more and 5% more than PyTorch's default.

Below a budget of 1, PyTorch draws random numbers twice where there is dropout, once in each pass, and they differ
(pytorch#190758). No legal plan does that. Such a plan is counted with these random numbers saved, a few bytes more,
and marked.

The schedule takes seconds a plan. What it counted is kept in a folder, so that a run that was stopped goes on there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import typer
from rich.console import Console

import remat
from costmodels import ByteTraffic
from experiments.bench.budgets import illegal
from experiments.bench.gpu_plans_page import markdown, summarized
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from experiments.traffic_study.traffic_floor import memory_floor
from remat import Choice, Corpus, Graph, Plan
from remat.answer.plan_facts import PlanFacts
from remat.improve.for_device import for_device
from remat.improve.refine import Objective, Oracle, SavedBytes
from remat.improve.refine.objectives import Score, Traffic
from remat.improve.refine.oracles import BatchScorer
from remat.improve.refine.states import Space, State
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.measure.torch_budgets import TENTHS, torchs_plans_of

ZOO = (
    "small-dropout-mlp",
    "small-layernorm-gelu-mlp",
    "small-evonorm",
    "small-mlp-mixer",
    "small-bert",
    "small-gpt-fused-attention",
    "small-resnet",
    "small-lstm-cells",
    "small-gpt-attention-written-out",
    "small-nn-transformerencoder",
)
PUBLISHED = (
    "vgg16",
    "vgg19",
    "unet",
    "resnet18",
    "lstm-16",
    "gpt2-small-fused",
    "hf-gpt2-sdpa",
    "evonorm-resnet50",
    "hf-vit-base",
    "gpt2-small",
)
BUDGETS = TENTHS[1:]
EXTRA = (0.0, 0.01, 0.05)
DEVICE = "a100"

console = Console()


class Counts:
    """Counts plans of a graph by Inductor's Triton schedule, and keeps the answers in a file.

    Attributes:
        asked: plans that were counted anew.
    """

    def __init__(self, graph: Graph, path: Path) -> None:
        self._graph, self._path = graph, path
        self._known: dict[str, list[int]] = json.loads(path.read_text()) if path.exists() else {}
        self._scheduled: Scheduled | None = None
        self.asked = 0

    def of(self, plan: Plan) -> tuple[int, int]:
        """Returns (bytes moved, kernels) of both passes."""
        if plan.digest not in self._known:
            self._scheduled = self._scheduled or Scheduled(self._graph, device=DEVICE)
            kernels = self._scheduled.kernels(plan)
            self._known[plan.digest] = [sum(kernel.bytes for kernel in kernels), len(kernels)]
            self._path.write_text(json.dumps(self._known))
            self.asked += 1
        moved, kernels_ = self._known[plan.digest]
        return moved, kernels_


@dataclass(frozen=True)
class KeptCounts(Oracle):
    """Gives `Counts` the last word on the best plans that were predicted."""

    counts: Counts
    name: ClassVar[str] = "inductor"

    def on(self, graph: Graph, objective: Objective) -> BatchScorer:
        """Scores by the schedule."""

        def score(state: State) -> Score:
            moved, kernels = self.counts.of(state.choice.plan(graph))
            if isinstance(objective, Traffic):
                return moved, kernels, state.saved_bytes
            return state.saved_bytes, moved, kernels

        return lambda states: [score(state) for state in states]


def main(
    only: Annotated[list[str] | None, typer.Option(help="a graph of the corpus; repeatable")] = None,
    kept: Annotated[Path, typer.Option(help="folder that keeps PyTorch's plans, and what was counted")] = Path(
        "gpu-plans"
    ),
    effort: Annotated[int, typer.Option(help="plans that the local search predicts at each budget")] = 30,
    seconds: Annotated[float, typer.Option(help="for each search of the fewest saved bytes")] = 8.0,
    output: Annotated[Path, typer.Option(help="folder for gpu_plans.json and .md")] = RESULTS,
) -> None:
    """Searches, counts, and writes gpu_plans.json and gpu_plans.md after each model."""
    kept.mkdir(parents=True, exist_ok=True)
    for name in only or (*ZOO, *PUBLISHED):
        row = kept / f"{name}.row.json"
        if not row.exists():
            begin = time.monotonic()
            found = compared(name, kept, effort, seconds)
            row.write_text(json.dumps(found))
            console.print(f"{name}: {found['asked']} plans counted, {time.monotonic() - begin:.0f} s", markup=False)
        write([json.loads(path.read_text()) for path in _rows(kept)], output)


def _rows(kept: Path) -> Iterator[Path]:
    return (path for name in (*ZOO, *PUBLISHED) if (path := kept / f"{name}.row.json").exists())


def write(models: Sequence[dict[str, Any]], output: Path) -> None:
    """Writes the document and its page."""
    models = [{**model, "least": _least(model["least"])} for model in models]
    document = {
        "provenance": provenance(gpu=False),
        "device": DEVICE,
        "summary": summarized(models),
        "models": models,
    }
    write_results(output / "gpu_plans.json", document, markdown(document))


def _least(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Takes the plan of a tighter limit on traffic where the search under a looser one found none that saves less."""
    best = [min(found[: i + 1], key=lambda row: row["saved_bytes"]) for i in range(len(found))]
    return [{**plan, "extra_traffic": row["extra_traffic"]} for plan, row in zip(best, found, strict=True)]


def compared(name: str, kept: Path, effort: int, seconds: float) -> dict[str, Any]:
    """Compares the plans of one graph: a row for each of PyTorch's budgets, and one for each limit on traffic."""
    graph = for_device(Corpus.open().graph(name), DEVICE)
    counts = Counts(graph, kept / f"{name}.json")
    theirs = _torchs(graph, kept / f"{name}.plans.json")
    legal = {budget: _completed(graph, plan) for budget, plan in theirs.items()}
    default, aggressive = legal[1.0], remat.choose(graph, ByteTraffic(mode="aggressive")).plan
    assert aggressive is not None  # choose() raises where there is none
    sizes = {budget: _saved(graph, plan) for budget, plan in legal.items()}
    curve = remat.traffic_frontier(
        graph,
        sorted(set(sizes.values())),
        starts=[default, aggressive, *legal.values()],
        oracle=KeptCounts(counts),
        effort=effort,
        tries=1,
    )
    floor = memory_floor(graph, default)
    rows = [
        {
            "budget": budget,
            "illegal": illegal(graph, theirs[budget]),
            "pytorch": _facts(graph, plan, counts),
            "ours": _facts(graph, curve.at(sizes[budget]).plan, counts) | {"source": curve.at(sizes[budget]).source},
            "floor_bytes": floor(sizes[budget]),
        }
        for budget, plan in legal.items()
    ]
    moved = counts.of(default)[0]
    least: list[dict[str, Any]] = []
    for extra in EXTRA:
        known = curve.within(int(moved * (1 + extra))).plan
        refined = remat.refine(
            graph,
            default,
            SavedBytes(extra),
            KeptCounts(counts),
            starts=[known, *(point.plan for point in curve.points)],
            time_limit_s=seconds,
        )
        least.append({"extra_traffic": extra, **_facts(graph, refined.plan, counts)})
    return {
        "name": name,
        "values": len(graph),
        "rows": rows,
        "least": least,
        "aggressive": _facts(graph, aggressive, counts),
        "curve": [[point.saved_bytes, point.traffic_bytes, point.source] for point in curve.points],
        "predicted": curve.predicted,
        "asked": counts.asked,
    }


def _torchs(graph: Graph, path: Path) -> dict[float, Plan]:
    """Asks PyTorch for its plans, or reads them from a file."""
    if not path.exists():
        asked = torchs_plans_of(graph, BUDGETS, device=DEVICE)
        path.write_text(json.dumps({budget: plan.saved for budget, plan in asked.items()}))
    names = np.array(graph.names)
    stored: dict[str, list[str]] = json.loads(path.read_text())
    saved = {float(budget): np.isin(names, list(chosen)) for budget, chosen in stored.items()}
    return {budget: Choice.from_saved(graph, saved[budget]).plan(graph) for budget in BUDGETS}


def _completed(graph: Graph, plan: Plan) -> Plan:
    """Saves what cannot be recomputed, too: random numbers."""
    return Space(graph).state(Choice.from_plan(graph, plan).saved).choice.plan(graph)


def _saved(graph: Graph, plan: Plan) -> int:
    return PlanFacts.of(graph, plan).saved_bytes


def _facts(graph: Graph, plan: Plan, counts: Counts) -> dict[str, Any]:
    """Says of a plan what it saves and moves, and how many operations it computes again."""
    moved, kernels = counts.of(plan)
    again = Choice.from_plan(graph, plan).recomputed
    return {
        "saved_bytes": _saved(graph, plan),
        "traffic_bytes": moved,
        "predicted_bytes": remat.predict_traffic(graph, plan).bytes,
        "kernels": kernels,
        "recomputed_flops": int(graph.flops[again].sum()),
    }


if __name__ == "__main__":
    typer.run(main)
