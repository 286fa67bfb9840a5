"""`MemoryBudget`: what its budget means, and what it refuses."""

from __future__ import annotations

import math
import re
import warnings
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from commands import run
from depth import deep_except, deeper, drawn, examples
from examples import linear_dropout
from hypothesis import given
from hypothesis import strategies as st
from strategies import Dice, every_legal_mask, late_views, planned, training_steps

import remat
from costmodels import ByteTraffic, MemoryBudget, RecomputeTime
from remat import (
    Corpus,
    CostModel,
    Graph,
    GraphBuilder,
    Infeasible,
    InvalidOption,
    LimitReached,
    Plan,
    UnsupportedProblem,
    solve,
)
from remat.answer.choice import Choice
from remat.answer.plan_facts import PlanFacts
from remat.errors import InvalidProblem, UnknownName
from remat.facts.columns import BoolArray
from remat.improve.byte_budgets import default_plan, default_saved_bytes
from remat.improve.peak_search import relaxation
from remat.predict.memory import Simulator, lower_bound, simulate
from remat.testing import check_cost_model, graphs
from remat.words import parse_bytes
from tests.test_whole_run import WIDTH, Model


def layers(count: int = 4, size: int = 1000) -> Graph:
    """x -> mm -> sin -> mm -> sin -> ...; the gradient of a sin needs what it was taken of."""
    g = GraphBuilder()
    x, w = g.input("x", bytes=size), g.input("w", bytes=64, parameter=True)
    products = []
    for i in range(count):
        products.append(g.op("mm", x, w, name=f"mm{i}", bytes=size, flops=10**9, compute_bound=True, fusible=False))
        x = g.op("sin", products[-1], name=f"sin{i}", bytes=size)
    g.output(x)
    d = g.tangent("d", bytes=size)
    for i in reversed(range(count)):
        d = g.op("mul", d, g.op("cos", products[i], name=f"cos{i}", bytes=size), name=f"dmul{i}", bytes=size)
        d = g.op("mm", d, w, name=f"dmm{i}", bytes=size, compute_bound=True, fusible=False)
    g.gradient(d)
    return g.build()


@deeper
@pytest.mark.parametrize("model", [RecomputeTime("flops"), MemoryBudget(0.0), MemoryBudget(1.0)])
def test_keeps_the_contract_of_cost_models(model: CostModel) -> None:
    """With these options, too: what each of them does by default is in `test_testing.py`."""
    check_cost_model(model, max_examples=examples(60))


@pytest.mark.parametrize(
    ("text", "bytes"),
    [("8GB", 8 * 10**9), ("8 gb", 8 * 10**9), ("1.5KiB", 1536), (" 3 B ", 3), ("0.5MB", 500_000), (".5 TiB", 2**39)],
)
def test_sizes(text: str, bytes: int) -> None:
    assert parse_bytes(text) == bytes
    assert MemoryBudget(text).terms(layers()).budget_bytes == bytes


@pytest.mark.parametrize(
    ("share", "exactly"),
    [
        ("50%", (1, 2)),
        (" 12.5 % ", (1, 8)),
        ("0%", (0, 1)),
        ("100%", (1, 1)),
        (0.3, (3, 10)),
        (1e-5, (1, 10**5)),
        (0, (0, 1)),
    ],
)
def test_shares_are_exact(share: float | str, exactly: tuple[int, int]) -> None:
    """A double of 0.3 is less than three tenths, and of 163,840 bytes one was lost."""
    assert MemoryBudget(share).amount == Fraction(*exactly)
    assert MemoryBudget(share, of="peak").peak_limits == (Fraction(*exactly),)
    assert MemoryBudget(0.3).terms(layers(1, 163_840)).budget_bytes == 49_152


@pytest.mark.parametrize(
    "text",
    ["8 bananas", "101%", "-1%", "%", "1e1%", "1" * 5000 + "B", "٣ B", "", "GB", "-1GB", "8", "8iB", "1e3B", "8GBit"],
)
def test_texts_that_are_no_size(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"MemoryBudget\.budget must be a fraction .* or a size such as"):
        MemoryBudget(text)


@pytest.mark.parametrize("budget", ["0.5", 1500.5, -1, -0.5, 1.5, math.nan, math.inf, True, None, [1], 2.0])
def test_budgets_that_are_none(budget: object) -> None:
    with pytest.raises(
        InvalidOption, match=r"must be a fraction from 0.0 to 1.0, a percentage, a whole number of bytes"
    ):
        MemoryBudget(budget)  # type: ignore[arg-type]


@pytest.mark.parametrize("budget", [1, 2, 1023, np.uint8(8)])
def test_a_number_that_may_mean_two_things_is_refused(budget: int) -> None:
    """All of it, or one byte? Two bytes, or gigabytes?"""
    with pytest.raises(InvalidOption, match=rf'for so many bytes write "{int(budget)} B", for all of it 1.0'):
        MemoryBudget(budget)
    assert MemoryBudget(1024).amount == 1024
    assert MemoryBudget(2e9).amount == 2 * 10**9


@pytest.mark.parametrize(
    ("budget", "same"),
    [(np.uint16(2000), 2000), (np.int64(3000), 3000), (np.int8(0), 0), (np.float64(0.5), 0.5), (np.float16(0.5), 0.5)],
)
def test_budgets_of_numpy_are_those_of_python(budget: float, same: float) -> None:
    """They print alike, too: what is printed is part of the key of compiled code."""
    graph = layers(4, size=10**5)
    assert repr(MemoryBudget(budget)) == repr(MemoryBudget(same))
    assert MemoryBudget(budget).terms(graph).budget_bytes == MemoryBudget(same).terms(graph).budget_bytes


def test_all_of_it_is_all_of_it_past_what_a_double_holds() -> None:
    size = 2**53 + 1
    for budget in ("100%", 1.0):
        assert MemoryBudget(budget).terms(layers(1, size)).budget_bytes == size


def test_options_that_do_not_exist() -> None:
    with pytest.raises(InvalidOption, match=r"MemoryBudget\.of must be one of saved, peak, device, got 'total'"):
        MemoryBudget(of="total")  # type: ignore[arg-type]


def test_a_fraction_is_one_of_what_the_default_plan_saves() -> None:
    """Not of what the fastest plan saves: a chain of cheap operators is recomputed by PyTorch's default."""
    graph = layers(4)
    assert [MemoryBudget(f).terms(graph).budget_bytes for f in (0, 0.0, 0.26, 0.5, 1.0)] == [0, 0, 1040, 2000, 4000]
    graph = Corpus.open().graph("small-layernorm-gelu-mlp")
    default = solve(ByteTraffic(prices="pytorch").pose(graph)).plan
    whole = PlanFacts.of(graph, default).saved_bytes
    assert whole < PlanFacts.of(graph, solve(RecomputeTime().pose(graph)).plan).saved_bytes
    assert [MemoryBudget(f).terms(graph).budget_bytes for f in (0.5, "10%", 1.0)] == [whole // 2, whole // 10, whole]


def test_without_a_default_plan_a_fraction_is_the_least() -> None:
    """A tuple cannot be saved, and the default's rules would not compute this one again."""
    g = GraphBuilder()
    x = g.input("x", bytes=8)
    big = g.op("mm", x, name="big", bytes=2000, fusible=False, cannot_save="a tuple")
    g.output(big)
    g.gradient(g.op("mul", g.tangent("d", bytes=8), big, name="dx", bytes=8))
    graph = g.build()
    assert MemoryBudget(0.5).terms(graph).budget_bytes == default_saved_bytes(graph) == 0


def test_a_fraction_is_at_least_what_can_be_had_by_no_other_way() -> None:
    g = GraphBuilder()
    seed = g.op("seed", g.input("x", bytes=4), name="seed", bytes=8, cannot_recompute="random")
    big = g.op("mm", seed, name="big", bytes=1000, fusible=False, flops=10**12)
    g.output(big)
    g.gradient(g.op("mul", g.tangent("d", bytes=4), g.op("sin", big, bytes=1000), seed, name="dx", bytes=4))
    graph = g.build()
    assert MemoryBudget(0).terms(graph).budget_bytes == 8
    with pytest.raises(
        Infeasible, match=r"(?s)the budget of 7 bytes: every plan saves at least 8 .*cannot be recomputed .random."
    ):
        remat.choose(graph, MemoryBudget("7 B"))


@pytest.mark.parametrize(
    ("budget", "saves", "redoes"), [(0, 0, 4), ("1 kB", 1, 3), (2999, 2, 2), (0.75, 3, 1), (1.0, 4, 0)]
)
def test_recomputes_as_little_as_the_budget_allows(budget: float | int | str, saves: int, redoes: int) -> None:
    graph = layers(4)
    solution = remat.choose(graph, MemoryBudget(budget, estimator="flops"))
    facts = PlanFacts.of(graph, solution.plan)
    assert (facts.saved_bytes, solution.objective) == (1000 * saves, redoes * 10**9)


@drawn(150)
@given(graphs(facts=False), st.floats(0, 1))
def test_inputs_are_free_and_a_storage_counts_once(graph: Graph, fraction: float) -> None:
    problem = MemoryBudget(fraction).pose(graph)
    solution = solve(problem)
    facts = PlanFacts.of(graph, solution.plan)
    assert facts.saved_bytes == Choice.from_plan(problem, solution.plan).saved_bytes(problem)
    assert facts.saved_bytes <= problem.budget_bytes


def test_views_are_had_from_what_owns_their_memory() -> None:
    graph = linear_dropout()
    problem = RecomputeTime().pose(graph)
    assert problem.cannot_save.reason(problem.index["t"]) is None  # of an input: free
    g = GraphBuilder()
    base = g.op("mm", g.input("x", bytes=8), bytes=100, fusible=False, name="base")
    left, right = (g.op("slice", base, view=True, name=name, bytes=50) for name in ("left", "right"))
    g.output(base)
    g.gradient(g.op("mul", g.tangent("d", bytes=8), left, right, name="dx", bytes=8))
    problem = RecomputeTime().pose(g.build())
    assert problem.cannot_save.reason(problem.index["left"]) == "a view: what owns its memory is saved"
    assert solve(problem).plan.saved == ("base",)


def test_a_view_stays_where_its_owner_cannot_be_saved() -> None:
    g = GraphBuilder()
    base = g.op("mm", g.input("x", bytes=8), bytes=100, name="base", cannot_save="a tuple", cannot_recompute="random")
    view = g.op("view", base, view=True, name="view", bytes=100)
    g.output(view)
    g.gradient(g.op("mul", g.tangent("d", bytes=8), view, name="dx", bytes=8))
    assert solve(RecomputeTime().pose(g.build())).plan.saved == ("view",)


def test_units_must_agree() -> None:
    assert MemoryBudget(estimator="flops").unit == "flops"
    with pytest.raises(InvalidProblem, match="must have the same unit to be added"):
        _ = ByteTraffic() + MemoryBudget()


def test_an_alternative_that_a_heuristic_missed() -> None:
    """The best by the byte leaves room for none of the other two, which together are worth more."""
    g = GraphBuilder()
    x = g.input("x", bytes=4)
    sizes = (6, 5, 5)
    kept = [
        g.op("mm", x, name=f"m{i}", bytes=b, flops=f, fusible=False)
        for i, (b, f) in enumerate(zip(sizes, (7, 5, 5), strict=True))
    ]
    g.output(*(g.op("sum", m, name=f"s{m}", bytes=4, fusible=False) for m in kept))
    d = g.tangent("d", bytes=4)
    g.gradient(*(g.op("mul", d, m, name=f"d{m}", bytes=4, fusible=False) for m in kept))
    model = MemoryBudget("10 B", estimator="flops")
    why = remat.explain(g.build(), "m0", model, "knapsack-greedy")
    assert why.alternative.extra_cost == -3
    assert re.search(r"3 FLOP less.*heuristic.*exact", str(why))
    assert re.search(r"found.*\bm1, m2\b", str(why))


# ---- of="peak"


def test_no_problem_can_state_a_peak() -> None:
    with pytest.raises(UnsupportedProblem, match=r"call remat.choose\(graph, cost_model\)"):
        MemoryBudget(0.5, of="peak").pose(layers())


@drawn(150)
@given(graphs(facts=False), st.data())
def test_a_plan_never_exceeds_the_peak(graph: Graph, data: st.DataObject) -> None:
    problem = RecomputeTime().pose(graph)
    unpressed = simulate(graph, solve(problem).plan).peak_bytes
    limit = data.draw(st.integers(2, max(unpressed, 2)))
    model = MemoryBudget(f"{limit} B", of="peak")
    solution = remat.choose(graph, model, throw=False)
    relaxed = relaxation(graph, problem, limit)
    if solution.plan is None:
        infeasible = solution.termination.reason is remat.TerminationReason.INFEASIBLE
        assert infeasible == (lower_bound(graph).bytes > limit)
        return
    assert simulate(graph, solution.plan).peak_bytes <= limit
    assert remat.check_plan(relaxed, solution.plan) == solution.objective
    assert remat.certify(relaxed, solution) == solution.is_proven
    assert solution.bound <= solution.objective


def check_relaxation(graph: Graph, saved: BoolArray) -> None:
    """Checks that a plan keeps within the bytes that are left to all plans whose peak is not above its own."""
    relaxed = relaxation(graph, Dice(1).pose(graph), Simulator(graph).peak(saved))
    assert Choice.from_saved(relaxed, saved[graph.plannable]).keeps_budget(relaxed)


@given(planned())
def test_every_plan_solves_the_relaxation_of_its_peak(drawn: tuple[Graph, BoolArray]) -> None:
    check_relaxation(*drawn)


@drawn(150)
@given(graphs(max_values=8) | training_steps() | late_views())
def test_no_plan_of_a_small_graph_breaks_the_relaxation(graph: Graph) -> None:
    problem, simulator = Dice(1).pose(graph), Simulator(graph)
    relaxed = cache(lambda limit_bytes: relaxation(graph, problem, limit_bytes))
    for saved in every_legal_mask(graph):
        choice = Choice.from_saved(problem, saved[graph.plannable])
        assert choice.keeps_budget(relaxed(simulator.peak(saved)))


def statistic() -> Graph:
    """The last value belongs to the forward pass, and reads what is saved, as the `copy_` of a batch normalization."""
    g = GraphBuilder()
    b = g.op("rand", g.input("x", bytes=4), name="b", bytes=4096, cannot_recompute="draws a seed", fusible=False)
    a = g.op("mm", b, name="a", bytes=4096, compute_bound=True, flops=10**9)
    g.output(g.op("sum", a, name="y", bytes=4, fusible=False))
    g.gradient(g.op("mm", g.tangent("dy", bytes=4), a, name="dx", bytes=4, compute_bound=True))
    g.output(g.op("sum", a, name="z", bytes=4, fusible=False))
    return g.build()


@pytest.mark.parametrize("solver", [None, "cpsat"])
def test_what_the_last_forward_operator_reads_is_not_counted_twice(solver: str | None) -> None:
    graph = statistic()
    peak = simulate(graph, Plan(("a",), ())).peak_bytes
    solution = remat.choose(graph, MemoryBudget(peak, of="peak"), solver)
    assert (solution.plan.saved, solution.objective, solution.bound) == (("a",), 0, 0)


def test_what_a_view_of_an_input_reads_is_read() -> None:
    g = GraphBuilder()
    x = g.input("x", bytes=8)
    shape = g.op("size", x, bytes=5)
    g.output(g.op("mm", shape, bytes=1, compute_bound=True))
    w = g.op("exp", g.op("view", x, shape, view=True), bytes=1, cannot_save="it is wanted later")
    d = g.op("mul", g.tangent("d", bytes=1), w, bytes=1)
    for _ in range(2):
        d = g.op("mm", d, bytes=9, compute_bound=True)
    g.gradient(d)
    graph = g.build()
    check_relaxation(graph, np.isin(graph.names, ["x", "size"]))


def test_fractions_of_the_peak() -> None:
    graph = layers(8)
    fastest = simulate(graph, remat.choose(graph, RecomputeTime()).plan).peak_bytes
    peaks = []
    for fraction in (0.0, 0.25, 0.5, 0.75, 1.0):
        solution = remat.choose(graph, MemoryBudget(fraction, of="peak"))
        peaks.append(simulate(graph, solution.plan).peak_bytes)
        assert peaks[-1] <= max(fraction * fastest, peaks[0])
    assert peaks == sorted(peaks)
    assert peaks[-1] == fastest


def test_a_peak_that_no_plan_reaches_is_proven_by_an_operator() -> None:
    graph = layers(4)
    with pytest.raises(
        Infeasible, match=r"(?s)no plan has a peak of at most 100 bytes: every plan holds .* while \w+ \(.*runs"
    ):
        remat.choose(graph, MemoryBudget("100 B", of="peak"))


def test_a_peak_that_the_search_does_not_reach() -> None:
    graph = layers(4)
    smallest = simulate(graph, remat.choose(graph, MemoryBudget(0.0, of="peak")).plan).peak_bytes
    least = lower_bound(graph).bytes
    if least < smallest:
        with pytest.raises(Infeasible, match=f"no plan has a peak .* CP-SAT.* The smallest found is {smallest}"):
            remat.choose(graph, MemoryBudget(smallest - 1, of="peak"))
        with pytest.raises(LimitReached, match=f"The smallest found is {smallest}"):
            remat.choose(graph, MemoryBudget(smallest - 1, of="peak"), "lagrangian")
    assert np.all(least <= smallest)


def test_bans_that_leave_no_plan_are_explained_whatever_the_peak() -> None:
    g = GraphBuilder()
    both = {"cannot_save": "a tuple", "cannot_recompute": "random"}
    lost = g.op("mm", g.input("x", bytes=8), name="lost", bytes=8, **both)
    g.output(lost)
    g.gradient(g.op("mul", g.tangent("d", bytes=8), lost, name="dx", bytes=8))
    graph = g.build()
    for budget in (0.5, "8 GB", "0 B"):
        model = MemoryBudget(budget, of="peak")
        with pytest.raises(Infeasible, match=r"(?s)no plan can make 'lost' available.*These rules contradict"):
            remat.choose(graph, model)
        solution = remat.choose(graph, model, throw=False)
        assert (solution.plan, solution.termination.reason, solution.is_proven) == (
            None,
            remat.TerminationReason.INFEASIBLE,
            True,
        )


def test_a_search_is_given_what_it_can_use_before_it_starts() -> None:
    """Whether the solver is needed or not: the fastest plan fits 1 GB."""
    graph, model = layers(4), MemoryBudget("1 GB", of="peak")
    with pytest.raises(UnknownName, match="no solver is named 'simplex'"):
        remat.choose(graph, model, "simplex")
    with pytest.raises(UnsupportedProblem, match="'ortools' does not support a byte budget"):
        remat.choose(graph, model, "ortools")
    limited = remat.choose(
        graph, model, "lagrangian", time_limit_s=60
    )  # the search keeps the limit, the solver need not
    assert limited.plan == remat.choose(graph, model, "lagrangian").plan
    with pytest.raises(InvalidOption, match="time_limit_s must be a positive number of seconds, got -1"):
        remat.choose(graph, model, "cpsat", time_limit_s=-1)


def test_a_solver_that_runs_out_of_time_does_not_end_the_search() -> None:
    graph, model = layers(4), MemoryBudget(0.5, of="peak")
    solution = remat.choose(graph, model, "cpsat", time_limit_s=1e-9)
    assert simulate(graph, solution.plan).peak_bytes <= simulate(graph, remat.choose(graph, model).plan).peak_bytes
    assert remat.compare(graph, model, "cpsat", time_limit_s=1e-9)["termination"].isin(["optimal", "feasible"]).all()


def test_one_limit_at_a_time() -> None:
    """The search looks at the peak alone, and would break the other one."""
    with pytest.raises(UnsupportedProblem, match="a limit on peak memory does not support a byte budget"):
        remat.choose(layers(4), MemoryBudget("2 kB") + MemoryBudget("1 GB", of="peak"))


def test_past_what_a_double_holds_the_search_keeps_to_what_is_possible() -> None:
    graph = layers(3, 2**57 + 1)
    solution = remat.choose(graph, MemoryBudget(0.5, of="peak"))
    smallest, fastest = (
        simulate(graph, remat.choose(graph, MemoryBudget(fraction, of="peak")).plan).peak_bytes
        for fraction in (0.0, 1.0)
    )
    assert simulate(graph, solution.plan).peak_bytes <= max(smallest, fastest // 2)


RISES = "small-dropout-mlp"
FALLS = "small-evonorm"


def peak_of_budget(graph: Graph, budget: float, **host: Any) -> tuple[int, list[str]]:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        plan = remat.choose(graph, MemoryBudget(budget, **host)).plan
    return remat.timeline(graph, plan).peak_bytes, [str(warning.message) for warning in heard]


def check_warnings(name: str, share: float, **host: Any) -> None:
    """Checks that a warning comes just where the peak is higher."""
    graph = Corpus.open().graph(name)
    default = remat.timeline(graph, default_plan(graph)).peak_bytes
    peak, told = peak_of_budget(graph, share, **host)
    assert bool(told) == (peak > default)


@pytest.mark.parametrize("share", [0.9, 0.5, 0.1])
@pytest.mark.parametrize("name", [RISES, FALLS, "small-layernorm-gelu-mlp", "small-lstm-cells"])
def test_a_budget_warns_just_where_its_peak_is_above_that_of_the_default(name: str, share: float) -> None:
    check_warnings(name, share)


@pytest.mark.parametrize("share", [0.5, 0.0])
@pytest.mark.parametrize("name", deep_except([RISES, FALLS], [RISES, FALLS, "small-gpt-fused-attention"]))
def test_a_budget_with_a_host_warns_where_its_peak_is_higher(name: str, share: float) -> None:
    check_warnings(name, share, estimator="roofline:device=h100", offload=True)


def test_both_happen() -> None:
    (told,) = peak_of_budget(Corpus.open().graph("vgg16"), 0.1)[1]
    assert "from 3.0 GiB, that of PyTorch's default plan, to 3.6 GiB" in told
    assert not peak_of_budget(Corpus.open().graph(FALLS), 0.5)[1]


@pytest.mark.parametrize("offload", [False, "h100"])
@pytest.mark.parametrize(("blocks", "times"), [(1, 1), (2, 0)], ids=["one graph", "two graphs"])
def test_a_compiled_model_warns_where_the_peak_of_all_its_graphs_is_higher(
    blocks: int, times: int, offload: bool | str
) -> None:
    """Each of the two graphs by itself has a higher peak, and both of them together do not."""
    step = remat.compile(Model(blocks, breaks=blocks > 1), cost_model=MemoryBudget(0.2, offload=offload), codegen=False)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(3):
            step(torch.randn(512, WIDTH)).sum().backward()
    assert len([warning for warning in heard if "raises the predicted peak" in str(warning.message)]) == times


def test_a_command_says_it_in_a_line() -> None:
    ran = run("solve", Corpus.open().path(RISES), "-m", "memory-budget:budget=0.5")
    assert ran.stderr.startswith("warning: this budget of saved memory raises the predicted peak from")
    assert len(ran.stderr.splitlines()) == 1
