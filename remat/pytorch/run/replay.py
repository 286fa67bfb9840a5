"""Finds the plan for a graph among plans that were made before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from remat.answer.plan import Plan, checked_plan
from remat.errors import InvalidOption, InvalidPlan
from remat.facts.argument_checks import checked_list
from remat.facts.graph import Graph
from remat.problem.constraints import base_problem
from remat.proof.certify import check_plan

Plans = Plan | str | Path | Sequence[Plan | str | Path]
"""Plans to replay, or their files."""


def plans_of(plans: Plans) -> tuple[Plan, ...]:
    """Returns plans as a tuple, and reads those that are named by their file."""
    if hasattr(plans, "plan"):  # a solution
        checked_plan(plans)
    several = [plans] if isinstance(plans, Plan | str | Path) else checked_list("plan", plans, InvalidOption)
    if not several or "" in several:
        raise InvalidOption(f"plan must be a plan, a file or several of them, got {plans!r}; leave it out to solve")
    return tuple(Plan.load(one) if isinstance(one, str | Path) else checked_plan(one) for one in several)


def plan_for(graph: Graph, plans: Sequence[Plan]) -> Plan:
    """Finds the plan that was made for a graph, and checks it.

    A plan without the signature of a graph is tried for every graph. If several plans match, the first legal one is
    taken: if equal blocks are compiled one by one, the first block has an input that needs no gradient, and so another
    plan than the other blocks.
    """
    wrong: InvalidPlan | None = None
    for plan in sorted(plans, key=lambda plan: plan.graph != graph.signature):
        if plan.graph in (graph.signature, ()):
            try:
                check_plan(base_problem(graph, offload=True), plan)
            except InvalidPlan as error:
                wrong = wrong or error
            else:
                return plan
    if wrong is not None:
        raise wrong
    now = set(graph.signature)
    nearest = min(plans, key=lambda plan: len(now.symmetric_difference(plan.graph)))
    others = f"The other {len(plans) - 1} plans differ as much or more. " if len(plans) > 1 else ""
    nearest.check_is_for(graph, others + _what_to_do(nearest.graph, graph))
    raise AssertionError  # no plan has this graph's signature


def _inputs(signature: Sequence[str]) -> list[str]:
    return [line for line in signature if ": placeholder" in line]


def has_symbols(signature: Sequence[str]) -> bool:
    """Returns whether the signature is that of a graph for many sizes, with symbols among its inputs."""
    return any(": placeholder symint" in line for line in signature)


# Without names, which change if another operator comes before.
def _operators(signature: Iterable[str]) -> Counter[str]:
    return Counter(line.partition(": ")[2].partition(", of ")[0] for line in signature)


def _what_to_do(planned: Sequence[str], graph: Graph) -> str:
    signature = graph.signature
    then, now = has_symbols(planned), has_symbols(signature)
    if now and not then:
        return (
            "A second size came, and Dynamo made a graph for all sizes, with other values; the plan is for one size. "
            "Compile with dynamic=False, with a plan for each size: plan=[a, b]"
        )
    if then and not now:
        return "The plan is for symbolic sizes: compile with dynamic=True"
    if _inputs(planned) == _inputs(signature):
        forward = [line for line, v in zip(signature, graph.plannable.tolist(), strict=True) if graph.in_forward[v]]
        if _operators(forward) <= _operators(planned) != _operators(signature):
            return (
                "The inputs are the same, and so is the forward pass: other inputs need gradients now (requires_grad, "
                "of the batch or of parameters). Capture and solve with those that are trained"
            )
        return (
            "The inputs are the same: the model has changed, or it was captured for another device, or another part of "
            "it was captured (with the loss, or without), or other inputs need gradients. Capture and solve what is "
            "trained"
        )
    return (
        "For a batch of another size, such as the last one of an epoch: leave it out (DataLoader(drop_last=True)), or "
        "give a plan for each size: plan=[a, b]. Without plan=, each graph is solved when it is compiled; with "
        'on_error="fallback", a graph without a plan takes PyTorch\'s own, with a warning'
    )
