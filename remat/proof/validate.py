"""Checks a plan argument once, so that an error names the argument."""

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
    """Returns the choice of a plan over the values of a graph, if the plan is legal there.

    Raises `InvalidPlan` for a plan that is not legal, was made for another graph, or offloads values without `offload`;
    and an `InvalidOption` that begins with `label` for anything but a plan.
    """
    plan = checked_plan(plan, label)
    plan.check_is_for(graph)
    choice = Choice.from_plan(graph, plan, offload=offload)
    check_plan(base_problem(graph, offload=offload), plan)
    return choice


def checked_mask(graph: Graph, saved: BoolArray) -> BoolArray:
    """Returns a mask (n,) of the saved values, without a check that the plan is legal (see `remat.check_plan`).

    Raises `InvalidPlan` for another number of flags, or if a value of the tangents' closure is saved.
    """
    mask = bool_column("saved", saved, len(graph), InvalidPlan)
    wrong = np.flatnonzero(mask & graph.in_tangents)
    if len(wrong):
        name = graph.names[int(wrong[0])]
        raise InvalidPlan(f"saved must hold values of the forward pass only, got {name!r}, which depends on a tangent")
    return mask
