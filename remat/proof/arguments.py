"""What a caller gave as a graph and a plan, checked once: the message is about the argument, not about its insides."""

from __future__ import annotations

import numpy as np

from remat.answer.plan import Plan
from remat.answer.plan_facts import plan_mask
from remat.errors import InvalidOption, InvalidPlan
from remat.facts.columns import BoolArray, bool_column
from remat.facts.graph import Graph
from remat.problem.demands import unpriced
from remat.proof.certify import check_plan


def checked_graph(graph: object) -> Graph:
    """The same object.

    Raises:
        InvalidOption: it is no graph.
    """
    if not isinstance(graph, Graph):
        raise InvalidOption(f"graph must be a remat.Graph (Graph.load reads a file), got {graph!r}")
    return graph


def checked_saves(graph: Graph, plan: object, label: str = "plan") -> BoolArray:
    """(n,) what a plan saves, if it is a legal one for this graph.

    Raises:
        InvalidPlan: the plan names unknown values, is not legal, or was made for another graph.
        InvalidOption: it is no plan; the message begins with `label`.
    """
    if not isinstance(plan, Plan):
        raise InvalidOption(f"{label} must be a remat.Plan (`solution.plan` of a solution), got {plan!r}")
    plan.check_made_for(graph)
    saved = plan_mask(graph, plan.saved)
    plan_mask(graph, plan.recomputed)
    check_plan(unpriced(graph), plan)
    return saved


def checked_mask(graph: Graph, saved: BoolArray) -> BoolArray:
    """(n,) what is said to be saved, as flags; whether that is a legal plan is not asked (see `remat.check_plan`).

    Raises:
        InvalidPlan: not one flag a value, or a value of the tangents' closure is saved.
    """
    mask = bool_column("saved", saved, len(graph), InvalidPlan)
    wrong = np.flatnonzero(mask & graph.in_tangents)
    if len(wrong):
        name = graph.names[int(wrong[0])]
        raise InvalidPlan(f"saved must hold values of the forward pass only, got {name!r}, which depends on a tangent")
    return mask
