"""Measures predicted, checked and real peaks of compiled steps on small models of other people's packages, on this CPU.

`python -m experiments.accuracy.foreign_peaks` takes each model of `experiments.models.foreign` under PyTorch's plan,
under `MemoryBudget(0.5)`, and under `MemoryBudget(0.65, of="peak")`, in a process of its own. One step is traced: every
byte that torch's allocator hands out and takes back; the C++ kernels are left out, as they allocate nothing.
`predicted` is the peak in the report. `checked` is the peak by the code that Inductor writes, if there is a limit of
the peak. The limit is 0.65 of the predicted peak of PyTorch's default plan (in runs before 27 November 2026, of the
fastest plan). If no plan is found that keeps it, the limit is raised, like any fraction, to the checked peak of the
plan that was found. `saved` is what autograd really keeps of one forward pass, each storage once, without parameters
and inputs; compare it with the bytes that the report names for PyTorch's plan.

The packages are no part of the environment. Install them beside it, and what they import besides, without letting pip
touch torch: `pip install --no-deps --target FOLDER vit-pytorch x-transformers diffusers torch_geometric monai botorch
gpytorch linear_operator vector-quantize-pytorch segmentation-models-pytorch timm einops einx frozendict
torch-einops-utils loguru jaxtyping wadler-lindig multipledispatch pyro-ppl pyro-api threadpoolctl scikit-learn joblib
xxhash pyre_extensions typing_inspect mypy_extensions psutil pyparsing`, then set PYTHONPATH to FOLDER. A model whose
package is not there is named on the page.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

import remat
from costmodels import MemoryBudget
from experiments.accuracy.skipped_kernels import no_cpu_kernels
from experiments.models.foreign import FOREIGN
from experiments.report.markdown import table
from experiments.report.result_table import ResultTable, Row
from remat.improve.byte_budgets import default_plan
from remat.pytorch.measure.saved import peak_bytes, saved_activations

SHARE = 0.65
LIMITED = f"{SHARE} of the peak"
HALF = "half of what is saved"
PLANS: dict[str, remat.CostModel | None] = {
    LIMITED: MemoryBudget(SHARE, of="peak"),
    HALF: MemoryBudget(0.5),
    "default": None,
}
PATIENCE_S = 1200


def measured(model: str, plan: str) -> Row:
    """Compiles one model, and traces its third step; sizes are in bytes, and known where it has one joint graph."""
    torch.set_num_threads(1)
    os.cpu_count = lambda: 1  # fused attention takes blocks for each thread, and predictions take one for each core
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
    rows = step.report().as_frame().to_dict("records")
    found: dict[str, Any] = {"model": model, "plan": plan, "graphs": len(planned), "real": real, "saved": saved}
    found["default_saved"] = int(sum(row["default_saved_bytes"] for row in rows))
    if len(planned) != 1:
        return found
    (one,), (row,) = planned, rows
    found |= {"predicted": int(row["peak_bytes"]), "checked": row.get("checked_peak_bytes")}
    if plan == LIMITED:
        default = default_plan(one.graph)
        assert default is not None  # PyTorch can plan all of these models
        asked = int(SHARE * remat.timeline(one.graph, default).peak_bytes)
        limit = max(asked, found["predicted"], found["checked"] or 0)
        found |= {"limit": limit, "reached": limit == asked, "note": getattr(one.chosen, "check", "")}
    return found


def measure(case: tuple[str, str]) -> Iterator[Row]:
    """Measures a model under a plan in a process of its own."""
    command = [sys.executable, "-W", "ignore", "-m", "experiments.accuracy.foreign_peaks", "--one", *case]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["the process ended"])[-1])
    yield json.loads(done.stdout.strip().splitlines()[-1])


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Says how far predictions are off, and which limits are kept."""
    single = [row for row in rows if row.get("predicted") is not None]
    lines: list[tuple[object, ...]] = []
    for plan in (*PLANS, "all"):
        if of := [row["predicted"] / row["real"] - 1 for row in single if plan in (row["plan"], "all")]:
            size = np.abs(of)
            spread = f"{np.median(size):.2%}", f"{np.quantile(size, 0.9):.1%}", f"{of[int(size.argmax())]:+.1%}"
            lines.append((plan, len(of), *spread))
    yield table(("plan", "steps", "median error", "90% within", "worst"), lines)
    limited = [row for row in single if row.get("limit") is not None]
    yield (
        f"Of {len(limited)} steps with a limit of the peak {sum(row['real'] <= row['limit'] for row in limited)} stay "
        f"within it. {sum(row['reached'] for row in limited)} keep the share that was asked for; for the others it was "
        f"raised. The check is exact for {sum(row['checked'] == row['real'] for row in limited)} of them. In "
        f"{sum('before it' in row['note'] for row in limited)}, the check rejected plans that were predicted to keep "
        f"the limit. {len(rows) - len(single)} steps have several graphs, or none, and so no prediction of the peak."
    )
    half = [row["saved"] / row["default_saved"] for row in rows if row["plan"] == HALF and row.get("default_saved")]
    if half:
        few = sum(share <= 0.5 for share in half)
        yield (
            f"`MemoryBudget(0.5)` on {len(half)} models: {few} really keep at most half of what PyTorch's plan saves. "
            f"The median is {np.median(half):.3f} of it, the largest share {max(half):.3f}."
        )


TABLE = ResultTable(
    "experiments.accuracy.foreign_peaks",
    "Predicted peaks of other people's models",
    cases=lambda: [(model, plan) for model in FOREIGN for plan in PLANS],
    key=", ".join,
    measure=measure,
    summary=summary,
)

if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(measured(*sys.argv[2:])))
    else:
        TABLE.command()
