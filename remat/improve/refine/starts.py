"""Collects the plans where a search begins: the caller's plan, the classic cuts, and further plans of the caller."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from remat.answer.plan import Plan
from remat.answer.registry import CLASSIC_CUTS, find_costmodel
from remat.errors import Infeasible, InvalidOption, InvalidPlan
from remat.facts.columns import BoolArray
from remat.facts.graph import Graph
from remat.improve.refine.objectives import Objective
from remat.improve.refine.states import Space, State
from remat.proof.budget import flow_solver
from remat.proof.validate import legal_choice


def starting_points(graph: Graph, plan: Plan, plans: Iterable[Plan]) -> dict[str, BoolArray]:
    """Returns what each start saves, (n,), by name, the caller's plan first; a start that repeats another is left out.

    Raises:
        InvalidPlan: a plan is not legal, or was made for another graph.
        InvalidOption: `plans` holds something else than plans.
    """
    if isinstance(plans, Plan) or not isinstance(plans, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"starts must be a list of remat.Plan, got {plans!r}")
    saved_by_name: dict[str, BoolArray] = {}
    for name, label, start in [("given", "plan", plan), *((f"starts[{i}]",) * 2 + (p,) for i, p in enumerate(plans))]:
        try:
            saved_by_name[name] = legal_choice(graph, start, label, offload=False).saved
        except InvalidPlan as error:
            raise InvalidPlan(f"{label}: {error}") from error
    for name, model in CLASSIC_CUTS.items():
        try:
            problem = find_costmodel(model).pose(graph)
            cut = flow_solver().minimum_cut(replace(problem, budget_bytes=None))
        except Infeasible:  # its bans contradict the user's demands
            continue
        saved_by_name[name] = graph.for_all_values(cut.choice.saved)
    distinct: dict[bytes, str] = {}
    return {name: saved for name, saved in saved_by_name.items() if distinct.setdefault(saved.tobytes(), name) == name}


def starting_states(
    graph: Graph, objective: Objective, plan: Plan, others: Iterable[Plan], extra_bytes: int
) -> dict[str, State]:
    """Returns the states where a refinement begins, by name, the caller's plan first; an objective may add some.

    Raises:
        InvalidPlan, InvalidOption: as for `starting_points`.
        Infeasible: the graph has no legal plan at all.
    """
    space, points = Space(graph), starting_points(graph, plan, others)
    limit_bytes = space.state(points["given"]).saved_bytes + extra_bytes
    states = {name: space.state(saved) for name, saved in (points | dict(objective.starts(graph, limit_bytes))).items()}
    if objective.begins_beyond:
        return states
    return {name: state for name, state in states.items() if state.saved_bytes <= limit_bytes}


def never_recomputed(graph: Graph, objective: Objective, starts: Iterable[State]) -> BoolArray:
    """Marks values not to recompute, (n,): an objective that ignores arithmetic would recompute matrix products."""
    if objective.counts_arithmetic:
        return np.zeros(len(graph), np.bool_)
    keep = graph.compute_bound.copy()
    for start in starts:
        keep &= ~start.choice.recomputed
    return keep
