"""What a caller gave as a plan for a graph, checked once: the message is about the argument, not about its insides."""

from __future__ import annotations

import numpy as np

from remat.answer.choice import Choice
from remat.answer.plan import checked_plan
from remat.errors import InvalidPlan
from remat.facts.columns import BoolArray, bool_column
from remat.facts.graph import Graph
from remat.problem.constraints import base_problem
from remat.proof.certify import check_plan


def legal_choice(graph: Graph, plan: object, label: str = "plan", *, offload: bool = True) -> Choice:
    """Returns what a plan decides about the values of a graph, if it is a legal one for it.

    Raises:
        InvalidPlan: the plan names unknown values, is not legal, or was made for another graph; or it offloads values,
            and not `offload`.
        InvalidOption: it is no plan; the message begins with `label`.
    """
    plan = checked_plan(plan, label)
    plan.check_is_for(graph)
    choice = Choice.from_plan(graph, plan, offload=offload)
    check_plan(base_problem(graph, offload=offload), plan)
    return choice


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
