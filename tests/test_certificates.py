"""Nothing wrong gets past `certify`: flows, plans and claims are corrupted one by one."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from depth import drawn
from helpers import FLOW, each, largest_price
from hypothesis import assume, given
from hypothesis import strategies as st

from remat import InvalidOption, InvalidPlan, Plan, Problem, Solution, TerminationReason, certify, check_plan, solve
from remat.answer.solution import Certificate, ClaimedBound, Enumeration, FlowCertificate
from remat.errors import CertificateRejected, InvalidProblem
from remat.plugin import SINK, Bans, Choice, Multipliers, Network, Reduction, Solver, Termination
from remat.proof.budget import least_bytes
from remat.proof.certify import check_flow, proven_bound
from remat.testing import problems
from solvers import Exhaustive

# x -> a -> b -> c, with c needed. Cheapest: save a (3), recompute b and c (1 each).
CHAIN = Problem.of(
    [9, 3, 6, 8],
    edges=[(0, 1), (1, 2), (2, 3)],
    needed=[3],
    recompute_cost=[0, 4, 1, 1],
    names=["x", "a", "b", "c"],
    cannot_save={2: "a tuple"},
    cannot_recompute={0: "an input"},
)
BEST = Plan(saved=("a",), recomputed=("b", "c"))


def honest() -> tuple[Solution, np.ndarray]:
    solution = solve(CHAIN)
    return solution, solution.certificate.flow


def test_the_honest_solution_passes() -> None:
    solution, _ = honest()
    certify(CHAIN, solution)
    assert (solution.plan, solution.objective, solution.is_proven) == (BEST, 5, True)


def with_arc(flow: np.ndarray, change: int) -> np.ndarray:
    """The flow with another one on an arc that it saturates."""
    bent = flow.copy()
    bent[np.flatnonzero((flow > 0) & (flow == Reduction.of(CHAIN).network.capacities))[0]] += change
    return bent


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        pytest.param(lambda flow: flow * 0, "the flow proves the bound 0, but ortools claims 5", id="too small"),
        pytest.param(lambda flow: -flow, "must be between 0 and the capacity", id="negative"),
        pytest.param(lambda flow: with_arc(flow, +1), r"flow\[\d+\] must be between .* got \d", id="over capacity"),
        pytest.param(lambda flow: with_arc(flow, -1), "not conserved at vertex", id="not conserved"),
        pytest.param(lambda flow: flow[:-1], r"int64 of shape \(\d+,\), got int64 of shape", id="too short"),
        pytest.param(lambda flow: flow.reshape(1, -1), "a flow must be int64 of shape", id="two-dimensional"),
        pytest.param(lambda flow: flow.astype(np.float64), "a flow must be int64 .*, got float64", id="floats"),
    ],
)
def test_a_corrupt_flow_is_rejected(corrupt, message: str) -> None:
    solution, flow = honest()
    with pytest.raises(CertificateRejected, match=message):
        certify(CHAIN, replace(solution, certificate=FlowCertificate(corrupt(flow))))


def test_a_flow_whose_sums_wrap_is_rejected() -> None:
    """Four times 2**62 is 0 in 64 bits, and so would look conserved at vertex 2, and at the sink."""
    ends = [(2, 3), (2, 4), (2, 5), (2, 6), (3, 1), (4, 1), (5, 1), (6, 1)]
    tails, heads = np.array(ends).T
    flow = np.full(len(ends), 2**62)
    with pytest.raises(CertificateRejected, match=r"too much flow at vertex \d: 1\.84e\+19"):
        check_flow(Network(7, tails, heads, flow, infinity=2**62), flow)


@pytest.mark.parametrize(
    ("saved", "recomputed", "message"),
    [
        ("", "bc", "recomputed from a value that is not available: 'b'"),
        ("a", "c", "recomputed from a value that is not available: 'c'"),
        ("a", "b", "needed by the backward pass, but neither saved nor recomputed: 'c'"),
        ("", "xabc", r"cannot be recomputed \(an input\), but is: 'x'"),
        ("b", "c", r"cannot be saved \(a tuple\), but is: 'b'"),
        ("ac", "bc", "both saved and recomputed: 'c'"),
        ("aq", "bc", "Plan.saved names 'q', which is not a value of"),
        ("a", "bcq", "Plan.recomputed names 'q', which is not a value of"),
        ("aa", "bc", "Plan.saved must name each value once"),
    ],
)
def test_an_illegal_plan_is_rejected(saved: str, recomputed: str, message: str) -> None:
    plan = Plan(tuple(saved), tuple(recomputed))
    with pytest.raises(InvalidPlan, match=message):
        check_plan(CHAIN, plan)
    with pytest.raises(InvalidPlan, match=message):
        certify(CHAIN, replace(honest()[0], plan=plan))


def test_a_long_list_of_values_is_shortened() -> None:
    needed = Problem.of([1] * 8, needed=range(8))
    with pytest.raises(InvalidPlan, match="'v0', 'v1', 'v2', 'v3', 'v4' and 3 more"):
        check_plan(needed, Plan((), ()))


@pytest.mark.parametrize("certificate", [Enumeration(16), ClaimedBound("nobody")], ids=str)
@pytest.mark.parametrize(
    ("plan", "cost", "reason", "bound", "error", "message"),
    [
        (BEST, 4, TerminationReason.OPTIMAL, 4, InvalidPlan, "the plan costs 5, but liar claims 4"),
        (BEST, 6, TerminationReason.OPTIMAL, 6, InvalidPlan, "the plan costs 5, but liar claims 6"),
        (BEST, 5, TerminationReason.OPTIMAL, 4, CertificateRejected, "optimality at cost 5 with the bound 4"),
        (BEST, 5, TerminationReason.OPTIMAL, None, CertificateRejected, "optimality at cost 5 with the bound None"),
        (BEST, 5, TerminationReason.FEASIBLE, 6, CertificateRejected, "the bound 6, above its own plan's cost 5"),
        (BEST, 5, TerminationReason.INFEASIBLE, None, CertificateRejected, "claims INFEASIBLE, yet returns a plan"),
        (BEST, 5, TerminationReason.LIMIT, None, CertificateRejected, "claims LIMIT, yet returns a plan"),
        (None, None, TerminationReason.OPTIMAL, 5, CertificateRejected, "claims OPTIMAL without a plan"),
        (None, None, TerminationReason.FEASIBLE, 5, CertificateRejected, "claims FEASIBLE without a plan"),
    ],
)
def test_a_false_claim_is_rejected(
    plan: Plan | None,
    cost: int | None,
    reason: TerminationReason,
    bound: int | None,
    error: type[Exception],
    message: str,
    certificate: Certificate,
) -> None:
    limit = "time" if reason in (TerminationReason.FEASIBLE, TerminationReason.LIMIT) else None
    with pytest.raises(error, match=message):
        certify(CHAIN, Solution(plan, cost, Termination(reason, bound, limit), certificate, "liar"))


@pytest.mark.parametrize("reason", [TerminationReason.OPTIMAL, TerminationReason.FEASIBLE])
def test_nobody_makes_a_solution_whose_bound_is_above_its_objective(reason: TerminationReason) -> None:
    with pytest.raises(CertificateRejected, match="someone claims the bound 6, above its own plan's cost 5"):
        Solution(BEST, 5, Termination(reason, 6), ClaimedBound("nobody"), "someone")
    Solution(BEST, 5, Termination(reason, 5), ClaimedBound("nobody"), "someone")
    Solution(BEST, 5, Termination(reason), ClaimedBound("nobody"), "someone")
    Solution(None, None, Termination(TerminationReason.LIMIT, 6, "time"), None, "someone")


def test_infeasible_needs_a_rule_that_stands_in_the_way() -> None:
    nothing = Solution(None, None, Termination(TerminationReason.INFEASIBLE), None, "someone")
    impossible = replace(CHAIN, cannot_save=CHAIN.cannot_recompute, needed=np.array([True, False, False, True]))
    assert certify(impossible, nothing)
    with pytest.raises(CertificateRejected, match="no rule stands in the way"):
        certify(CHAIN, nothing)


def test_infeasible_under_a_budget_is_proven_by_a_flow_alone() -> None:
    """The fewest bytes that a plan can save are a minimum cut."""
    tight = replace(CHAIN, budget_bytes=least_bytes(CHAIN).weight - 1)
    nothing = Solution(None, None, Termination(TerminationReason.INFEASIBLE), None, "someone")
    assert not certify(tight, nothing)
    proof = least_bytes(tight).certificate
    assert certify(tight, replace(nothing, certificate=proof))
    loose = replace(CHAIN, budget_bytes=least_bytes(CHAIN).weight)
    assert not certify(loose, replace(nothing, certificate=proof))


@dataclass(frozen=True)
class TrustMe(Certificate):
    """A stranger's certificate that says of itself that it proves."""

    proves_optimality: ClassVar[bool] = True

    def __str__(self) -> str:
        return "trust me"


class Boastful(Multipliers):
    """Weights with a bound of their own."""

    def bound(self, least: int, budget_bytes: int | None) -> int | None:
        return 14


THREE = Problem.of(
    [0] * 4,
    edges=[(0, 1), (0, 2), (0, 3)],
    needed=[1, 2, 3],
    recompute_cost=[0, 7, 7, 7],
    save_bytes=[0, 100, 100, 100],
    cannot_recompute={0: "an input"},
    budget_bytes=150,
)


def test_weights_do_not_speak_for_themselves() -> None:
    """The flow proves 11; that 14 is optimal is true, but not proven."""
    honest = solve(THREE, "lagrangian")
    weights = honest.certificate.multipliers
    forged = FlowCertificate(honest.certificate.flow, Boastful(weights.cost, weights.byte))
    with pytest.raises(CertificateRejected, match="a flow's multipliers must be"):
        certify(THREE, replace(honest, termination=Termination(TerminationReason.OPTIMAL, 14), certificate=forged))


def test_weights_of_numpy_do_not_wrap_into_a_proof() -> None:
    """Times a budget of 150, this many a byte is past 64 bits; no flow at all proved a bound of 29."""
    weights = Multipliers(np.int64(188768260955591962), np.int64(3889366525376205244))
    assert (type(weights.cost), type(weights.byte)) == (int, int)
    nothing = np.zeros(len(Reduction.of(THREE).network.tails), np.int64)
    with pytest.raises(
        CertificateRejected, match=r"no bound follows from the flow: .* \* costs \+ .* \* bytes add up to"
    ):
        proven_bound(THREE, FlowCertificate(nothing, weights))


@pytest.mark.parametrize("weights", [Multipliers(10**400, 1), Multipliers(1, 10**30)], ids=["cost", "byte"])
def test_weights_past_62_bits_prove_nothing(weights: Multipliers) -> None:
    solution = solve(THREE, "lagrangian")
    with pytest.raises(CertificateRejected, match="no bound follows from the flow"):
        certify(THREE, replace(solution, certificate=FlowCertificate(solution.certificate.flow, weights)))


class Agreeable(np.ndarray):
    """An array that is never found to exceed anything."""

    def __gt__(self, other: object) -> np.ndarray:
        return np.zeros(self.shape, np.bool_)


@dataclass(frozen=True)
class Liar(Exhaustive):
    """Takes the second-best plan for the best, and says that it is proven."""

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        choice = Choice.from_saved(problem, np.ones(len(problem), np.bool_))
        plan, cost = choice.plan(problem), choice.cost(problem)
        return Solution(plan, cost, Termination(TerminationReason.OPTIMAL, cost), TrustMe(), self.name, is_proven=True)


def test_only_a_verified_flow_is_a_proof() -> None:
    assert not solve(CHAIN, Liar()).is_proven
    assert solve(CHAIN, "ortools").is_proven


@pytest.mark.parametrize(
    ("reason", "limit"),
    [(TerminationReason.OPTIMAL, "time"), (TerminationReason.LIMIT, None), (TerminationReason.NO_PLAN_FOUND, "time")],
)
def test_a_limit_is_named_if_and_only_if_it_stopped_the_search(reason: TerminationReason, limit: str | None) -> None:
    with pytest.raises(ValueError, match="if and only if a limit stopped the solver"):
        Termination(reason, limit=limit)


@each(FLOW)
@drawn(50)
@given(data=st.data())
def test_no_change_of_one_arc_survives(solver: Solver, data: st.DataObject) -> None:
    """Flow is conserved, so one arc alone can change only between the terminals, and then the bound does."""
    problem = data.draw(problems(max_values=8, largest=largest_price(solver, 8)))
    solution = solve(problem, solver)
    flow = solution.certificate.flow.copy()
    assume(len(flow))
    flow[data.draw(st.integers(0, len(flow) - 1))] += data.draw(st.integers(-3, 3).filter(bool))
    with pytest.raises(CertificateRejected):
        certify(problem, replace(solution, certificate=FlowCertificate(flow)))


@drawn(75)
@given(problems(max_values=8))
def test_a_maximum_flow_is_worth_the_sink_s_inflow(problem: Problem) -> None:
    solution, network = solve(problem), Reduction.of(problem).network
    flow = solution.certificate.flow
    assert int(flow[network.heads == SINK].sum()) == check_flow(network, flow)


class Eager(int):
    """A number that is equal to whatever it is compared with, and never too large."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __gt__(self, other: object) -> bool:
        return False

    __hash__ = int.__hash__


class Everywhere(str):
    """A name that hides: it is equal to nothing that it is compared with, in a plan or in a problem."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = str.__hash__


class ShownOnly(tuple):
    """Names that a loop does not see."""

    def __iter__(self):
        return iter(("a",))


class Lawless(Plan):
    """Shows other names than it has."""

    def __getattribute__(self, name: str) -> object:
        return getattr(BEST, name) if name in ("saved", "recomputed") else super().__getattribute__(name)


class Optimal(Solution):
    is_optimal = True


class Certain(Termination):
    def __post_init__(self) -> None: ...


class FreeOfCharge(Problem):
    """Shows other prices than it has."""

    def __getattribute__(self, name: str) -> object:
        prices = super().__getattribute__(name)
        return np.zeros_like(prices) if name in ("save_cost", "recompute_cost") else prices


def put(thing: object, label: str, value: object) -> object:
    """Changes what is frozen, as no constructor would allow."""
    changed = object.__new__(type(thing))
    vars(changed).update(vars(thing) | {label: value})
    return changed


def wrong(**changes: object) -> Solution:
    """The honest solution, with something put where it does not belong."""
    solution = solve(CHAIN)
    for label, value in changes.items():
        solution = put(solution, label, value)
    return solution  # type: ignore[return-value]


def bound(value: object) -> Termination:
    return put(solve(CHAIN).termination, "bound", value)  # type: ignore[return-value]


def unlocked() -> FlowCertificate:
    return put(solve(CHAIN).certificate, "flow", np.array(honest()[1]))  # type: ignore[return-value]


def locked_by_flag() -> FlowCertificate:
    flow = np.array(honest()[1])
    flow.setflags(write=False)
    return put(unlocked(), "flow", flow)  # type: ignore[return-value]


FORGED = {
    "a number that is equal to all, as objective": lambda: wrong(objective=Eager(4)),
    "a truth value as objective": lambda: wrong(objective=True),
    "a float as objective": lambda: wrong(objective=5.0),
    "a number of numpy as objective": lambda: wrong(objective=np.int64(5)),
    "a number that is equal to all, as bound": lambda: wrong(termination=bound(Eager(4))),
    "a number of numpy as bound": lambda: wrong(termination=bound(np.int64(5))),
    "a solution of another class": lambda: Optimal(**vars(solve(CHAIN))),
    "no solution at all": lambda: None,
    "a termination of another class": lambda: wrong(termination=Certain(TerminationReason.OPTIMAL, 5)),
    "a reason that is none": lambda: wrong(termination=put(bound(5), "reason", "OPTIMAL")),
    "a plan of another class": lambda: wrong(plan=Lawless(("x",), ())),
    "a plan's names in another class": lambda: wrong(plan=put(BEST, "saved", ShownOnly(("x", "c")))),
    "a plan's names in a list": lambda: wrong(plan=put(BEST, "saved", ["a"])),
    "a name of another class": lambda: wrong(plan=put(BEST, "saved", ("a", Everywhere("a")))),
    "a flow that can be written to": lambda: wrong(certificate=unlocked()),
    "a flow that can be unlocked": lambda: wrong(certificate=locked_by_flag()),
    "a flow of another class": lambda: wrong(certificate=put(unlocked(), "flow", honest()[1].view(Agreeable))),
    "weights of another class": lambda: wrong(certificate=put(solve(CHAIN).certificate, "multipliers", Boastful(1, 0))),
    "weights below zero": lambda: wrong(
        certificate=put(solve(CHAIN).certificate, "multipliers", put(Multipliers(), "cost", -1))
    ),
    "weights of another kind of number": lambda: wrong(
        certificate=put(solve(CHAIN).certificate, "multipliers", put(Multipliers(), "cost", Eager(1)))
    ),
}


@pytest.mark.parametrize("forge", FORGED.values(), ids=FORGED.keys())
def test_only_exact_types_prove_anything_and_nothing_else_gets_past_solve(forge: Any) -> None:
    with pytest.raises((CertificateRejected, InvalidPlan)):
        certify(CHAIN, forge())

    class Forger(Exhaustive):
        def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
            return forge()

    with pytest.raises((CertificateRejected, InvalidPlan)):
        solve(CHAIN, Forger())


TAMPERED = {
    "a problem of another class": lambda: FreeOfCharge(**{f.name: getattr(CHAIN, f.name) for f in fields(CHAIN)}),
    "not a problem": lambda: "CHAIN",
    "a price below zero": lambda: put(CHAIN, "save_cost", np.array([9, 3, 6, -8])),
    "prices that wrap": lambda: put(CHAIN, "save_cost", np.full(4, 2**61)),
    "a column of another class": lambda: put(CHAIN, "save_cost", put_flag(np.array([9, 3, 6, -8]).view(Agreeable))),
    "a name of another class": lambda: put(CHAIN, "names", ("x", "a", "b", Everywhere("c"))),
    "bans of another class": lambda: put(CHAIN, "cannot_save", dict.fromkeys(range(4))),
    "bans without a reason": lambda: put(CHAIN, "cannot_save", put(CHAIN.cannot_save, "codes", np.array([0, 0, 7, 0]))),
    "a use that runs backwards": lambda: put(CHAIN, "producers", np.array([3, 1, 2])),
    "a budget below zero": lambda: put(CHAIN, "budget_bytes", -1),
    "a budget that is no number": lambda: put(CHAIN, "budget_bytes", math.nan),
}


def put_flag(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


@pytest.mark.parametrize("tamper", TAMPERED.values(), ids=TAMPERED.keys())
def test_a_problem_is_checked_again_as_it_is_now(tamper: Any) -> None:
    solution = solve(CHAIN)
    with pytest.raises(InvalidProblem):
        certify(tamper(), solution)
    with pytest.raises(InvalidProblem):
        check_plan(tamper(), BEST)


def test_what_is_cached_counts_for_nothing() -> None:
    """The masks of bans, and the positions of names, are computed once; here they are changed since."""
    bans = put(CHAIN.cannot_recompute, "mask", np.zeros(4, np.bool_))
    lifted = put(CHAIN, "cannot_recompute", bans)
    with pytest.raises(InvalidPlan, match=r"cannot be recomputed \(an input\), but is: 'x'"):
        certify(lifted, wrong(plan=Plan((), ("x", "a", "b", "c")), objective=6, termination=bound(6)))  # type: ignore[arg-type]
    swapped = put(CHAIN, "index", {"x": 0, "a": 1, "b": 3, "c": 2})
    assert certify(swapped, solve(CHAIN))  # type: ignore[arg-type]
    assert check_plan(swapped, BEST) == 5  # type: ignore[arg-type]
    with pytest.raises(InvalidPlan, match=r"cannot be recomputed \(an input\), but is: 'x'"):
        check_plan(lifted, Plan((), ("x", "a", "b", "c")))  # type: ignore[arg-type]


def test_nothing_of_a_problem_or_a_proof_can_be_unlocked() -> None:
    mine = np.array([9, 3, 6, 8])
    mine.setflags(write=False)
    problem, solution = replace(CHAIN, save_cost=mine), solve(CHAIN)
    bans = problem.cannot_save
    columns = (problem.save_cost, problem.needed, problem.producers, bans.codes, bans.mask, solution.certificate.flow)
    for column in columns:
        with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
            column.setflags(write=True)
    mine.setflags(write=True)
    mine[:] = 0
    assert problem.save_cost.tolist() == [9, 3, 6, 8]


def test_what_a_solver_does_to_its_flow_afterwards_changes_no_proof() -> None:
    flow = np.array(honest()[1])
    certificate = FlowCertificate(flow)
    flow[:] = 0
    assert certify(CHAIN, replace(solve(CHAIN), certificate=certificate))


def test_a_solver_that_changes_the_question_answers_another_one() -> None:
    """It lifts the budget, and solves what is left."""

    class Generous(Exhaustive):
        def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
            object.__setattr__(problem, "budget_bytes", None)
            return replace(solve(problem), solver=self.name)

    with pytest.raises(InvalidPlan, match="saves 3 bytes, but the budget is 2"):
        solve(replace(CHAIN, budget_bytes=2, recompute_cost=[0, 4, 1, 1], cannot_recompute=Bans.none(4)), Generous())


def test_a_solver_that_lifts_a_ban_or_swaps_names_answers_another_question() -> None:
    """What it is given is a copy, of which nothing is shared that can be changed."""

    class Meddler(Exhaustive):
        def accept(self, problem: Problem, *, time_limit_s: float | None = None) -> None:
            problem.index.clear()
            object.__setattr__(problem.cannot_recompute, "codes", np.zeros(4, np.int64))
            vars(problem.cannot_recompute).pop("mask", None)

        def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
            return Solution(Plan((), tuple("xabc")), 6, Termination(TerminationReason.OPTIMAL, 6), TrustMe(), self.name)

    mine = replace(CHAIN)
    with pytest.raises(InvalidPlan, match=r"cannot be recomputed \(an input\), but is: 'x'"):
        solve(mine, Meddler())
    assert solve(mine).plan == BEST


@pytest.mark.parametrize("twist", [{"strides": (0,)}, {"dtype": np.dtype(">i8")}, {"shape": (2, 2)}])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_solver_that_twists_a_column_answers_another_question(twist: dict[str, Any]) -> None:
    """Nobody can write to the memory of a column, but how an array reads it can be set."""

    class Twister(Exhaustive):
        def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
            for name, value in twist.items():
                setattr(problem.save_cost, name, value)
            return Solution(BEST, 1, Termination(TerminationReason.OPTIMAL, 1), TrustMe(), self.name)

    mine = replace(CHAIN)
    with pytest.raises(InvalidPlan, match="the plan costs 5, but"):
        solve(mine, Twister())
    assert mine.save_cost.tolist() == CHAIN.save_cost.tolist()
    assert solve(mine).is_proven


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_a_proof_survives_copies_and_pickles_and_stays_locked(copied: Callable[[Any], Any]) -> None:
    problem, solution = copied(CHAIN), copied(solve(CHAIN))
    assert certify(CHAIN, solution)
    assert certify(problem, solution)
    for column in (problem.save_cost, problem.cannot_save.codes, solution.certificate.flow):
        with pytest.raises(ValueError, match="cannot set WRITEABLE flag"):
            column.setflags(write=True)


def test_numbers_are_made_plain_where_they_come_in() -> None:
    """A solver's author who counts with numpy gets a proof all the same."""
    termination = Termination(TerminationReason.OPTIMAL, np.int64(5))  # type: ignore[arg-type]
    counted = Solution(BEST, np.int64(5), termination, honest()[0].certificate, "counts with numpy")  # type: ignore[arg-type]
    assert (type(counted.objective), type(counted.bound)) == (int, int)
    assert certify(CHAIN, counted)
    sly = type("Sly", (int,), {"__lt__": lambda self, other: False, "__gt__": lambda self, other: True})
    with pytest.raises(InvalidOption):
        Multipliers(1, sly(-1))
    with pytest.raises(InvalidProblem):
        replace(CHAIN, budget_bytes=sly(-1))
