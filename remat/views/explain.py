"""Explains why a value is saved, recomputed, offloaded, or none of these: `remat.explain`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from remat.answer.choice import Choice
from remat.answer.option_text import label
from remat.answer.plan import Plan
from remat.answer.plan_facts import computed_by_forward
from remat.answer.registry import DEFAULT_COST_MODEL, find_costmodel
from remat.answer.solution import Solution
from remat.answer.solver import Solver
from remat.errors import Infeasible, UnknownName
from remat.facts.bans import cannot_be
from remat.facts.graph import Graph, Region, checked_graph
from remat.problem.costmodel import CostModel
from remat.problem.feasibility import REMEDY, forced_values
from remat.problem.problem import Problem
from remat.proof.solve import solve
from remat.words import human_bytes, human_price, near

_SHOWN = 6


UNHIDDEN = "Copies count as if they do not overlap kernels; `remat solve` plans for copies that do, and may differ."
"""A remark about solved problems with offloading, because `remat.choose` simulates copies."""


class Decision(Enum):
    """Lists what a plan can do with a value; the value of each member completes the sentence "x is ..."."""

    SAVED = "saved"
    OFFLOADED = "offloaded: saved, and on the host until the backward pass needs it"
    RECOMPUTED = "recomputed in the backward pass"
    DEFERRED = "computed in the backward pass, which alone needs it"
    ABSENT = "neither saved nor recomputed"
    TANGENT = "computed from gradients, so only the backward pass can compute it; there is no choice"


@dataclass(frozen=True)
class Alternative:
    """Describes the best plan with another decision about one value.

    Attributes:
        question: the decision, e.g. "does not save it".
        extra_cost: the cost of this plan minus that of the best plan of all; None if there is no such plan. Negative if
            the solver is a heuristic and had missed this plan.
        proven: whether both costs were verified as optimal.
        saves: names that this plan keeps on the device, and the best plan does not save.
        drops: names that only the best plan saves.
        recomputes: names that this plan recomputes and the best plan does not.
        conflict: the rules that exclude such a plan, in the words of `remat.Infeasible`.
        offloads: names that only this plan offloads.
        keeps: names that this plan keeps on the device, and the best plan offloads.
    """

    question: str
    extra_cost: int | None
    proven: bool
    saves: tuple[str, ...]
    drops: tuple[str, ...]
    recomputes: tuple[str, ...]
    conflict: str = ""
    offloads: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """Explains the decision of the best plan about one value; `print` it.

    Attributes:
        name, op: the value and its operator.
        place: the line of the model that computes it (`remat.Graph.places`); "" if unknown.
        decision: what the best plan does with it.
        cost_model: the cost model of the best plan.
        bytes: its size. Saving it takes `save_bytes` of memory: none for an input, the whole storage for a view.
        save_cost, recompute_cost, unit: its prices; 0 for a tangent.
        in_memory: whether its storage is written whatever is saved; otherwise only a save writes it.
        readers: its readers in the backward pass, with the views in between.
        gradient: whether the backward pass returns it.
        cannot_save, cannot_recompute: why not, or None if that is allowed.
        alternative: the best plan with another decision; None for a tangent, and for a value that cannot be saved and
            need not be.
        offload_cost: the price of its copies to the host and back; None if nothing can be offloaded.
        cannot_offload: why not, or None if that is allowed.
        others: the best plan for each further decision, if values can be offloaded.
    """

    name: str
    op: str
    place: str
    decision: Decision
    bytes: int
    save_bytes: int
    save_cost: int
    recompute_cost: int
    unit: str
    in_memory: bool
    readers: tuple[str, ...]
    gradient: bool
    cannot_save: str | None
    cannot_recompute: str | None
    alternative: Alternative | None
    cost_model: str = ""
    offload_cost: int | None = None
    cannot_offload: str | None = None
    others: tuple[Alternative, ...] = ()

    def __str__(self) -> str:
        sentences = [f"{self.name} ({self.op}, {human_bytes(self.bytes)}) is {self.decision.value}."]
        if self.place:
            sentences.append(f"In the model: {self.place}.")
        if self.decision is not Decision.TANGENT:
            sentences.append(self._prices())
            if self.cannot_save is None:
                sentences.append(
                    "It is in memory anyway, so a save adds a read." if self.in_memory else "Only a save writes it."
                )
        if self.readers:
            sentences.append(f"The backward pass reads it in {_listed(self.readers)}.")
        if self.gradient:
            sentences.append("The backward pass returns it.")
        if not self.readers and not self.gradient:
            sentences.append("Nothing in the backward pass reads it.")
        if self.offload_cost is not None:
            sentences.append(UNHIDDEN)
        for alternative in filter(None, (self.alternative, *self.others)):
            sentences += _words(self.name, alternative, self.unit)
        return "\n".join(sentences)

    def _prices(self) -> str:
        save = f"Saving it costs {human_price(self.save_cost, self.unit)} and takes {human_bytes(self.save_bytes)}"
        if self.cannot_save is not None:
            save = f"It {cannot_be('saved', self.cannot_save)}"
        host = ""
        if self.offload_cost is not None and self.cannot_save is None:
            host = f"; offloading it costs {human_price(self.offload_cost, self.unit)} for two copies"
            if self.cannot_offload is not None:
                host = f"; it {cannot_be('offloaded', self.cannot_offload)}"
        redo = f"recomputing it from its inputs costs {human_price(self.recompute_cost, self.unit)}"
        if self.recompute_cost == 0:
            redo = "recomputing it from its inputs is free"
        if self.cannot_recompute is not None:
            redo = f"it {cannot_be('recomputed', self.cannot_recompute)}"
        return f"{save}{host}; {redo}{f' (by {self.cost_model})' if self.cost_model else ''}."


def explain(
    graph: Graph,
    name: str | None = None,
    cost_model: str | CostModel = DEFAULT_COST_MODEL,
    solver: str | Solver | None = None,
) -> Explanation:
    """Explains what the best plan does with a value, and what another decision would cost.

    The alternative is exact: the problem is solved again with one more rule. Copies to a host have the price of the
    problem: for `MemoryBudget(offload=...)` their whole time, as if they did not overlap kernels.

    Args:
        graph: the joint graph.
        name: one of `graph.names`; by default, of the twelve largest activations that the best plan saves, the one that
            would be the most expensive to give up.
        cost_model, solver: names or instances; the default solver is that of `remat.solve`.

    Raises:
        UnknownName: the graph has no such value, or `name` is None and nothing is saved.
        Infeasible: the problem has no plan.
    """
    checked_graph(graph)
    if name is not None and (not isinstance(name, str) or name not in graph.index):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UnknownName(f"the graph has no value named {name!r}{near(str(name), graph.names)}")
    model = find_costmodel(cost_model)
    problem = model.pose(graph)
    best = solve(problem, solver)
    plan = _plan(best)
    name = _weightiest(graph, problem, best, solver) if name is None else name
    i, v = graph.index[name], problem.index.get(name)
    decision = _decision(graph, i, plan)
    alternatives = [] if v is None else _alternatives(problem, v, decision, best, solver)
    return Explanation(
        name=name,
        op=graph.ops[i],
        place=graph.places[i],
        decision=decision,
        bytes=int(graph.bytes[i]),
        save_bytes=int(graph.activation_bytes[i]),
        save_cost=0 if v is None else int(problem.save_cost[v]),
        recompute_cost=0 if v is None else int(problem.recompute_cost[v]),
        unit=model.unit,
        in_memory=bool(graph.materialized[i]),
        readers=_readers(graph, i, plan),
        gradient=bool(graph.gradient[i]),
        cannot_save=None if v is None else problem.cannot_save.reason(v),
        cannot_recompute=None if v is None else _why_not_recomputed(problem, v),
        alternative=alternatives[0] if alternatives else None,
        cost_model=label(model),
        offload_cost=None if v is None or problem.offload is None else int(problem.offload.cost[v]),
        cannot_offload=None if v is None or problem.offload is None else problem.offload.banned.reason(v),
        others=tuple(alternatives[1:]),
    )


def _weightiest(graph: Graph, problem: Problem, best: Solution, solver: str | Solver | None) -> str:
    sizes = {name: int(graph.activation_bytes[graph.index[name]]) for name in _plan(best).saved}
    largest = sorted(filter(sizes.get, sizes), key=lambda name: -sizes[name])[:12]
    if not largest:
        raise UnknownName("the best plan saves no activation: name the value to explain")
    others = {name: _alternatives(problem, problem.index[name], Decision.SAVED, best, solver)[0] for name in largest}
    return max(others, key=lambda name: others[name].extra_cost or 0)


def _decision(graph: Graph, i: int, plan: Plan) -> Decision:
    name = graph.names[i]
    if graph.region[i] == Region.TANGENTS:
        return Decision.TANGENT
    if name in plan.saved:
        return Decision.OFFLOADED if graph.names[graph.base[i]] in plan.offloaded else Decision.SAVED
    if name in plan.recomputed:
        twice = computed_by_forward(graph, Choice.from_plan(graph, plan, offload=True).saved)[i]
        return Decision.RECOMPUTED if twice else Decision.DEFERRED
    return Decision.ABSENT


def _readers(graph: Graph, i: int, plan: Plan) -> tuple[str, ...]:
    recomputed = set(plan.recomputed)
    readers: list[str] = []
    queue: list[tuple[int, str]] = [(i, "")]
    for value, through in queue:
        users: list[int] = graph.consumers[graph.producers == value].tolist()
        for user in users:
            name = graph.names[user]
            if graph.region[user] != Region.TANGENTS and name not in recomputed:
                continue
            if graph.view[user] and not graph.gradient[user]:
                queue.append((user, f" (through {name})"))
            else:
                readers.append(name + through)
    return tuple(readers)


def _why_not_recomputed(problem: Problem, v: int) -> str | None:
    rules = forced_values(problem)
    if problem.cannot_recompute.mask[v] or not rules.not_recomputable[v]:
        return problem.cannot_recompute.reason(v)
    arguments = problem.producers[problem.consumers == v]
    lost = problem.names[int(arguments[rules.unavailable[arguments]][0])]
    return f"uses {lost!r}, which can be neither saved nor recomputed"


# Forbids the decision about value v and solves again; then once for each place where v can be saved.
def _alternatives(
    problem: Problem, v: int, decision: Decision, best: Solution, solver: str | Solver | None
) -> list[Alternative]:
    only = np.zeros(len(problem), np.bool_)
    only[v] = True
    plans: list[Alternative] = []
    if decision in (Decision.SAVED, Decision.OFFLOADED):
        bans = problem.cannot_save.also(only, "asked: what if it were not saved?")
        plans.append(_solved("does not save it", replace(problem, cannot_save=bans), best, solver))
    bans = problem.cannot_recompute.also(only, "asked: what if it were not recomputed?")
    saved = replace(problem, cannot_recompute=bans, needed=problem.needed | only)
    host = problem.offload
    if host is None or host.banned.mask[v] or problem.cannot_save.mask[v]:
        if decision in (Decision.RECOMPUTED, Decision.DEFERRED):
            plans.append(_solved("does not recompute it", replace(problem, cannot_recompute=bans), best, solver))
        elif decision is Decision.ABSENT and not problem.cannot_save.mask[v]:
            plans.append(_solved("saves it", saved, best, solver))
        return plans
    others = replace(host, banned=host.banned.also(only, "asked: what if it stayed?"))
    stays = replace(saved, offload=others)
    if decision is not Decision.SAVED:
        plans.append(_solved("keeps it on the device", stays, best, solver))
    if decision is not Decision.OFFLOADED:  # modelled as a save on the device that costs the copies, and no bytes
        cost, size = np.where(only, host.cost, problem.save_cost), np.where(only, 0, problem.save_bytes)
        away = replace(stays, save_cost=cost, save_bytes=size)
        plans.append(_solved("offloads it", away, best, solver, (problem.names[v],)))
    return plans


# `offloads` are names that the problem models as saved, but that are offloaded.
def _solved(
    question: str, problem: Problem, best: Solution, solver: str | Solver | None, offloads: tuple[str, ...] = ()
) -> Alternative:
    try:
        other = solve(problem, solver)
    except Infeasible as error:
        conflict = str(error).removesuffix(f"\n{REMEDY}")  # no remedy is needed: the best plan exists
        return Alternative(question, None, best.is_proven, (), (), (), conflict)
    ours, theirs = _plan(best), _plan(other)
    hosted = theirs.offloaded + offloads
    return Alternative(
        question=question,
        extra_cost=(other.objective or 0) - (best.objective or 0),
        proven=best.is_proven and other.is_proven,
        saves=_without(theirs.saved, ours.saved + hosted),
        drops=_without(ours.saved, theirs.saved),
        recomputes=_without(theirs.recomputed, ours.recomputed),
        offloads=_without(hosted, ours.offloaded),
        keeps=tuple(name for name in _without(ours.offloaded, hosted) if name in theirs.saved),
    )


def _plan(solution: Solution) -> Plan:
    assert solution.plan is not None  # solve() raises where there is none
    return solution.plan


def _without(names: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    excluded = set(others)
    return tuple(name for name in names if name not in excluded)


def _words(name: str, other: Alternative, unit: str) -> list[str]:
    plan = f"A plan that {other.question}"
    if other.extra_cost is None:
        return [f"{plan} does not exist: {other.conflict}"]
    if other.extra_cost == 0:
        sentence = f"{plan} costs no more{': there are several best plans' if other.proven else ''}."
    elif other.extra_cost < 0:
        less = human_price(-other.extra_cost, unit)
        sentence = f"{plan} costs {less} less: the solver is a heuristic, and missed it. Take an exact one."
    else:
        least = "at least " if other.proven else ""
        sentence = f"{plan} costs {least}{human_price(other.extra_cost, unit)} more."
    steps = (
        ("save", other.saves),
        ("no longer save", other.drops),
        ("offload", other.offloads),
        ("keep on the device", other.keeps),
        ("recompute", other.recomputes),
    )
    changes = [f"{verb} {_listed(others)}" for verb, names in steps if (others := _without(names, (name,)))]
    which = "The best such plan" if other.proven else "The one that was found"
    return [sentence, f"{which} would {'; would '.join(changes)}."] if changes else [sentence]


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
