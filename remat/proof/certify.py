"""Checks plans and proofs independently: nothing here trusts or calls a solver."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from remat.answer.choice import Choice
from remat.answer.network import SINK, SOURCE, Arcs, Network
from remat.answer.plan import Plan, checked_plan
from remat.answer.solution import FlowCertificate, Solution, Termination, TerminationReason
from remat.errors import CertificateRejected, InvalidPlan, InvalidProblem, UnsupportedProblem
from remat.facts.bans import Bans, cannot_be
from remat.facts.columns import LARGEST_TOTAL, BoolArray, IntArray, any_set, is_frozen, name_column
from remat.problem.feasibility import forced_values
from remat.problem.multipliers import Multipliers
from remat.problem.offload import Offload
from remat.problem.problem import Problem
from remat.words import placed

_SHOWN = 5


def check_plan(problem: Problem, plan: Plan) -> int:
    """Checks that a plan is legal and returns its cost in the problem's unit, in time linear in the graph.

    A plan is legal if every needed value and every operand of a recomputed value is available, only saved values are
    offloaded, no ban is broken, and the bytes saved on the device fit the budget. Values are in topological order, so
    the backward pass can then compute everything that it needs.

    Raises:
        InvalidPlan: the plan is not legal; the message lists every broken rule, with up to five values each.
        InvalidProblem: `problem` is no `Problem`, or was changed into one that no constructor accepts.
    """
    return _cost(_fresh_copy(problem), plan)


def _cost(problem: Problem, plan: Plan) -> int:
    choice = Choice.from_plan(problem, checked_plan(plan))
    saved, recomputed, offload = choice.saved, choice.recomputed, problem.offload
    available = saved | recomputed
    producers, consumers = problem.producers, problem.consumers
    lacks_operand = np.zeros(len(problem), np.bool_)
    lacks_operand[consumers[recomputed[consumers] & ~available[producers]]] = True
    broken = {
        "both saved and recomputed": saved & recomputed,
        "needed by the backward pass, but neither saved nor recomputed": problem.needed & ~available,
        "recomputed from a value that is not available": lacks_operand,
        "offloaded, but not saved": choice.offloaded & ~saved,
    }
    for reason, who in problem.cannot_save.by_reason(saved):
        broken[f"{cannot_be('saved', reason)}, but is"] = who
    for reason, who in problem.cannot_recompute.by_reason(recomputed):
        broken[f"{cannot_be('recomputed', reason)}, but is"] = who
    no_host = [("the problem has no host to offload to", choice.offloaded)]
    for reason, who in no_host if offload is None else offload.banned.by_reason(choice.offloaded):
        broken[f"{cannot_be('offloaded', reason)}, but is"] = who
    complaints = [f"{what}: {_named(problem, who)}" for what, who in broken.items() if any_set(who)]
    for name, sizes, limit in problem.budgets:
        if (saved_bytes := int(sizes[choice.on_device].sum())) > limit:
            complaints.append(f"saves {saved_bytes} bytes{name and f' of {name!r}'}, but the budget is {limit}")
    if not choice.keeps_ties(problem):
        complaints.append("saves and recomputes values of one tied group")
    if complaints:
        raise InvalidPlan("the plan is not legal:\n  " + "\n  ".join(complaints))
    return choice.cost(problem)


def check_flow(network: Network, flow: IntArray) -> int:
    """Checks that a flow is feasible and returns its value, in time linear in the network.

    Raises `CertificateRejected` for a wrong shape, a flow outside the capacities, or a flow that is not conserved.
    """
    if type(flow) is not np.ndarray:  # a subclass may override comparisons
        raise CertificateRejected(f"a flow must be a numpy array, got {type(flow).__name__}")
    if flow.shape != network.capacities.shape or flow.dtype != np.int64:
        raise CertificateRejected(
            f"a flow must be int64 of shape {network.capacities.shape}, got {flow.dtype} of shape {flow.shape}"
        )
    if any_set(flow < 0) or any_set(flow > network.capacities):
        arc = int(np.flatnonzero((flow < 0) | (flow > network.capacities))[0])
        raise CertificateRejected(
            f"flow[{arc}] must be between 0 and the capacity {int(network.capacities[arc])}, got {int(flow[arc])}"
        )
    # Overflowing sums could look conserved. Real flows do not overflow: all prices add up to less than 2**62.
    n = network.num_vertices
    if flow.sum(dtype=np.float64) >= LARGEST_TOTAL:
        through = np.bincount(network.tails, flow, minlength=n) + np.bincount(network.heads, flow, minlength=n)
        if any_set(through >= 2.0**63):
            raise CertificateRejected(f"too much flow at vertex {int(through.argmax())}: {through.max():.2e}")
    excess = np.zeros(n, np.int64)
    np.add.at(excess, network.heads, flow)
    np.subtract.at(excess, network.tails, flow)
    inner = np.flatnonzero(excess)
    inner = inner[(inner != SOURCE) & (inner != SINK)]
    if len(inner):
        raise CertificateRejected(f"flow is not conserved at vertex {int(inner[0])}: excess {int(excess[inner[0]])}")
    return int(excess[SINK])


def certify(problem: Problem, solution: Solution) -> bool:
    """Checks everything that a solution claims: the legality of the plan, its cost, and the proof of optimality.

    A flow certificate is checked against a network that is built again from the problem: no plan weighs less than a
    feasible flow (weak duality). So if the bound of the flow is equal to the plan's cost, the plan is optimal, also
    with a budget (`remat.problem.multipliers`). A flow may also show that no plan fits the budget. For other
    certificates, only consistency is checked.

    The result is about the problem and the solution as they are now, without earlier checks and caches. The problem is
    copied and checked again. The solution must consist of classes of `remat`, plain numbers and text, and a flow in
    memory that is not writable (`remat.facts.columns.frozen`). Code that replaces parts of this package, or bypasses
    Python's objects, is not detected.

    Returns:
        whether it is proven that no plan is better, or that there is none.

    Raises:
        InvalidProblem: `problem` is no `Problem`, or was changed into one that no constructor accepts.
        InvalidPlan: the plan is not legal, or its cost is not what the solution says.
        CertificateRejected: the proof or the bound is wrong, or an object has another class.
    """
    return certify_for(_fresh_copy(problem), solution)


# The constructor checks the copy again, which has no cached columns.
def _fresh_copy(problem: Problem) -> Problem:
    check_is_problem(problem)
    bans: dict[str, Any] = {"cannot_save": problem.cannot_save, "cannot_recompute": problem.cannot_recompute}
    for label, column in bans.items():
        if type(column) is Bans:
            bans[label] = _checked_again(column)
    offload = problem.offload
    if type(offload) is Offload and type(offload.banned) is Bans:
        offload = replace(offload, banned=_checked_again(offload.banned))
    return replace(problem, **bans, offload=offload)


def _checked_again(bans: Bans) -> Bans:
    return Bans(np.array(bans.codes), bans.reasons)  # the constructor trusts frozen codes, and checks a copy


def check_is_problem(problem: object) -> None:
    """Raises `InvalidProblem` for anything but a `Problem`.

    A subclass is refused, too, because it may override the cost of plans.
    """
    if type(problem) is not Problem:
        raise InvalidProblem(
            f"expected a remat.Problem, got {type(problem).__name__}; cost_model.pose(graph) makes one"
        )


def certify_for(problem: Problem, solution: Solution) -> bool:
    """Checks a solution like `certify`, but does not copy the problem: no other code can have changed it."""
    _check_exact(solution)
    if solution.plan is None:
        return _certify_without_plan(problem, solution)
    _check_claim(solution, _cost(problem, solution.plan))
    if type(solution.certificate) is not FlowCertificate:
        return False
    proven = proven_bound(problem, solution.certificate)
    if proven != solution.bound:
        raise CertificateRejected(f"the flow proves the bound {proven}, but {solution.solver} claims {solution.bound}")
    return solution.is_optimal


def proven_bound(problem: Problem, certificate: FlowCertificate) -> int | None:
    """Returns the lower bound that a flow proves on the cost of every plan within the budget; None if no plan fits.

    Raises `CertificateRejected` if the flow is wrong, or proves no bound.
    """
    if (position := certificate.budget) is not None:
        if type(position) is not int or not 0 <= position < len(problem.budgets):
            raise CertificateRejected(f"the problem has no budget at position {position!r}")
        problem = problem.with_one_budget(position)
    try:
        least = proven_weight(problem, certificate)
    except UnsupportedProblem as error:
        raise CertificateRejected(f"no bound follows from the flow: {error}") from error
    weights = certificate.multipliers
    if weights.byte and problem.budget_bytes is None:
        raise CertificateRejected(f"a flow that weighs bytes ({weights}) proves no bound where there is no budget")
    return weights.bound(least, problem.budget_bytes)


def proven_weight(problem: Problem, certificate: FlowCertificate, arcs: Arcs | None = None) -> int:
    """Returns the lower bound that a flow proves on the weight of every choice, whatever the budget is.

    `arcs` is `Arcs.of(problem)`, if it has been computed. Raises `CertificateRejected` if the flow is wrong, and
    `UnsupportedProblem` if the weighted prices add up to 2**62 or more.
    """
    flow, weights = certificate.flow, certificate.multipliers
    if type(weights) is not Multipliers or {type(weights.cost), type(weights.byte)} != {int}:
        raise CertificateRejected(
            f"a flow's multipliers must be remat.problem.multipliers.Multipliers, got {weights!r}"
        )
    if min(weights.cost, weights.byte) < 0:
        raise CertificateRejected(f"a flow's multipliers must not be negative, got {weights!r}")
    reduction = (arcs or Arcs.of(problem)).with_multipliers(weights)
    least = reduction.base + reduction.unit * check_flow(reduction.network, flow)
    if not is_frozen(flow):
        raise CertificateRejected("the array of a flow must be read-only; FlowCertificate(flow) keeps a read-only copy")
    return least


def _check_exact(solution: object) -> None:
    if type(solution) is not Solution:
        raise CertificateRejected(f"a solver must return a remat.Solution, got {solution!r}")
    claim, plan = solution.termination, solution.plan
    _check_type("the termination", claim, Termination)
    _check_type("the reason", claim.reason, TerminationReason)
    _check_type("the solver", solution.solver, str)
    for label, part, kind in (
        ("the objective", solution.objective, int),
        ("the bound", claim.bound, int),
        ("the limit", claim.limit, str),
        ("the plan", plan, Plan),
    ):
        if part is not None:
            _check_type(label, part, kind)
    if plan is not None:
        for label in ("saved", "recomputed", "offloaded"):
            _check_type(f"Plan.{label}", getattr(plan, label), tuple)
            name_column(f"Plan.{label}", getattr(plan, label), InvalidPlan)


def _check_type(label: str, part: object, kind: type) -> None:
    if type(part) is not kind:
        raise CertificateRejected(f"{label} must be of type {kind.__name__}, got {type(part).__name__} {part!r}")


def _check_claim(solution: Solution, cost: int) -> None:
    who, claim = solution.solver, solution.termination
    if cost != solution.objective:
        raise InvalidPlan(f"the plan costs {cost}, but {who} claims {solution.objective}")
    if claim.reason not in (TerminationReason.OPTIMAL, TerminationReason.FEASIBLE):
        raise CertificateRejected(f"{who} claims {claim.reason.name}, yet returns a plan")
    if claim.bound is not None and claim.bound > cost:
        raise CertificateRejected(f"{who} claims the bound {claim.bound}, above its own plan's cost {cost}")
    if claim.reason is TerminationReason.OPTIMAL and claim.bound != cost:
        raise CertificateRejected(f"{who} claims optimality at cost {cost} with the bound {claim.bound}")
    if solution.certificate is None:
        raise CertificateRejected(f"{who} gives no certificate; a ClaimedBound is the least that it can give")


def _certify_without_plan(problem: Problem, solution: Solution) -> bool:
    who, reason = solution.solver, solution.termination.reason
    if reason in (TerminationReason.OPTIMAL, TerminationReason.FEASIBLE):
        raise CertificateRejected(f"{who} claims {reason.name} without a plan")
    if solution.objective is not None:
        raise CertificateRejected(f"{who} claims the objective {solution.objective} without a plan")
    if reason is not TerminationReason.INFEASIBLE:
        return False
    rules = forced_values(problem)
    if any_set(rules.unavailable & problem.needed):
        return True
    if type(solution.certificate) is FlowCertificate and proven_bound(problem, solution.certificate) is None:
        return True
    if problem.tied is None and all(int(sizes.sum()) <= limit for _, sizes, limit in problem.budgets):
        raise CertificateRejected(f"{who} claims INFEASIBLE, but no rule stands in the way of a plan")
    return False


def _named(problem: Problem, mask: BoolArray) -> str:
    indices = np.flatnonzero(mask).tolist()
    names = ", ".join(placed(repr(problem.names[i]), problem.places[i]) for i in indices[:_SHOWN])
    return names + (f" and {len(indices) - _SHOWN} more" if len(indices) > _SHOWN else "")
