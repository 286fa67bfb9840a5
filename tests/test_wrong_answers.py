"""What a plug-in answers is checked where it enters the library: one error, which names the plug-in and what came."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import pytest
from examples import cosines

import remat
from costmodels import ByteTraffic, RecomputeTime
from remat import CostModel, Graph, InvalidPlan, Plan, Problem
from remat.errors import CertificateRejected, InvalidProblem
from remat.plugin import Bans, Estimator, Network, Sides, Solver, Terms
from remat.testing import check_cost_model, check_estimator, check_solver
from solvers import SciPy

pytestmark = pytest.mark.usefixtures("no_shrinking")

GRAPH = cosines()
PROBLEM = ByteTraffic().pose(GRAPH)

WRONG_PRICES: dict[str, Callable[[int], Any]] = {
    "none": lambda n: None,
    "a number": lambda n: 3,
    "a list": lambda n: [0] * n,
    "text": lambda n: "prices",
    "too few": lambda n: np.zeros(n - 1, np.int64),
    "too many": lambda n: np.zeros(n + 1, np.int64),
    "a table": lambda n: np.zeros((n, 1), np.int64),
    "no column": lambda n: np.array(0),
    "fractions": lambda n: np.full(n, 0.5),
    "not a number": lambda n: np.full(n, np.nan),
    "objects": lambda n: np.array([None] * n),
    "flags": lambda n: np.zeros(n, np.bool_),
    "negative": lambda n: np.full(n, -1),
    "too large": lambda n: np.full(n, 2**62),
    "masked": lambda n: np.ma.masked_all(n, np.int64),
}

TOO_LONG = Bans.none(1)


@dataclass(frozen=True)
class Answers(CostModel):
    """Answers what `wrong` makes of right terms."""

    wrong: str = ""

    name: ClassVar[str] = "answers"
    unit: ClassVar[str] = "bytes"

    def terms(self, graph: Graph) -> Any:
        right = Terms.nothing(graph)
        label, _, kind = self.wrong.partition(": ")
        if label in ("save_cost", "recompute_cost"):
            return replace(right, **{label: WRONG_PRICES[kind](len(graph))})
        return {
            "none": None,
            "a pair": (right.save_cost, right.recompute_cost),
            "bans: none": replace(right, cannot_save=None),  # type: ignore[arg-type]
            "bans: of another length": replace(right, cannot_recompute=TOO_LONG),
            "bans: flags": replace(right, cannot_save=graph.input),  # type: ignore[arg-type]
            "budget: negative": replace(right, budget_bytes=-1),
            "budget: a fraction": replace(right, budget_bytes=0.5),  # type: ignore[arg-type]
            "budget: not a number": replace(right, budget_bytes=float("nan")),  # type: ignore[arg-type]
            "offload: text": replace(right, offload="h100"),  # type: ignore[arg-type]
        }[self.wrong]


WRONG_TERMS = [
    *("none", "a pair", "bans: none", "bans: of another length", "bans: flags"),
    *("budget: negative", "budget: a fraction", "budget: not a number", "offload: text"),
    *(f"{label}: {kind}" for label in ("save_cost", "recompute_cost") for kind in WRONG_PRICES),
]


@pytest.mark.parametrize("wrong", WRONG_TERMS)
def test_wrong_terms_are_refused_by_name(wrong: str) -> None:
    model = Answers(wrong)
    for posed in (model, ByteTraffic() + model, model + ByteTraffic()):
        with pytest.raises(InvalidProblem, match=rf"^{re.escape(repr(model))}: what terms\(\) returns.* must .*got "):
            posed.pose(GRAPH)
    with pytest.raises(AssertionError, match=re.escape(repr(model))):
        check_cost_model(model, max_examples=3)


@dataclass(frozen=True)
class Estimates(Estimator):
    wrong: str = "none"

    name: ClassVar[str] = "estimates"
    unit: ClassVar[str] = "ns"

    def recompute_cost(self, graph: Graph) -> Any:
        return WRONG_PRICES[self.wrong](len(graph))


@pytest.mark.parametrize("wrong", WRONG_PRICES)
def test_wrong_estimates_are_refused_by_name(wrong: str) -> None:
    estimator = Estimates(wrong)
    for ask in (lambda: RecomputeTime(estimator).pose(GRAPH), lambda: remat.frontier(GRAPH, estimator=estimator)):
        with pytest.raises(InvalidProblem, match=rf"^{re.escape(repr(estimator))}: what recompute_cost\(\) returns"):
            ask()
    with pytest.raises(AssertionError, match=re.escape(repr(estimator))):
        check_estimator(estimator, max_examples=3)


RIGHT = remat.solve(PROBLEM)
assert RIGHT.plan is not None

WRONG_SOLUTIONS: dict[str, Any] = {
    "none": None,
    "a plan": RIGHT.plan,
    "a number": 3,
    "no plan": replace(RIGHT, plan=None),
    "no price": replace(RIGHT, objective=None),
    "another price": replace(RIGHT, objective=2**40),
    "names that are unknown": replace(RIGHT, plan=Plan(("nobody",), ())),
    "nothing saved": replace(RIGHT, plan=Plan((), ())),
    "no certificate": replace(RIGHT, certificate=None),
    "no name": replace(RIGHT, solver=None),  # type: ignore[arg-type]
    "a list as a plan": replace(RIGHT, plan=["add3"]),  # type: ignore[arg-type]
}


@dataclass(frozen=True)
class Solves(Solver):
    wrong: str = "none"

    name: ClassVar[str] = "solves"

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Any:
        return WRONG_SOLUTIONS[self.wrong]


@pytest.mark.parametrize("wrong", WRONG_SOLUTIONS)
def test_wrong_solutions_are_refused_by_name(wrong: str) -> None:
    solver = Solves(wrong)
    with pytest.raises(
        (CertificateRejected, InvalidPlan), match=rf"^the answer of {re.escape(repr(solver))} is wrong: "
    ):
        remat.solve(PROBLEM, solver)
    with pytest.raises(AssertionError, match=re.escape(repr(solver))):
        check_solver(solver, max_examples=3)


@dataclass(frozen=True)
class Flows(SciPy):
    wrong: str = "none"

    name: ClassVar[str] = "flows"

    def _max_flow(self, network: Network) -> Any:
        flow, _ = super()._max_flow(network)
        source = np.zeros(network.num_vertices, np.bool_)
        return {
            "none": None,
            "the flow alone": flow,
            "three": (flow, None, None),
            "no flow": (None, None),
            "a list": (flow.tolist(), None),
            "too short": (flow[:-1], None),
            "fractions": (flow / 2, None),
            "not a number": (flow * np.nan, None),
            "sides: text": (flow, "sides"),
            "sides: short": (flow, Sides(source[:-1], source)),
            "sides: numbers": (flow, Sides(source.astype(int), source)),  # type: ignore[arg-type]
            "negative": (flow - 10**9, None),
            "too much": (flow + 10**9, None),
        }[self.wrong]


FLOWS = [
    *("none", "the flow alone", "three", "no flow", "a list", "too short", "fractions", "not a number"),
    *("sides: text", "sides: short", "sides: numbers", "negative", "too much"),
]


@pytest.mark.parametrize("wrong", FLOWS)
def test_wrong_flows_are_refused_by_name(wrong: str) -> None:
    solver = Flows(wrong=wrong)
    with pytest.raises((CertificateRejected, InvalidPlan), match=re.escape(repr(solver))):
        remat.solve(PROBLEM, solver)
    with pytest.raises(AssertionError, match=re.escape(repr(solver))):
        check_solver(solver, max_examples=3)
