"""Compares `remat.compile` with nothing else to PyTorch's default: `python -m experiments.bench.default_plan`.

For each model and device: saved bytes, bytes moved, kernels and the peak, by the predicted kernels of the device; and
for CPUs what really happens: bytes and kernels by TorchInductor's own count, in two compilations without code, and what
autograd keeps between the passes. The models are `experiments.models.workloads.KERNEL_ZOO`, those that were held out
from the rules of the predicted kernels, eleven of them by `transformers`, and the graphs of the corpus that can be made
again here. A row that is finished is kept; `--fresh` begins anew.
"""

from __future__ import annotations

import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

import remat
from costmodels import ByteTraffic
from experiments.models.held_out import HELD_OUT
from experiments.models.workloads import KERNEL_ZOO, Sample
from experiments.report.markdown import bullets, cited, page, section, table
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from remat import Graph, Plan
from remat.answer.handover import handed_over
from remat.answer.plan_facts import PlanFacts
from remat.answer.registry import DEFAULT_STEP_MODEL, find_costmodel
from remat.pytorch.inductor.lowered_graphs import visited
from remat.pytorch.inductor.traffic_count import scheduled_kernels
from remat.pytorch.measure.saved import saved_activations
from remat.pytorch.measure.torch_budgets import torchs_plans, torchs_plans_of
from remat.pytorch.seam.restore import put_back

INSTANCES = Path(__file__).parents[1] / "instances"
FIGURES = ("saved_bytes", "moved_bytes", "kernels", "peak_bytes")
COUNTED = ("inductor_saved_bytes", "inductor_moved_bytes", "inductor_kernels")
LARGEST = 11_000
"""Values of a corpus graph: PyTorch's own choice on a larger one takes minutes."""

console = Console()


def main(
    only: Annotated[list[str] | None, typer.Option(help="a model; repeatable")] = None,
    fresh: Annotated[bool, typer.Option(help="measure finished rows again")] = False,
    output: Annotated[Path, typer.Option(help="folder for default_plan.json and .md")] = RESULTS,
) -> None:
    """Compares both plans on every model and device, and writes default_plan.json and .md after each."""
    path = output / "default_plan.json"
    rows: dict[str, Any] = {} if fresh or not path.exists() else json.loads(path.read_text())["rows"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own deprecations
        for name, measure in subjects():
            if name in rows or (only and name not in only):
                continue
            try:
                rows[name] = measure()
            except remat.RematError as error:  # what cannot be captured, or made again here, is shown
                rows[name] = {"error": str(error).splitlines()[0]}
            console.print(name, rows[name], markup=False, highlight=False)
            document = {"provenance": provenance(gpu=False), "summary": summary(rows), "rows": rows}
            write_results(path, document, markdown(document))


def subjects() -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Lists what is compared: a name, and the function that measures it."""
    for name, make in (KERNEL_ZOO | HELD_OUT).items():
        yield name, lambda make=make: of_model(make, None)
    for name, make in (KERNEL_ZOO | HELD_OUT).items():
        yield f"{name}, A100", lambda make=make: of_model(make, "a100")
    for path in sorted(INSTANCES.glob("*.json.gz")):
        yield f"corpus: {path.name.removesuffix('.json.gz')}", lambda path=path: of_file(path)


def of_model(make: Callable[[], Sample], device: str | None) -> dict[str, Any]:
    """Compares both plans of a model; on the CPU, what Inductor makes of them, too."""
    torch.manual_seed(0)
    model, args = make()
    ((graph, plans),) = torchs_plans(model, *args, budgets=[1.0], device=device)
    row = compared(graph, plans[1.0], device or "cpu")
    if device is None:
        row["pytorch"] |= counted(torch.compile(model, dynamic=False), model, args)
        row["ours"] |= counted(remat.compile(model, dynamic=False), model, args)
    return row


def of_file(path: Path) -> dict[str, Any]:
    """Compares both plans of a graph from a file."""
    graph = Graph.load(path)
    if len(graph) > LARGEST:
        return {"values": len(graph), "error": f"left out: more than {LARGEST:,} values"}
    return compared(graph, torchs_plans_of(graph, [1.0])[1.0], "cpu")


def compared(graph: Graph, torchs: Plan, device: str) -> dict[str, Any]:
    """Predicts both plans; and times our choice, from graph to certified plan, beside that by the paper's prices."""
    model = find_costmodel(DEFAULT_STEP_MODEL)
    ours = remat.choose(graph, model).plan
    assert ours is not None  # choose() raises where there is none
    times = {"default_s": model, "paper_s": ByteTraffic()}
    runs = {name: [_seconds(lambda by=by: remat.solve(by.pose(graph))) for _ in range(5)] for name, by in times.items()}
    return {
        "device": device,
        "values": len(graph),
        "same": handed_over(graph, ours) == handed_over(graph, torchs),
        **{name: round(statistics.median(each), 5) for name, each in runs.items()},
        "pytorch": predicted(graph, torchs, device),
        "ours": predicted(graph, ours, device),
    }


def predicted(graph: Graph, plan: Plan, device: str) -> dict[str, int]:
    """The four figures of a plan, by the predicted kernels of a device."""
    traffic = remat.predict_traffic(graph, plan, device=device)
    peak = remat.timeline(graph, plan, device=device).peak_bytes
    found = PlanFacts.of(graph, plan).saved_bytes, traffic.bytes, len(traffic.kernels), peak
    return dict(zip(FIGURES, found, strict=True))


def counted(step: Callable[..., Any], model: Any, args: tuple[Any, ...]) -> dict[str, int]:
    """What autograd keeps of a compiled step, and what Inductor says that its kernels move."""
    torch.compiler.reset()  # two steps with one plan would share what Dynamo compiled
    kernels: list[Any] = []
    with visited(lambda lowering: kernels.extend(scheduled_kernels(lowering))), put_back(model, args, {}):
        _, saved = saved_activations(step, model, *args)
    return dict(zip(COUNTED, (saved.bytes, sum(kernel.bytes for kernel in kernels), len(kernels)), strict=True))


def _seconds(call: Callable[[], Any]) -> float:
    start = time.process_time()
    call()
    return time.process_time() - start


def summary(rows: dict[str, Any]) -> dict[str, Any]:
    """Counts the rows in which a figure of ours is above PyTorch's, or below it."""
    found = [row for row in rows.values() if "ours" in row]
    signs = [[row["ours"][key] - row["pytorch"][key] for key in row["ours"]] for row in found]
    slower = sorted(row["default_s"] / row["paper_s"] for row in found if row["paper_s"])
    return {
        "compared": len(found),
        "counted_by_inductor": sum(COUNTED[0] in row["ours"] for row in found),
        "same_plan": sum(row["same"] for row in found),
        "some_figure_above": sum(any(sign > 0 for sign in row) for row in signs),
        "some_figure_below": sum(any(sign < 0 for sign in row) for row in signs),
        "time_to_choose_over_papers_prices": {"median": statistics.median(slower), "most": slower[-1]}
        if slower
        else {},
        "not_compared": sum("error" in row for row in rows.values()),
    }


def markdown(document: dict[str, Any]) -> str:
    """Makes the page of the tables and their origin."""
    found = document["summary"]
    rows = document["rows"]
    shown = [(name, row) for name, row in rows.items() if "ours" in row]
    predictions = [
        (name, row["values"], *(_both(row, key) for key in FIGURES), f"{1e3 * row['default_s']:.1f}")
        for name, row in shown
    ]
    truths = [(name, *(_both(row, key) for key in COUNTED)) for name, row in shown if COUNTED[0] in row["ours"]]
    ratio = found["time_to_choose_over_papers_prices"]
    return page(
        "What `remat.compile` does with nothing else, beside PyTorch's default",
        bullets(
            [
                f"{found['compared']} graphs; on {found['same_plan']} both hand over the same values.",
                f"Some figure of ours is above PyTorch's on {found['some_figure_above']}, below it on "
                f"{found['some_figure_below']}. Where a cell has one figure, both have it; else PyTorch's is first.",
                "Choosing takes "
                f"{ratio['median']:.2f} times as long as by the paper's prices in the median, {ratio['most']:.2f} at "
                "most (medians of 5 runs of processor time, from the graph to the certified plan).",
                cited(document["provenance"], "experiments.bench.default_plan"),
            ]
        ),
        section(
            "By predicted kernels of the device",
            table(("model", "values", "saved bytes", "bytes moved", "kernels", "peak", "choosing, ms"), predictions),
        ),
        section(
            "Counted: kept by autograd, and by TorchInductor's schedule of the compiled step",
            table(("model", "saved bytes", "bytes moved", "kernels"), truths),
        ),
        section("Not compared", bullets(f"{name}: {row['error']}" for name, row in rows.items() if "error" in row)),
    )


def _both(row: dict[str, Any], key: str) -> int | str:
    theirs, mine = row["pytorch"][key], row["ours"][key]
    return theirs if theirs == mine else f"{theirs:,} / {mine:,}"


if __name__ == "__main__":
    typer.run(main)
