"""Measures whether compiled training steps stay within a budget of their peak, by torch's own allocator on this CPU.

`python -m experiments.accuracy.peak_budgets` takes the zoo and the held-out models, among them eleven of the package
`transformers`. Each has a budget of half the peak of the plan that is fastest; where no plan is found within that, what
the plan with the smallest peak found is predicted to hold. The third step of the compiled model is traced, as in
`experiments.accuracy.compiled_peaks`, without the C++ kernels: they allocate nothing.

What is measured is kept in the folder of --kept: a run that was stopped goes on from there.
"""

from __future__ import annotations

import argparse
import inspect
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import remat
from costmodels import MemoryBudget
from experiments.accuracy.compiled_peaks import file_name, makers, measured
from experiments.report.markdown import bullets, cited, page, section, table
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results

BUDGET = MemoryBudget(0.5, of="peak")
GROUPS = ("zoo", "held out")


@dataclass(frozen=True)
class PeakBudget:
    """Compares what a step holds with its budget, in bytes.

    Attributes:
        model: its name.
        group: one of `GROUPS`.
        fastest: the predicted peak of the plan that costs least.
        budget: half of it, or the smallest peak found, if that is more.
        predicted: of the plan within the budget.
        measured: by torch's allocator.
    """

    model: str
    group: str
    fastest: int
    budget: int
    predicted: int
    measured: int

    @property
    def over(self) -> float:
        """The part of the budget that is held beyond it; negative where some is left."""
        return self.measured / self.budget - 1


def main() -> None:
    """Measures what is not kept, and writes `peak_budgets.json` and `.md` into the folder of results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kept", type=Path, default=Path("build/peak_budgets"), help="folder of what is done")
    parser.add_argument("--only", default="", help="models with this in their name")
    arguments = parser.parse_args()
    folder: Path = arguments.kept
    folder.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")  # torch's own deprecations
    for group, name, make in makers():
        file = folder / f"{file_name(name)}.json"
        if group in GROUPS and arguments.only in name and not file.exists():
            file.write_text(json.dumps({"failed": f"{name}: the process ended"}))
            torch.random.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
            try:
                graph, plan, bytes_ = measured(make(), BUDGET, kernels=False)
                file.write_text(json.dumps(asdict(_row(name, group, graph, plan, bytes_))))
            except Exception as error:  # a model that fails is a result, too
                what = f"{name}: {type(error).__name__}: {error}".splitlines()[0][:200]
                file.write_text(json.dumps({"failed": what}))
            print(file.stem, flush=True)
    kept = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    rows = [row for row in kept if "failed" not in row]
    document = {
        "provenance": provenance(gpu=False),
        "rows": rows,
        "failed": [r["failed"] for r in kept if "failed" in r],
    }
    write_results(RESULTS / "peak_budgets.json", document, text := markdown(document))
    print(text.split("\n## ")[0])


def _row(name: str, group: str, graph: remat.Graph, plan: remat.Plan, bytes_: int) -> PeakBudget:
    fastest = remat.choose(graph, MemoryBudget(1.0, of="peak")).plan
    assert fastest is not None  # choose() raises where there is none
    most, predicted = (remat.timeline(graph, one).peak_bytes for one in (fastest, plan))
    return PeakBudget(name, group, most, max(most // 2, predicted), predicted, bytes_)


def markdown(document: Mapping[str, Any]) -> str:
    """Writes the page: a line for each group, then every step, the one most above its budget first."""
    rows = sorted((PeakBudget(**row) for row in document["rows"]), key=lambda row: -row.over)
    groups = {group: [row for row in rows if row.group == group] for group in GROUPS}
    lines = [(group, *_counts(of)) for group, of in groups.items() if of]
    columns = ("model", "fastest plan", "budget", "predicted", "measured", "beyond the budget")
    return page(
        "Compiled steps within a budget of their peak",
        inspect.cleandoc(__doc__ or ""),
        f"{cited(document['provenance'], 'experiments.accuracy.peak_budgets')}.",
        table(("models", "steps", "half is reached", "within the budget", "most beyond"), lines),
        section(
            "All steps",
            table(columns, [(r.model, r.fastest, r.budget, r.predicted, r.measured, f"{r.over:+.1%}") for r in rows]),
        ),
        section("Not measured", bullets(document["failed"])) if document["failed"] else "",
    )


def _counts(rows: Sequence[PeakBudget]) -> tuple[int, int, int, str]:
    worst = rows[0]
    reached = sum(row.predicted <= row.fastest // 2 for row in rows)
    within = sum(row.measured <= row.budget for row in rows)
    return len(rows), reached, within, f"{worst.over:+.1%} ({worst.model})"


if __name__ == "__main__":
    main()
