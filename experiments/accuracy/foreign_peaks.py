"""Measures predicted, checked and real peaks of compiled steps on small models of other people's packages, on this CPU.

`python -m experiments.accuracy.foreign_peaks` takes each model of `experiments.models.foreign` under PyTorch's plan,
under `MemoryBudget(0.5)`, and under `MemoryBudget(0.65, of="peak")`, in a process of its own. One step is traced: every
byte that torch's allocator hands out and takes back; the C++ kernels are left out, as they allocate nothing. Predicted
is what the report says of the graph and the plan; checked is the peak by the code that Inductor writes, where a limit
of the peak was asked for. The limit is 0.65 of the predicted peak of the plan that is fastest. Where no plan is found
that keeps it, it is raised, as for any fraction: to what the plan that was found holds by the check, and the report
says so. Really saved is what autograd keeps of one forward pass, each storage once, without parameters and inputs.

What is measured is kept in the folder of --kept, with the graphs and plans: a run that was stopped goes on from there,
and with --before FILE the predictions of an older version for the same graphs and plans stand beside the new ones.
`python -m experiments.accuracy.foreign_peaks --predict FILE`, run in a checkout of that version, writes this FILE.

The packages are no part of the environment. Install them beside it, and what they import besides, without letting pip
touch torch: `pip install --no-deps --target FOLDER vit-pytorch x-transformers diffusers torch_geometric monai botorch
gpytorch linear_operator vector-quantize-pytorch segmentation-models-pytorch timm einops einx frozendict
torch-einops-utils loguru jaxtyping wadler-lindig multipledispatch pyro-ppl pyro-api threadpoolctl scikit-learn joblib
xxhash pyre_extensions typing_inspect mypy_extensions psutil pyparsing`, then set PYTHONPATH to FOLDER. A model whose
package is not there is named on the page.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import remat
from costmodels import MemoryBudget
from experiments.accuracy.compiled_peaks import file_name
from experiments.models.foreign import FOREIGN
from experiments.report.markdown import bullets, cited, page, section, table
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from remat.pytorch.measure.peak import peak_bytes
from remat.pytorch.measure.saved import saved_activations
from remat.pytorch.seam.no_kernels import no_cpu_kernels

SHARE = 0.65
PLANS: dict[str, remat.CostModel | None] = {
    "0.65 of the peak": MemoryBudget(SHARE, of="peak"),
    "half of what is saved": MemoryBudget(0.5),
    "default": None,
}


@dataclass(frozen=True)
class ForeignPeak:
    """One compiled step; sizes in bytes.

    Attributes:
        model, plan: their names.
        graphs: how many joint graphs it has; what follows is known where it has one.
        predicted, checked, real: the peak; checked is None where no limit of it was asked for.
        before: as an older version predicts it; None if it was not asked.
        limit: of the peak; None if there is none.
        reached: a plan is predicted to keep the share that was asked for.
        note: what the report says of the check.
        saved, default_saved: what autograd really keeps between the passes, and what PyTorch's plan saves by the
            report, of one call of each graph; None where that was not measured.
    """

    model: str
    plan: str
    graphs: int
    predicted: int | None
    checked: int | None
    real: int
    before: int | None = None
    limit: int | None = None
    reached: bool = True
    note: str = ""
    saved: int | None = None
    default_saved: int | None = None

    @property
    def error(self) -> float:
        """How far the prediction is off, as a part of the real peak."""
        return (self.predicted or 0) / self.real - 1


def measured(model: str, plan: str, folder: Path) -> ForeignPeak:
    """Compiles one model, traces its third step, and keeps graph and plan."""
    torch.set_num_threads(1)
    torch.random.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    made, args = FOREIGN[model]()
    step = remat.compile(made.train(), cost_model=PLANS[plan])
    with no_cpu_kernels():
        tangent = torch.ones_like(step(*args))

        def train() -> None:
            step(*args).backward(tangent)

        for _ in range(2):
            train()
            made.zero_grad()
        real = peak_bytes(train, torch.device("cpu"))
        saved = saved_activations(step, made, *args)[1].bytes
    planned = step.report().graphs
    kept: dict[str, Any] = {"saved": saved, "default_saved": sum(one.row["default_saved_bytes"] for one in planned)}
    if len(planned) != 1:
        return ForeignPeak(model, plan, len(planned), None, None, real, **kept)
    (one,), (row,) = planned, step.report().as_frame().to_dict("records")
    stem = f"{file_name(model)}.{file_name(plan)}"
    one.graph.save(folder / f"{stem}.graph.json.gz")
    (folder / f"{stem}.plan").write_text(json.dumps([one.plan.saved, one.plan.recomputed]))
    found = ForeignPeak(model, plan, 1, int(row["peak_bytes"]), row.get("checked_peak_bytes"), real, **kept)
    if "peak" not in plan:
        return found
    fastest = remat.choose(one.graph, MemoryBudget(1.0, of="peak")).plan
    assert fastest is not None  # choose() raises where there is none
    asked = int(SHARE * remat.timeline(one.graph, fastest).peak_bytes)
    limit, note = max(asked, found.predicted or 0), getattr(one.chosen, "check", "")
    return ForeignPeak(**asdict(found) | {"limit": limit, "reached": limit == asked, "note": note})


def rows_in(folder: Path, before: Mapping[str, int]) -> tuple[list[ForeignPeak], list[str]]:
    """Reads what is kept, with predictions of this version: the rows, and what failed."""
    rows, failed, now = list[ForeignPeak](), list[str](), predict(folder)
    for model in FOREIGN:
        for plan in PLANS:
            file = folder / f"{(stem := f'{file_name(model)}.{file_name(plan)}')}.json"
            kept = json.loads(file.read_text()) if file.exists() else {"failed": "not measured"}
            if "failed" in kept:
                failed.append(f"{model}, {plan}: {kept['failed']}")
            else:
                row = ForeignPeak(**kept | {"before": before.get(stem), "predicted": now.get(stem)})
                limit = row.limit
                if limit is not None and (row.checked or 0) > limit:
                    row = replace(row, limit=row.checked, reached=False)
                rows.append(row)
    return rows, failed


def predict(folder: Path) -> dict[str, int]:
    """Predicts the peaks of all graphs and plans that are kept."""
    found: dict[str, int] = {}
    for file in sorted(folder.glob("*.plan")):
        graph = remat.Graph.load(folder / f"{file.stem}.graph.json.gz")
        saved, recomputed = json.loads(file.read_text())
        found[file.stem] = remat.timeline(graph, remat.Plan(tuple(saved), tuple(recomputed))).peak_bytes
    return found


def spread(errors: Sequence[float]) -> tuple[str, str, str]:
    """Writes the median, what nine in ten are within, and the worst."""
    found = np.array(errors)
    size = np.abs(found)
    return f"{np.median(size):.2%}", f"{np.quantile(size, 0.9):.1%}", f"{found[size.argmax()]:+.1%}"


def markdown(document: Mapping[str, Any]) -> str:
    """Writes the page: how far predictions are off, which limits are kept, and every step."""
    rows = [ForeignPeak(**row) for row in document["rows"]]
    single = [row for row in rows if row.predicted is not None]
    lines: list[tuple[object, ...]] = []
    for plan in (*PLANS, "all"):
        of = [row for row in single if plan in (row.plan, "all")]
        if of:
            lines.append((plan, len(of), "this version", *spread([row.error for row in of])))
        older = [row.before / row.real - 1 for row in of if row.before is not None]
        if older:
            lines.append((plan, len(older), "before", *spread(older)))
    limited = [row for row in single if row.limit is not None]
    within = sum(row.real <= (row.limit or 0) for row in limited)
    exact = sum(row.checked == row.real for row in limited)
    told = (
        f"Of {len(limited)} steps with a limit of the peak {within} stay within it. {sum(r.reached for r in limited)} "
        f"keep the share that was asked for; for the others it was raised. The check was possible for "
        f"{sum(row.checked is not None for row in limited)} of them, and says the very peak of {exact}. In "
        f"{sum('before it' in row.note for row in limited)}, plans were passed over that were predicted to keep the "
        f"limit. {len(rows) - len(single)} steps have several graphs, or none: no prediction is for all of them."
    )
    columns = ("model", "plan", "predicted", "before", "checked", "real", "limit", "off by", "kept")
    return page(
        "Predicted peaks of other people's models",
        inspect.cleandoc(__doc__ or ""),
        f"{cited(document['provenance'], 'experiments.accuracy.foreign_peaks')}.",
        table(("plan", "steps", "prediction of", "median", "90% within", "worst"), lines),
        told,
        section("What is really saved", *_saved(rows)),
        section("All steps", table(columns, [_line(row) for row in rows])),
        section("Not measured", bullets(document["failed"])) if document["failed"] else "",
    )


def _saved(rows: Sequence[ForeignPeak]) -> tuple[str, str]:
    """Tells what half of PyTorch's default came to, by what autograd really keeps."""
    half = [row for row in rows if row.plan == "half of what is saved" and row.saved and row.default_saved]
    shares = np.array([(row.saved or 0) / (row.default_saved or 1) for row in half])
    lines = [
        (row.model, row.graphs, row.default_saved, row.saved, f"{share:.3f}")
        for row, share in zip(half, shares, strict=True)
    ]
    told = (
        f"`MemoryBudget(0.5)` on {len(half)} models: {int((shares <= 0.5).sum())} keep at most half of what PyTorch's "
        f"plan saves. The median is {np.median(shares):.3f} of it, the largest share {shares.max():.3f}."
        if half
        else ""
    )
    return told, table(("model", "graphs", "PyTorch's plan", "really saved", "share"), lines)


def _line(row: ForeignPeak) -> tuple[object, ...]:
    if row.predicted is None:
        return row.model, f"{row.plan} ({row.graphs} graphs)", "", "", "", row.real, "", "", ""
    kept = "" if row.limit is None else "yes" if row.real <= row.limit else "no"
    known = ["" if size is None else size for size in (row.predicted, row.before, row.checked, row.real, row.limit)]
    return row.model, row.plan, *known, f"{row.error:+.2%}", kept + ("" if row.reached else ", raised")


def main() -> None:
    """Measures what is not kept, and writes `foreign_peaks.json` and `.md` into the folder of results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kept", type=Path, default=Path("build/foreign_peaks"), help="folder of what is done")
    parser.add_argument("--only", default="", help="models with this in their name")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one model and plan")
    parser.add_argument("--before", type=Path, help="what --predict wrote in a checkout of an older version")
    parser.add_argument("--predict", type=Path, help="predict what is kept, and write that into this file")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--page", action="store_true", help="measure nothing more")
    arguments = parser.parse_args()
    folder: Path = arguments.kept
    folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")  # torch's own deprecations
    os.cpu_count = lambda: 1  # fused attention takes blocks for each thread, and predictions take one for each core
    if arguments.predict:
        arguments.predict.write_text(json.dumps(predict(folder)))
        return
    if arguments.one:
        print(json.dumps(asdict(measured(*arguments.one, folder))))
        return
    for plan in PLANS if not arguments.page else ():
        for model in FOREIGN:
            file = folder / f"{file_name(model)}.{file_name(plan)}.json"
            if arguments.only in model and not file.exists():
                file.write_text(_in_a_process(model, plan, arguments))
                print(file.stem, flush=True)
    before = json.loads(arguments.before.read_text()) if arguments.before else {}
    rows, failed = rows_in(folder, before)
    document = {"provenance": provenance(gpu=False), "rows": [asdict(row) for row in rows], "failed": failed}
    write_results(RESULTS / "foreign_peaks.json", document, text := markdown(document))
    print(text.split("\n## ")[0])


def _in_a_process(model: str, plan: str, arguments: argparse.Namespace) -> str:
    command = [sys.executable, "-m", "experiments.accuracy.foreign_peaks", "--kept", str(arguments.kept), "--one"]
    try:
        done = subprocess.run(
            [*command, model, plan], capture_output=True, text=True, timeout=arguments.timeout, check=False
        )
    except subprocess.TimeoutExpired:
        return json.dumps({"failed": f"not done within {arguments.timeout} s"})
    if done.returncode:
        return json.dumps({"failed": (done.stderr.strip().splitlines() or ["the process ended"])[-1][:200]})
    return done.stdout.strip().splitlines()[-1]


if __name__ == "__main__":
    main()
