"""Where a search begins: the given plan, the classic cuts, and what the caller adds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from remat.arrays import BoolArray
from remat.budget import flow_solver
from remat.certify import check_plan
from remat.errors import Infeasible, InvalidOption, InvalidPlan
from remat.graph import Graph
from remat.options import configured, split_options
from remat.plan import Plan
from remat.registry import costmodel_class
from remat.report import plan_mask

_CLASSIC = {
    "classic cut": "byte-traffic:mode=conservative",
    "classic cut, aggressive": "byte-traffic:mode=aggressive",
}


def checked_saved(graph: Graph, plan: object, label: str) -> BoolArray:
    """(n,) what a plan saves, after checking that it is a legal one for this graph.

    Raises:
        InvalidPlan: it is none; the message begins with `label`.
        InvalidOption: it is no plan at all.
    """
    if not isinstance(plan, Plan):
        raise InvalidOption(f"{label} must be a remat.Plan, got {plan!r}")
    try:
        plan.check_made_for(graph)
        saved = plan_mask(graph, plan.saved)
        plan_mask(graph, plan.recomputed)
        check_plan(graph.unpriced, plan)
    except InvalidPlan as error:
        raise InvalidPlan(f"{label}: {error}") from error
    return saved


def starting_points(graph: Graph, plan: Plan, others: Iterable[Plan]) -> dict[str, BoolArray]:
    """What each start saves, by name, the given plan first; a start that repeats another is left out.

    Raises:
        InvalidPlan, InvalidOption: see `checked_saved`.
    """
    found = {"given": checked_saved(graph, plan, "plan")}
    for i, other in enumerate(others):
        found[f"starts[{i}]"] = checked_saved(graph, other, f"starts[{i}]")
    for name, model in _CLASSIC.items():
        kind, options = split_options(model)
        try:
            problem = configured(costmodel_class(kind), options).pose(graph)
            cut = flow_solver().minimum_cut(replace(problem, budget_bytes=None))
        except Infeasible:  # its bans contradict the user's demands
            continue
        found[name] = plan_mask(graph, Plan.of(problem, cut.saved, cut.recomputed).saved)
    distinct: dict[bytes, str] = {}
    return {name: saved for name, saved in found.items() if distinct.setdefault(saved.tobytes(), name) == name}
