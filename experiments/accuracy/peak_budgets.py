"""Measures whether compiled training steps stay within a budget of their peak, by torch's own allocator on this CPU.

`python -m experiments.accuracy.peak_budgets` takes our ten small models and the held-out models, eleven of them by
`transformers`. Each has a budget of half the peak of PyTorch's default plan. If no plan is found within that, the
budget is the smallest predicted peak that was found. The third step of the compiled model is traced, as in
`experiments.accuracy.compiled_peaks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

import remat
from costmodels import MemoryBudget
from experiments.accuracy.compiled_peaks import makers, measured_peak
from experiments.report.markdown import table
from experiments.report.result_table import ResultTable, Row
from remat.improve.byte_budgets import default_plan

BUDGET = MemoryBudget(0.5, of="peak")
GROUPS = ("zoo", "held out")


def measure(name: str) -> Iterator[Row]:
    """Compares what a step holds with its budget, in bytes; `default` is the predicted peak of PyTorch's default."""
    group, make = makers()[name]
    torch.random.manual_seed(0)  # pyright: ignore[reportUnknownMemberType]
    graph, plan, held = measured_peak(make(), BUDGET, kernels=False)
    default = default_plan(graph)
    assert default is not None  # PyTorch can plan all of these models
    most, predicted = (remat.timeline(graph, one).peak_bytes for one in (default, plan))
    budget = max(most // 2, predicted)
    yield {"group": group, "default": most, "budget": budget, "predicted": predicted, "measured": held}


def over(row: Row) -> float:
    """The part of the budget that is held beyond it; negative where some is left."""
    return row["measured"] / row["budget"] - 1


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Counts for each group the steps that reach half of the peak, and those that stay within their budget."""
    lines: list[tuple[object, ...]] = []
    for group in GROUPS:
        if own := [row for row in rows if row["group"] == group]:
            worst = max(own, key=over)
            reached = sum(row["predicted"] <= row["default"] // 2 for row in own)
            within = sum(row["measured"] <= row["budget"] for row in own)
            lines.append((group, len(own), reached, within, f"{over(worst):+.1%} ({worst['case']})"))
    return [table(("models", "steps", "half is reached", "within the budget", "most beyond"), lines)]


TABLE = ResultTable(
    "experiments.accuracy.peak_budgets",
    "Compiled steps within a budget of their peak",
    cases=lambda: [name for name, (group, _) in makers().items() if group in GROUPS],
    measure=measure,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
