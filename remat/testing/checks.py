"""For the tests of solvers, cost models and estimators, yours included. Needs `hypothesis`.

One function each decides whether a plug-in keeps the contract of `remat`:

    from remat.testing.checks import check_solver

    def test_my_solver_conforms():
        check_solver(MySolver)

The strategies `dags`, `problems` and `graphs` draw small inputs with what solvers stumble over:
zeros, ties, diamonds, disconnected parts, bans, prices and sizes past 2**33. They reject nothing
and shrink to two values.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from itertools import permutations, product
from typing import TypeVar

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Flaky

from remat.answer.choice import Choice
from remat.answer.registry import FALLBACK_SOLVER
from remat.answer.solution import Reason, Solution
from remat.answer.solver import Feature, Solver
from remat.errors import Infeasible, RematError, UnsupportedProblem
from remat.facts.columns import LARGEST_TOTAL
from remat.facts.graph import Graph, Region
from remat.facts.graph_builder import GraphBuilder
from remat.problem.costmodel import CostModel, Terms
from remat.problem.estimator import Estimator
from remat.problem.feasibility import check_feasible
from remat.problem.problem import Problem
from remat.proof.solve import solve
from remat.testing.strategies import dags, graphs, problems

__all__ = ["check_cost_model", "check_estimator", "check_solver", "dags", "graphs", "problems"]

_T = TypeVar("_T")


def check_solver(solver: type[Solver] | Solver, *, max_examples: int = 100) -> None:
    """Checks that a solver keeps its contract, on random problems of up to 8 values, some of 30, and crossing flows.

    - Its options are a frozen, hashable dataclass with a readable repr.
    - Its plans are legal and cost what it says; its proofs hold (`remat.proof.certify`).
    - If it is `exact`, no plan is cheaper than its own; in any case a bound is a bound, and
      OPTIMAL is said of optimal plans only. INFEASIBLE is said where there is no plan.
    - It takes what it declares (`features`, `largest_capacity`, `max_values`), refuses the rest
      with `UnsupportedProblem`, and returns the same plan for the same problem.

    Args:
        solver: a class, checked with its default options, or a configured instance.
        max_examples: problems to draw, with a budget and without each.

    Raises:
        AssertionError: what is wrong, and with which problem, as code that rebuilds it.
    """
    chosen = solver() if isinstance(solver, type) else solver
    _check_options(chosen)
    _require(_hashes(chosen), f"{chosen!r} must be hashable, by its options")
    size = min(chosen.max_values or 8, 8)
    for budget in (False, True):
        drawn = problems(min_values=min(2, size), max_values=size, budget=budget, feasible=None)
        _for_all(drawn, max_examples, chosen, lambda problem: _check_answer(chosen, problem))
    if size >= 4:
        _for_all(st.sampled_from(_crossings()), 24, chosen, lambda problem: _check_answer(chosen, problem))
    if chosen.max_values is None:
        drawn = problems(min_values=20, max_values=30, largest=1000)
        _for_all(drawn, max(max_examples // 10, 1), chosen, lambda problem: _check_larger(chosen, problem))
    _check_refusals(chosen)


def check_cost_model(model: type[CostModel] | CostModel, *, max_examples: int = 100) -> None:
    """Checks that a cost model keeps its contract, on random graphs of up to 12 values.

    - Its options are a frozen dataclass with a readable repr.
    - It prices every value with a non-negative integer, and prices the same graph the same.
      Names and storage ids are labels: other ones change no price and no ban.
    - Its problems have the values of the graph that the forward pass can compute, and respect
      the graph's facts: an input is never recomputed, a tuple never saved.
    - Where the graph forbids nothing, the model leaves a plan.
    - `model + model` costs twice as much and forbids the same.

    Args:
        model: a class, checked with its default options, or a configured instance.
        max_examples: graphs to draw, with facts and annotations and without each.

    Raises:
        AssertionError: what is wrong, and with which graph.
    """
    chosen = model() if isinstance(model, type) else model
    _check_options(chosen)
    _require(isinstance(getattr(chosen, "unit", None), str), f"{chosen!r} must have a unit: that of its prices")
    _for_all(graphs(), max_examples, chosen, lambda graph: _check_terms(chosen, graph))
    _for_all(graphs(), max_examples, chosen, lambda graph: _check_facts(chosen, graph))
    _for_all(graphs(facts=False), max_examples, chosen, lambda graph: check_feasible(chosen.pose(graph)))


def check_estimator(estimator: type[Estimator] | Estimator, *, max_examples: int = 100) -> None:
    """Checks that an estimator keeps its contract, on random graphs of up to 12 values.

    - Its options are a frozen, hashable dataclass with a readable repr, it has a unit, and `data` is a text.
    - It prices every value with a non-negative integer, all together below 2**62; what is not computed
      again (inputs, views, elements of tuples, the tangents' closure) with 0. Sums that could wrap it refuses.
    - It prices the same graph the same. Names and storage ids are labels: other ones change no price.

    Args:
        estimator: a class, checked with its default options, or a configured instance.
        max_examples: graphs to draw.

    Raises:
        AssertionError: what is wrong, and with which graph.
    """
    chosen = estimator() if isinstance(estimator, type) else estimator
    _check_options(chosen)
    _require(_hashes(chosen), f"{chosen!r} must be hashable, by its options")
    _require(isinstance(getattr(chosen, "unit", None), str), f"{chosen!r} must have a unit: that of its prices")
    is_text = isinstance(chosen.data(), str)  # pyright: ignore[reportUnnecessaryIsInstance]  # a stranger's
    _require(is_text, f"{chosen!r}.data() must be a text, got {chosen.data()!r}")
    _for_all(graphs(), max_examples, chosen, lambda graph: _check_estimates(chosen, graph))
    for unusual in _unusual_graphs():
        _for_all(st.just(unusual), 1, chosen, lambda graph: _check_estimates(chosen, graph))


def _for_all(
    drawn: st.SearchStrategy[_T], max_examples: int, plugin: Solver | CostModel | Estimator, check: Callable[[_T], None]
) -> None:
    def attempt(about: _T) -> None:
        try:
            check(about)
        except Exception as error:
            what = str(error) if isinstance(error, AssertionError) else f"{plugin!r}: {type(error).__name__}: {error}"
            raise AssertionError(f"{what}\nfor {_code(about)}") from error

    quiet = [HealthCheck.too_slow, HealthCheck.nested_given]
    options = settings(max_examples=max_examples, deadline=None, derandomize=True, database=None)
    try:
        settings(options, suppress_health_check=quiet, report_multiple_bugs=False)(given(drawn)(attempt))()
    except Flaky as error:
        raise AssertionError(f"{plugin!r} is not deterministic: what failed once does not fail again") from error


def _code(about: object) -> str:
    """What was drawn; a problem as code that rebuilds it."""
    if isinstance(about, Graph):
        uses = zip(about.producers.tolist(), about.consumers.tolist(), strict=True)
        return f"{about!r} with {', '.join(f'{about.names[u]} -> {about.names[v]}' for u, v in uses)}"
    if not isinstance(about, Problem):
        return repr(about)
    return (
        f"Problem.of({about.save_cost.tolist()}, "
        f"edges={list(zip(about.producers.tolist(), about.consumers.tolist(), strict=True))}, "
        f"needed={np.flatnonzero(about.needed).tolist()}, "
        f"recompute_cost={about.recompute_cost.tolist()}, save_bytes={about.save_bytes.tolist()}, "
        f"cannot_save={about.cannot_save.as_dict()}, cannot_recompute={about.cannot_recompute.as_dict()}, "
        f"budget_bytes={about.budget_bytes})"
    )


def _require(condition: bool, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def _check_options(plugin: Solver | CostModel | Estimator) -> None:
    cls, parameters = type(plugin), getattr(type(plugin), "__dataclass_params__", None)
    _require(isinstance(getattr(cls, "name", None), str), f"{cls.__name__}.name must be a string: what users type")
    _require(parameters is not None and parameters.frozen, f"{cls.__name__} must be a @dataclass(frozen=True)")
    _require(" at 0x" not in repr(plugin), f"{cls.__name__} must have a repr that shows its options, got {plugin!r}")


def _hashes(solver: Solver | Estimator) -> bool:
    try:
        return hash(solver) == hash(copy.deepcopy(solver))
    except TypeError:
        return False


def _check_answer(solver: Solver, problem: Problem) -> None:
    if problem.budget_bytes is not None and Feature.BUDGET not in solver.features:
        _require(_refuses(solver, problem), f"{solver!r} must refuse a budget with UnsupportedProblem")
        return
    best = _cheapest(problem)
    try:
        first, again = (solve(dataclasses.replace(problem), solver, throw=False) for _ in range(2))
    except UnsupportedProblem as error:
        _require(_is_large(solver, problem), f"{solver!r} refuses what it declares to take ({error})")
    except Infeasible:
        _require(best is None, f"remat.solve finds no plan, but one costs {best}")
    else:
        _check_claims(solver, problem, first, best)
        same = (first.plan, first.termination) == (again.plan, again.termination)
        _require(same, f"{solver!r} is not deterministic: it returns {first}, then {again}")


def _crossings() -> list[Problem]:
    """Two inputs, two needed values, three uses, in every order: 24 problems.

    Whoever sends flow from the input with two uses down the wrong one first has to take it back. Random
    problems hardly ever ask for that: of 400, none caught a search that cannot.
    """
    return [
        Problem.of([1] * 4, edges=uses, needed=[2, 3], cannot_recompute={0: "an input", 1: "an input"})
        for two, v in product((0, 1), (2, 3))
        for uses in permutations([(two, v), (two, 5 - v), (1 - two, 5 - v)])
    ]


def _check_larger(solver: Solver, problem: Problem) -> None:
    """Beyond what can be enumerated, another solver's proof is the yardstick."""
    reference, answer = solve(problem, FALLBACK_SOLVER), solve(problem, solver)
    _require(reference.is_proven, f"{FALLBACK_SOLVER} gives no proof")
    what = f"{solver!r} claims OPTIMAL at cost {answer.objective}, but a plan costs {reference.objective}"
    _require(answer.objective == reference.objective or not answer.is_optimal, what)


def _check_claims(solver: Solver, problem: Problem, answer: Solution, best: int | None) -> None:
    """What `remat.proof.certify` cannot know: whether the claims are true."""
    claim, bound, cost = answer.termination.reason, answer.bound, answer.objective
    what = f"{solver!r} claims {claim.name} at cost {cost} with the bound {bound}, but"
    if best is None:
        _require(claim in (Reason.INFEASIBLE, Reason.LIMIT), f"{what} there is no plan")
        return
    _require(claim is not Reason.INFEASIBLE, f"{what} a plan costs {best}")
    _require(bound is None or bound <= best, f"{what} a plan costs {best}")
    _require(cost == best or not (solver.exact or answer.is_optimal), f"{what} a plan costs {best}")
    _require(answer.is_optimal or not solver.exact, f"{what} it declares itself exact")
    _require(answer.solver == solver.name, f"{solver!r} signs its solution as {answer.solver!r}")
    if answer.plan is not None:
        ordered = Choice.from_plan(problem, answer.plan).plan(problem)
        _require(answer.plan == ordered, f"{solver!r} must list names in the problem's order; use Choice.plan")


def _cheapest(problem: Problem) -> int | None:
    """The least cost of any plan, by looking at all of them; None if there is none."""
    costs: list[int] = []
    options = [(False,) if banned else (False, True) for banned in problem.cannot_recompute.mask.tolist()]
    for flags in product(*options):
        recomputed = np.array(flags, np.bool_)
        saved = problem.needed.copy()
        saved[problem.producers[recomputed[problem.consumers]]] = True
        choice = Choice(saved & ~recomputed, recomputed)
        fits = problem.budget_bytes is None or choice.saved_bytes(problem) <= problem.budget_bytes
        if fits and not (choice.saved & problem.cannot_save.mask).any():
            costs.append(choice.cost(problem))
    return min(costs, default=None)


def _refuses(solver: Solver, problem: Problem, time_limit_s: float | None = None) -> bool:
    try:
        solve(problem, solver, time_limit_s=time_limit_s, throw=False)
    except (UnsupportedProblem, Infeasible) as error:
        return isinstance(error, UnsupportedProblem)
    return False


def _is_large(solver: Solver, problem: Problem) -> bool:
    """Whether the prices, or the bytes that break ties, may be beyond `largest_capacity`."""
    prices = np.concatenate([problem.save_cost, problem.recompute_cost])
    units = int(prices.sum()) // max(int(np.gcd.reduce(prices)), 1)
    return solver.largest_capacity is not None and max(units, int(problem.save_bytes.sum())) >= solver.largest_capacity


def _check_refusals(solver: Solver) -> None:
    small = Problem.of([3], needed=[0], cannot_recompute={0: "an input"})
    takes_limit = Feature.TIME_LIMIT in solver.features
    word = "take" if takes_limit else "refuse (with UnsupportedProblem)"
    _require(_refuses(solver, small, time_limit_s=60) != takes_limit, f"{solver!r} must {word} a time limit")
    if solver.max_values is not None:
        large = Problem.of([1] * (solver.max_values + 1))
        _require(_refuses(solver, large), f"{solver!r} must refuse more than {solver.max_values} values")


def _check_prices(what: str, prices: object, graph: Graph) -> None:
    given = np.asarray(prices)
    _require(given.shape == (len(graph),), f"{what} must have one price a value, got {given.shape}")
    _require(given.dtype.kind in "iu", f"{what} must hold integers, got {given.dtype}")
    _require(bool((given >= 0).all()), f"{what} must not be negative, got {given.tolist()}")


def _relabelled(graph: Graph) -> Graph:
    """The same graph with other names and storage ids."""
    labels = tuple(f"value {i}" for i in range(len(graph)))
    return dataclasses.replace(graph, names=labels, storage=len(graph) - graph.storage)


def _unusual_graphs() -> Iterator[Graph]:
    """What random graphs lack: a tuple with its elements, and figures whose products with others wrap."""
    for figure in (100, 2**58 - 1):
        g = GraphBuilder()
        g.input("x", bytes=figure)
        g.op("sort", "x", bytes=0, fusible=False)
        g.op("getitem", "sort", bytes=figure, flops=figure, fusible=False, name="first")
        g.op("getitem", "sort", bytes=figure, flops=figure, fusible=False, name="second")
        g.output(g.op("mm", "first", "second", bytes=figure, flops=figure, compute_bound=True))
        yield g.build()


def _check_estimates(estimator: Estimator, graph: Graph) -> None:
    what = f"{estimator!r}.recompute_cost"
    try:
        prices = estimator.recompute_cost(graph)
    except RematError:
        if int(graph.bytes.max()) < 2**56:
            raise
        return  # larger than anything real: refused, which is better than wrapped
    _check_prices(what, prices, graph)
    total = sum(prices.tolist())
    _require(total < LARGEST_TOTAL, f"{what} must add up to less than 2**62, got {total}")
    never = graph.input | graph.view | graph.tuple_element | (graph.region == Region.TANGENTS)
    priced = [graph.names[i] for i in np.flatnonzero(never & (prices > 0)).tolist()]
    _require(not priced, f"{what} must be 0 for inputs, views, elements and the tangents' closure, but prices {priced}")
    again = np.array_equal(prices, estimator.recompute_cost(graph))
    _require(again, f"{what} prices the same graph differently the second time")
    same = np.array_equal(prices, estimator.recompute_cost(_relabelled(graph)))
    _require(same, f"{what} looks at names or storage ids, which are only labels")


def _check_terms(model: CostModel, graph: Graph) -> None:
    terms = model.terms(graph)
    for label in ("save_cost", "recompute_cost"):
        _check_prices(f"{model!r}: Terms.{label}", getattr(terms, label), graph)
    _require(_same(terms, model.terms(graph)), f"{model!r} prices the same graph differently the second time")
    _require(
        _same(terms, model.terms(_relabelled(graph))), f"{model!r} looks at names or storage ids, which are only labels"
    )
    _require(_same(terms, (model + model).terms(graph), factor=2), f"{model!r} + itself must cost twice as much")


def _same(left: Terms, right: Terms, factor: int = 1) -> bool:
    return (
        np.array_equal(factor * left.save_cost, right.save_cost)
        and np.array_equal(factor * left.recompute_cost, right.recompute_cost)
        and (left.cannot_save, left.cannot_recompute) == (right.cannot_save, right.cannot_recompute)
        and left.budget_bytes == right.budget_bytes
    )


def _check_facts(model: CostModel, graph: Graph) -> None:
    problem, ours = model.pose(graph), np.flatnonzero(graph.region != Region.TANGENTS)
    expected = tuple(graph.names[i] for i in ours.tolist())
    _require(problem.names == expected, f"{model!r} must pose the values outside the tangents, in graph order")
    _require(np.array_equal(problem.needed, graph.needed[ours]), f"{model!r} changes what is needed")
    unsaved = (graph.cannot_save.mask | graph.must_recompute)[ours] & ~problem.cannot_save.mask
    redone = (graph.cannot_recompute.mask | graph.must_save | graph.input)[ours] & ~problem.cannot_recompute.mask
    for what, broken in (("saving", unsaved), ("recomputing", redone)):
        names = ", ".join(expected[i] for i in np.flatnonzero(broken))
        _require(not names, f"{model!r} allows {what} {names}, which the graph or its user forbids")
