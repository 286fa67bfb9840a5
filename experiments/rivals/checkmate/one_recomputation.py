"""Measures what one recomputation in one fixed order gives up, on graphs of the corpus joined to at most 48 groups.

`python -m experiments.rivals.checkmate.one_recomputation`. On the same graph, at the same prices (nanoseconds, by the
roofline of an A100 without launches), in the same memory model, within budgets of the peak without recomputation: the
plan that `MemoryBudget(of="peak")` searches for, by simulated values, with `cpsat` in the place of `lagrangian`; the
best plan of our model; and the best schedules that may compute a value twice at any time, and any number of times:
Checkmate's formulation. A cost is the time of all recomputations. If there is none, no schedule was found, and if that
is proven, there is no schedule. The last row of a graph has the lowest peak that each way reaches, in percents of the
peak without recomputation.

Fair: each value has a storage of its own, and nothing is fused, for all. Each of our plans is one of Checkmate's
schedules, and our model is the same program with more rows. Every schedule is replayed by a simulator that knows
nothing of the program; the bounds are what CP-SAT claims. Not fair: groups are coarser than operators, and an operator
that needs a part of a group takes the whole group. Fusion, which our own peaks know, is left out. Nothing runs
Checkmate's schedules here: PyTorch's partitioner cannot express a backward pass that computes values of its own twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from costmodels import RecomputeTime
from experiments.report.charts import draw_dots
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable, Row
from experiments.rivals.checkmate.coarse import coarse
from experiments.rivals.checkmate.instance import Instance, replay, schedule_of
from experiments.rivals.checkmate.program import Rules
from experiments.rivals.checkmate.solve import Found, least_cost
from remat import Corpus, Graph
from remat.answer.registry import find_solver
from remat.improve.peak_plans import PeakPlans
from remat.predict.memory import Simulator

GROUPS = 48
LIMIT_S = 20.0
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5)
"""Budgets, of the peak without recomputation."""

EXTREMES: tuple[Rules, Rules] = ("ours", "checkmate")


def compared(graph: Graph, limit_s: float = LIMIT_S) -> Iterator[Row]:
    """Compares the models and our search at each budget, and how low a peak they reach."""
    instance, simulator = Instance.of(graph), Simulator(graph)
    plans = PeakPlans(graph, RecomputeTime("flops").pose(graph), find_solver("cpsat"), limit_s)
    most = simulator.peak(graph.in_forward)
    for share in SHARES:
        budget = int(share * most)
        plan = plans.within(budget)
        searched = plan and replay(instance, schedule_of(graph, graph.for_all_values(plan.choice.saved)))
        found = {rules: least_cost(instance, budget, rules=rules, time_limit_s=limit_s) for rules in EXTREMES}
        ours, free = (found[rules] for rules in EXTREMES)
        if ours.cost == free.cost and ours.is_proven and free.is_proven:
            found["twice"] = ours  # it costs no more than the one, and no less than the other
        else:
            found["twice"] = least_cost(instance, budget, rules="twice", time_limit_s=limit_s)
        models = {rules: as_json(one) for rules, one in found.items()}
        yield {"share": share, "budget_bytes": budget, "search": searched and searched.cost, **models}
    searched_percent = math.ceil(100 * plans.smallest.peak_bytes / most)
    reached = {rules: lowest(instance, most, rules, limit_s) for rules in EXTREMES}
    yield {"groups": len(instance), "lowest": {"search": searched_percent, **reached}}


def lowest(instance: Instance, most_bytes: int, rules: Rules, time_limit_s: float) -> dict[str, Any]:
    """Finds the smallest budget that can be kept, in whole percents of a peak, and whether one less is proven not to.

    By bisection: a budget that takes too long counts as one that cannot be kept, and then it is not proven.
    """
    low, high, proven = 0, 100, True
    while high - low > 1:
        middle = (low + high) // 2
        found = least_cost(instance, most_bytes * middle // 100, rules=rules, time_limit_s=time_limit_s)
        if found.cost is not None:
            high = middle
        else:
            low, proven = middle, found.is_proven
    return {"percent": high, "proven": proven}


def as_json(schedule: Found) -> dict[str, Any]:
    """JSON knows no infinity: a proof that there is no schedule has no bound."""
    return {
        "cost": schedule.cost,
        "bound": None if math.isinf(schedule.bound) else schedule.bound,
        "proven": schedule.is_proven,
        "seconds": round(schedule.seconds, 2),
    }


def counts(rows: Sequence[Row]) -> dict[str, Any]:
    """Counts pairs of a graph and a budget; "more" has the shares by which ours costs more, where both are proven."""
    pairs = {f"{row['case']} at {row['share']}": row for row in rows if "share" in row}
    reached = [row for row in pairs.values() if row["ours"]["cost"] is not None]
    both = {name: row for name, row in pairs.items() if row in reached and row["ours"]["proven"]}
    both = {name: row for name, row in both.items() if row["checkmate"]["proven"]}
    above = {name: row["ours"]["cost"] / row["checkmate"]["cost"] - 1 for name, row in both.items()}
    return {
        "pairs": len(pairs),
        "reached_by_checkmate": sum(row["checkmate"]["cost"] is not None for row in pairs.values()),
        "reached": len(reached),
        "both_proven": len(both),
        "more": {name: more for name, more in sorted(above.items(), key=lambda item: -item[1]) if more > 0},
        "found_by_search": sum(row["search"] is not None for row in reached),
        "best_by_search": sum(row["search"] == row["ours"]["cost"] for row in reached),
    }


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says how many budgets are reached, and where ours costs more."""
    found = counts(rows)
    more = ", ".join(f"{share:.0%} ({name})" for name, share in found["more"].items())
    told = [
        f"Of {found['pairs']} pairs of a graph and a budget, {found['reached_by_checkmate']} are reached by "
        f"computing values any number of times, and {found['reached']} by our model. Where both optima are "
        f"proven ({found['both_proven']} pairs), ours costs as much in "
        f"{found['both_proven'] - len(found['more'])}, and more in {len(found['more'])}: {more}.",
        f"Our search finds a plan in {found['found_by_search']} of the {found['reached']}, in "
        f"{found['best_by_search']} the best one.",
    ]
    return [bullets(told)]


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws how low a peak each way reaches on each graph."""
    lowest = {row["case"].removeprefix("small-"): row["lowest"] for row in rows if "lowest" in row}
    ways = (("any number of times", "checkmate"), ("at most twice, one order", "ours"))
    found = {label: {name: one[key]["percent"] for name, one in lowest.items()} for label, key in ways}
    found["our search"] = {name: one["search"] for name, one in lowest.items()}
    draw_dots(found, path, xlabel="lowest peak, % of that without recomputation", xlim=(30, 102))


TABLE = ResultTable(
    "experiments.rivals.checkmate.one_recomputation",
    "What one recomputation in one order gives up",
    cases=lambda: [entry.name for entry in Corpus.open().entries if entry.family == "small"],
    measure=lambda name: compared(coarse(Corpus.open().graph(name), GROUPS)),
    summary=summary,
    draw=draw,
)

if __name__ == "__main__":
    TABLE.command()
