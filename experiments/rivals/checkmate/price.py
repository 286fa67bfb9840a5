"""Measures what one recomputation in one fixed order gives up, on graphs of the corpus joined to a few dozen groups.

On the same graph, at the same prices, in the same memory model: the plan that `MemoryBudget(of="peak")` searches for,
the best plan of our model, and the best schedules that may compute a value twice at any time, and any number of times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from costmodels import RecomputeTime
from experiments.rivals.checkmate.coarse import coarse
from experiments.rivals.checkmate.instance import Instance, replay, schedule_of
from experiments.rivals.checkmate.program import Rules
from experiments.rivals.checkmate.solve import Found, least_cost
from remat import Corpus, Graph
from remat.answer.registry import find_solver
from remat.improve.peak_plans import PeakPlans
from remat.predict.memory import Simulator

GROUPS = 48
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5)
"""Budgets, of the peak without recomputation."""

EXTREMES: tuple[Rules, Rules] = ("ours", "checkmate")


def rows(time_limit_s: float) -> Iterator[dict[str, Any]]:
    """Measures each small graph of the corpus at each budget."""
    corpus = Corpus.open()
    for entry in corpus.entries:
        if entry.family == "small":
            yield {"graph": entry.name} | compared(coarse(corpus.graph(entry.name), GROUPS), time_limit_s)


def compared(graph: Graph, time_limit_s: float) -> dict[str, Any]:
    """Compares the models and our search at each budget, and how low a peak they reach."""
    instance, simulator = Instance.of(graph), Simulator(graph)
    plans = PeakPlans(graph, RecomputeTime("flops").pose(graph), find_solver("cpsat"), time_limit_s)
    most = simulator.peak(graph.in_forward)
    budgets: list[dict[str, Any]] = []
    for share in SHARES:
        budget = int(share * most)
        plan = plans.within(budget)
        searched = plan and replay(instance, schedule_of(graph, graph.for_all_values(plan.choice.saved)))
        found = {rules: least_cost(instance, budget, rules=rules, time_limit_s=time_limit_s) for rules in EXTREMES}
        ours, free = (found[rules] for rules in EXTREMES)
        if ours.cost == free.cost and ours.is_proven and free.is_proven:
            found["twice"] = ours  # it costs no more than the one, and no less than the other
        else:
            found["twice"] = least_cost(instance, budget, rules="twice", time_limit_s=time_limit_s)
        models = {rules: told(one) for rules, one in found.items()}
        budgets.append({"share": share, "budget_bytes": budget, "search": searched and searched.cost, **models})
    return {
        "groups": len(instance),
        "step_ns": sum(instance.costs),
        "peak_bytes": most,
        "budgets": budgets,
        "lowest": {rules: lowest(instance, most, rules, time_limit_s) for rules in EXTREMES},
        "lowest_searched": math.ceil(100 * plans.smallest.peak_bytes / most),
    }


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


def told(found: Found) -> dict[str, Any]:
    """JSON knows no infinity: a proof that there is no schedule has no bound."""
    return {
        "cost": found.cost,
        "bound": None if math.isinf(found.bound) else found.bound,
        "proven": found.is_proven,
        "seconds": round(found.seconds, 2),
    }
