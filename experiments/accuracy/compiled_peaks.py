"""Measures how far predicted peaks are from what compiled training steps hold on this CPU, by torch's own allocator.

`python -m experiments.accuracy.compiled_peaks` takes the zoo (the models of `KERNEL_ZOO`, and the small cases of the
tests) and the held-out models, among them eleven of the package `transformers`, and two plans of each: the cut of
`ByteTraffic()`, and the one that saves the fewest bytes. The third step of the compiled model is
traced: every byte that torch's allocator hands out and takes back, above what was held before, with the outputs held by
the caller and their tangents made before. Beside it is `remat.timeline`, which sees the graph and the plan alone.

With `--kernels skip` the C++ kernels are left out: they allocate nothing, so the trace is that of the step, in a
fraction of the time. What is measured is kept in the folder of --kept: a run that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import remat
from costmodels import ByteTraffic
from experiments.demo import SaveLeast
from experiments.models.cases import CASES
from experiments.models.held_out import HELD_OUT
from experiments.models.workloads import KERNEL_ZOO
from experiments.report.markdown import bullets, cited, page, section, table
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from remat.predict.memory import simulate
from remat.pytorch import capture_all
from remat.pytorch.measure.peak import peak_bytes
from remat.pytorch.seam.fakes import owned
from remat.pytorch.seam.no_kernels import no_cpu_kernels

PLANS: dict[str, remat.CostModel] = {"default": ByteTraffic(), "save least": SaveLeast()}
Made = tuple[nn.Module, tuple[Tensor, ...], bool | None]
"""A model, what it is called with, and whether its sizes are symbolic."""


@dataclass(frozen=True)
class CompiledPeak:
    """Compares the peak of one step, in bytes.

    Attributes:
        model, plan: their names.
        group: "zoo", "case" or "held out".
        kernels: the kernels were compiled and ran; otherwise they were left out.
        measured: by torch's allocator.
        predicted: by `remat.timeline`.
        values: by `remat.predict.memory.simulate`, a value a step.
    """

    model: str
    plan: str
    group: str
    kernels: bool
    measured: int
    predicted: int
    values: int


def makers() -> Iterator[tuple[str, str, Callable[[], Made]]]:
    """Yields group, name and maker of each model."""
    for group, models in (("zoo", KERNEL_ZOO), ("held out", HELD_OUT)):
        for name, make in models.items():
            yield group, name, lambda make=make: (*make(), None)
    for name, case in CASES.items():
        yield "case", name, lambda case=case: (case.build(), case.inputs(), case.dynamic)


def measured(
    made: Made, cost_model: remat.CostModel, *, kernels: bool, copy_stream: bool = False
) -> tuple[remat.Graph, remat.Plan, int]:
    """Compiles a model under the plan that a cost model leads to, and traces its third step.

    Raises:
        ValueError: the model has more than one joint graph.
    """
    model, args, dynamic = made
    graphs = capture_all(model, *args)
    if len(graphs) != 1:
        raise ValueError(f"it has {len(graphs)} joint graphs")
    chosen = remat.choose(graphs[0], cost_model).plan
    assert chosen is not None  # choose() raises where there is none
    torch.compiler.reset()
    step = remat.compile(model, plan=chosen, dynamic=dynamic, copy_stream=copy_stream)

    def differentiable(outputs: Any) -> list[Tensor]:
        return [leaf for leaf in tree_leaves(outputs) if isinstance(leaf, Tensor) and leaf.requires_grad]

    def forget() -> None:
        for tensor in owned(model, args):
            tensor.grad = None

    with nullcontext() if kernels else no_cpu_kernels():
        tangents = [torch.ones_like(tensor) for tensor in differentiable(step(*args))]

        def train() -> None:
            outputs = step(*args)  # the caller holds them all
            torch.autograd.backward(differentiable(outputs), tangents)

        train()
        forget()
        found = peak_bytes(train, torch.device("cpu"))
        forget()
    return graphs[0], chosen, found


def row_of(group: str, name: str, plan: str, make: Callable[[], Made], *, kernels: bool, folder: Path) -> None:
    """Measures a step, and keeps the graph, the plan and the bytes; or why there are none."""
    stem = f"{file_name(name)}.{file_name(plan)}"
    found: dict[str, Any] = {"group": group, "model": name, "plan": plan, "kernels": kernels}
    torch.random.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    try:
        graph, chosen, bytes_ = measured(make(), PLANS[plan], kernels=kernels)
        graph.save(folder / f"{file_name(name)}.graph.json.gz")
        found |= {"saved": chosen.saved, "recomputed": chosen.recomputed, "measured": bytes_}
    except Exception as error:  # a model that fails is a result, too
        found["failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    (folder / f"{stem}.{'run' if kernels else 'skip'}.json").write_text(json.dumps(found))


def predicted(folder: Path) -> tuple[list[CompiledPeak], list[str]]:
    """Predicts the peaks of all that is kept; the rows, and what failed."""
    rows, failed = list[CompiledPeak](), list[str]()
    for file in sorted(folder.glob("*.run.json")) + sorted(folder.glob("*.skip.json")):
        kept = json.loads(file.read_text())
        if "failed" in kept:
            failed.append(f"{kept['model']}: {kept['failed']}")
            continue
        graph = remat.Graph.load(folder / f"{file_name(kept['model'])}.graph.json.gz")
        plan = remat.Plan(tuple(kept["saved"]), tuple(kept["recomputed"])).for_graph(graph)
        both = remat.timeline(graph, plan).peak_bytes, simulate(graph, plan).peak_bytes
        head = {name: kept[name] for name in ("model", "plan", "group", "kernels", "measured")}
        rows.append(CompiledPeak(**head, predicted=both[0], values=both[1]))
    return rows, sorted(set(failed))


def errors(rows: Sequence[CompiledPeak], of: str = "predicted") -> np.ndarray[Any, np.dtype[np.float64]]:
    """(k,) relative errors; positive where the prediction is too large."""
    return np.array([getattr(row, of) / row.measured - 1 for row in rows])


def once(rows: Sequence[CompiledPeak]) -> list[CompiledPeak]:
    """Keeps a row for each model and plan: the one with kernels, if there is one."""
    found: dict[tuple[str, str], CompiledPeak] = {}
    for row in sorted(rows, key=lambda row: not row.kernels):
        found.setdefault((row.model, row.plan), row)
    return sorted(found.values(), key=lambda row: (row.group, row.model, row.plan))


def markdown(document: Mapping[str, Any]) -> str:
    """Writes the page: a line for each group and plan, then every step whose prediction is off by more than 3%."""
    rows = [CompiledPeak(**row) for row in document["rows"]]
    distinct = once(rows)
    lines: list[tuple[object, ...]] = []
    for group in ("zoo", "case", "held out", "all"):
        for plan in (*PLANS, "both"):
            of = [row for row in distinct if group in (row.group, "all") and plan in (row.plan, "both")]
            if of:
                lines.append((group, plan, len(of), *_spread(of, "predicted"), *_spread(of, "values")))
    both = {(row.model, row.plan): row.measured for row in rows if row.kernels}
    same = [
        both[row.model, row.plan] == row.measured for row in rows if not row.kernels and (row.model, row.plan) in both
    ]
    off = [row for row in distinct if abs(row.predicted / row.measured - 1) > 0.03]
    headings = ("median", "90% within", "worst")
    return page(
        "Predicted peaks, beside what compiled steps hold",
        inspect.cleandoc(__doc__ or ""),
        f"{cited(document['provenance'], 'experiments.accuracy.compiled_peaks')}.",
        table(("models", "plan", "steps", *headings, *(f"{h}, by values" for h in headings)), lines),
        f"Kernels were compiled and ran in {len(both)} steps. {len(same)} of these were traced without kernels, too: "
        f"{sum(same)} peaks were the same.",
        section(
            "Off by more than 3%",
            table(
                ("model", "plan", "measured", "predicted", "off by"),
                [(r.model, r.plan, r.measured, r.predicted, f"{r.predicted / r.measured - 1:+.1%}") for r in off],
            ),
        ),
        section("Not measured", bullets(document["failed"])) if document["failed"] else "",
    )


def _spread(rows: Sequence[CompiledPeak], of: str) -> tuple[str, str, str]:
    found = errors(rows, of)
    return (
        f"{np.median(np.abs(found)):.1%}",
        f"{np.quantile(np.abs(found), 0.9):.1%}",
        f"{found[np.abs(found).argmax()]:+.1%}",
    )


def file_name(name: str) -> str:
    """Turns the name of a model, or a plan, into that of a file."""
    return re.sub("[^a-z0-9]+", "-", name.lower())


def main() -> None:
    """Measures what is not kept, and writes `compiled_peaks.json` and `.md` into the folder of results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kept", type=Path, default=Path("build/compiled_peaks"), help="folder of what is done")
    parser.add_argument("--plans", nargs="*", default=list(PLANS), choices=list(PLANS))
    parser.add_argument("--kernels", default="run", choices=("run", "skip", "kept"), help="kept: measure nothing more")
    parser.add_argument("--only", default="", help="models with this in their name")
    arguments = parser.parse_args()
    folder: Path = arguments.kept
    folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")  # torch's own deprecations
    for plan in arguments.plans if arguments.kernels != "kept" else ():
        for group, name, make in makers():
            stem = f"{file_name(name)}.{file_name(plan)}.{arguments.kernels}"
            begun = folder / f"{stem}.begun"  # the process may die: then this one is left out the next time
            if arguments.only in name and not (folder / f"{stem}.json").exists() and not begun.exists():
                begun.touch()
                row_of(group, name, plan, make, kernels=arguments.kernels == "run", folder=folder)
                begun.unlink()
                print(stem, flush=True)
    rows, failed = predicted(folder)
    failed += [f"{file.stem}: the process ended" for file in folder.glob("*.begun")]
    document = {"provenance": provenance(gpu=False), "rows": [asdict(row) for row in rows], "failed": failed}
    write_results(RESULTS / "compiled_peaks.json", document, text := markdown(document))
    print(text.split("\n## ")[0])


if __name__ == "__main__":
    main()
