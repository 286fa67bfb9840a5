"""Collects where a search begins: the given plan, the classic cuts, and what the caller adds."""

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
    """Returns what each start saves, by name, the given plan first; a start that repeats another is left out.

    Raises:
        InvalidPlan: one is not legal, or was made for another graph.
        InvalidOption: one is no plan at all.
    """
    if isinstance(plans, Plan) or not isinstance(plans, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidOption(f"starts must be a list of remat.Plan, got {plans!r}")
    found: dict[str, BoolArray] = {}
    for name, label, start in [("given", "plan", plan), *((f"starts[{i}]",) * 2 + (p,) for i, p in enumerate(plans))]:
        try:
            found[name] = legal_choice(graph, start, label, offload=False).saved
        except InvalidPlan as error:
            raise InvalidPlan(f"{label}: {error}") from error
    for name, model in CLASSIC_CUTS.items():
        try:
            problem = find_costmodel(model).pose(graph)
            cut = flow_solver().minimum_cut(replace(problem, budget_bytes=None))
        except Infeasible:  # its bans contradict the user's demands
            continue
        found[name] = graph.for_all_values(cut.choice.saved)
    distinct: dict[bytes, str] = {}
    return {name: saved for name, saved in found.items() if distinct.setdefault(saved.tobytes(), name) == name}


def starting_states(
    graph: Graph, objective: Objective, plan: Plan, others: Iterable[Plan], extra_bytes: int
) -> dict[str, State]:
    """Returns where a refinement begins, by name, the given plan first: also where the objective proposes to.

    Raises:
        InvalidPlan, InvalidOption: as above.
        Infeasible: the graph has no legal plan at all.
    """
    space, points = Space(graph), starting_points(graph, plan, others)
    limit_bytes = space.state(points["given"]).saved_bytes + extra_bytes
    states = {name: space.state(saved) for name, saved in (points | dict(objective.starts(graph, limit_bytes))).items()}
    if objective.begins_beyond:
        return states
    return {name: state for name, state in states.items() if state.saved_bytes <= limit_bytes}


def never_recomputed(graph: Graph, objective: Objective, starts: Iterable[State]) -> BoolArray:
    """Marks values not to recompute, (n,), for an objective that does not see what arithmetic costs."""
    if objective.counts_arithmetic:
        return np.zeros(len(graph), np.bool_)
    keep = graph.compute_bound.copy()
    for start in starts:
        keep &= ~start.choice.recomputed
    return keep
