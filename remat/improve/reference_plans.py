"""Finds the plans beside which every trade-off is shown: PyTorch's default, and eager mode's."""

from __future__ import annotations

from remat.answer.plan import Plan
from remat.answer.plan_facts import no_recompute_plan
from remat.errors import InvalidPlan
from remat.facts.graph import Graph
from remat.improve.byte_budgets import default_plan
from remat.problem.constraints import base_problem
from remat.proof.certify import check_plan

PYTORCH = "PyTorch's default"
EAGER = "nothing runs twice (eager)"


def reference_plans(graph: Graph) -> dict[str, Plan]:
    """Finds both without PyTorch: see `default_plan` and `no_recompute_plan`.

    One that is missing is not legal: what it would save cannot be saved, or the user's demands forbid it.
    """
    found = {PYTORCH: default_plan(graph), EAGER: no_recompute_plan(graph)}
    return {name: plan for name, plan in found.items() if plan is not None and _is_legal(graph, plan)}


def _is_legal(graph: Graph, plan: Plan) -> bool:
    try:
        check_plan(base_problem(graph), plan)
    except InvalidPlan:
        return False
    return True
