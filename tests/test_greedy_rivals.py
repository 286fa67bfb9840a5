"""Greedy, the integer program and uniform budgets: on small problems, and what docs/results/greedy.md says of them."""

from __future__ import annotations

import statistics
from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import remat
from experiments.bench.greedy import CASES, EXAMPLE, SHARES, by_ratio, loss
from experiments.rivals.greedy import exact, greedy, knapsack
from remat.facts.columns import BoolArray, IntArray
from tests.results_pages import PAGES, rows_of, sentences

NUMBERS = st.tuples(st.integers(0, 30), st.integers(1, 12))


@st.composite
def knapsacks(draw: st.DrawFn) -> tuple[IntArray, IntArray, int]:
    """Times, sizes and a budget of up to seven candidates."""
    times, sizes = np.array(draw(st.lists(NUMBERS, min_size=1, max_size=7)), np.int64).T
    return times, sizes, draw(st.integers(0, int(sizes.sum())))


def every_answer(count: int) -> list[BoolArray]:
    return [np.array(flags, np.bool_) for flags in product((False, True), repeat=count)]


@given(knapsacks())
def test_greedy_follows_the_rule_of_torchtitan(case: tuple[IntArray, IntArray, int]) -> None:
    """What goes while it fits is the first of all sets that fit, if sets are ordered by their cheapest members."""
    times, sizes, budget = case
    must_go = int(sizes.sum()) - budget
    order = sorted(range(len(sizes)), key=lambda i: times[i] / sizes[i])
    fitting = [gone for gone in every_answer(len(sizes)) if sizes[gone].sum() <= must_go]
    gone = max(fitting, key=lambda gone: tuple(gone[order]))
    if sizes[gone].sum() < must_go:
        smallest = min(sizes[~gone])
        gone[np.flatnonzero(~gone & (sizes == smallest))[0]] = True
    kept = greedy(times, sizes, budget)
    assert (kept == ~gone).all()
    assert sizes[kept].sum() <= budget


@given(knapsacks())
def test_one_candidate_is_all_that_the_ratio_rule_can_lose(case: tuple[IntArray, IntArray, int]) -> None:
    """Dantzig (1957): with a part of the first candidate that does not fit, the rule would be at the bound."""
    times, sizes, budget = case
    best = min(int(times[~kept].sum()) for kept in every_answer(len(sizes)) if sizes[kept].sum() <= budget)
    rule, solved = by_ratio(times, sizes, budget), exact(times, sizes, budget)
    assert times[~solved].sum() == best <= times[~rule].sum() <= best + times.max()
    for kept in (rule, solved):
        assert sizes[kept].sum() <= budget
    assert remat.solve(knapsack(times, sizes, budget), "exhaustive").objective == best


def test_greedy_may_drop_the_dearest_candidate_because_it_is_small() -> None:
    """Two bytes must go, and only the dearest candidate has no more; or one byte, and it is the smallest of all."""
    times, sizes = np.array([100, 10, 11]), np.array([2, 4, 4])
    for budget in (8, 9):
        assert greedy(times, sizes, budget).tolist() == [False, True, True]
        assert by_ratio(times, sizes, budget).tolist() == [True, False, True]


PAGE = sentences(PAGES["greedy"])
ROWS = rows_of("greedy")


def losses(way: str, costs: str) -> list[float]:
    return [loss(row, way, costs) for row in ROWS]


def worst(way: str, costs: str) -> tuple[str, str]:
    lost = losses(way, costs)
    row = ROWS[lost.index(max(lost))]
    return f"{max(lost):.1%}", f"{row['case']} at {row['share']}"


def losses_told(way: str, costs: str) -> str:
    """The median and the worst row, as the tables of the page say them."""
    most, where = worst(way, costs)
    return f"{statistics.median(losses(way, costs)):.2%} | {most} ({where})"


def gains(way: str, other: str) -> list[float]:
    """What one answer costs more than another one, as a part of the step."""
    return [loss(row, way, "independent") - loss(row, other, "independent") for row in ROWS]


def test_the_rows_of_greedy_are_complete_and_no_answer_is_below_its_bound() -> None:
    assert [(row["case"], row["share"]) for row in ROWS] == [*product(CASES, SHARES)]
    for row in ROWS:
        over = {way for way, most in row["over"].items() if most > 0}
        assert over <= {"dp knapsack"}, "the others keep the budget"
        for costs, beyond in (("independent", {"dp knapsack"}), ("whole", over)):
            assert all(row[costs]["bound"] <= cost for way, cost in row[costs].items() if way not in beyond)
        for less, more in (("exact", "ilp"), ("ilp", "greedy"), ("ilp", "by ratio"), ("exact", "greedy knapsack")):
            assert row["independent"][less] <= row["independent"][more]


def test_the_page_of_greedy_has_the_losses_of_each_answer() -> None:
    lines = PAGES["greedy"].splitlines()
    knapsacks = {
        "greedy": "greedy of the pull request | uniform",
        "by ratio": "the dearest per byte first | uniform",
        "ilp": "ILP | uniform",
        "ilp in turn": "ILP | first layers first",
        "greedy knapsack": "PyTorch's `greedy_knapsack` | common",
        "dp knapsack": "PyTorch's `dp_knapsack` | common",
    }
    for way, label in knapsacks.items():
        near = sum(each <= 0.001 for each in losses(way, "independent"))
        assert f"| {label} | {losses_told(way, 'independent')} | {near} |" in lines
    plans = {
        "greedy": "greedy of the pull request",
        "ilp": "ILP, uniform",
        "exact": "the best knapsack, one budget",
        "candidates": "the same values, right prices",
        "uniform": "any values, the same in each layer",
        "best": "any values",
        "budget": "PyTorch's `activation_memory_budget`",
        "choose": "`remat.choose`",
    }
    for way, label in plans.items():
        steps = [row["step"][way] for row in ROWS]
        ends = f"{statistics.median(steps):+.1%} | {max(steps):+.1%}"
        assert f"| {label} | {losses_told(way, 'whole')} | {ends} |" in lines


def test_the_sentences_about_greedy_follow_from_the_rows() -> None:
    more, right = gains("greedy", "ilp"), gains("by ratio", "ilp")
    near = sum(each <= 0.001 for each in losses("greedy knapsack", "independent"))
    best = ROWS[right.index(max(right))]
    assert f"an ILP gains {max(right):.2%} of a step at most ({best['case']} at {best['share']})" in PAGE
    assert f"within 0.1% of a step of the bound at {near} of {len(ROWS)}" in PAGE
    assert f"{len(ROWS)}, and {worst('greedy knapsack', 'independent')[0]} above it at worst" in PAGE
    assert f"gains {statistics.median(more):.2%} of a step in the median, {max(more):.1%} at best" in PAGE
    assert f"more than 1% at {sum(each > 0.01 for each in more)} of {len(ROWS)}" in PAGE
    uniform, turn = losses("ilp", "independent"), losses("ilp in turn", "independent")
    assert f"lose {statistics.median(uniform):.2%} of a step in the median" in PAGE
    assert f"and {worst('ilp', 'independent')[0]} at worst" in PAGE
    assert f"lose {statistics.median(turn):.1%} in the median" in PAGE
    whole = losses("exact", "whole")
    assert f"takes {statistics.median(whole):.1%} of a step more than necessary in the median" in PAGE
    assert f"more than necessary in the median, {worst('exact', 'whole')[0]} at worst" in PAGE
    large, small = (
        [gain for gain, row in zip(more, ROWS, strict=True) if (row["share"] > 0.5) == is_large]
        for is_large in (True, False)
    )
    assert f"gains {max(large):.2%} of a step at most, and {statistics.median(large):.2%} in the median" in PAGE
    assert f"at 0.4 to 0.1, {max(small):.1%} at most, and {statistics.median(small):.1%} in the median" in PAGE
    same, equal = (statistics.median(losses(way, "whole")) for way in ("candidates", "uniform"))
    assert f"the same values lose {same:.2%} in the median, and uniform layers" in PAGE
    assert f"in which anything may be saved, {equal:.2%}." in PAGE
    slower = [late for row in ROWS if (late := row["step"]["choose"] - min(row["step"].values())) > 0.001]
    assert f"At {len(slower)} of {len(ROWS)} budgets another of these plans has a faster step" in PAGE
    assert f"than that of `remat.choose`, by {max(slower):.1%} at most" in PAGE
    ahead = gains("by ratio", "greedy")
    count = sum(each > 0.001 for each in ahead)
    assert f"at {count} of {len(ROWS)}, the greedy of the pull request is, by {max(ahead):.1%} of a step" in PAGE
    over = [row["over"]["dp knapsack"] / row["budget_bytes"] for row in ROWS]
    assert (
        f"plans exceed the budget at {sum(each > 0 for each in over)} of {len(ROWS)}, by {max(over):.2%} at most"
        in PAGE
    )


def test_the_layer_on_the_page_of_greedy_is_that_of_the_rows() -> None:
    (row,) = (row for row in ROWS if "layer" in row)
    assert (row["case"], row["share"]) == EXAMPLE
    budget_of = {one["share"]: one["budget_bytes"] for one in ROWS if one["case"] == row["case"]}
    sizes = [line[2] for line in row["layer"]]
    may_keep = (budget_of[0.8] - budget_of[0.4]) / 4
    assert f"{len(sizes)} candidates of {sum(sizes) / 1e9:.2f} GB, and may keep {may_keep / 1e9:.2f} GB" in PAGE
    found = {(line[0].split(".")[1], line[1]): line for line in row["layer"]}
    labels = {
        "attention": ("_scaled_dot_product_cudnn_attention", "self_attn"),
        "gate projection": ("mm", "mlp.gate_proj"),
        "up projection": ("mm", "mlp.up_proj"),
        "product of both": ("mul", "mlp"),
        "rotated queries": ("add", "self_attn"),
    }
    for label, place in labels.items():
        _, _, size, alone_ns, whole_ns, *who = found[place]
        kept = " | ".join("keeps" if keeps else "" for keeps in who)
        times = f"{alone_ns / 1e6:.2f} | {whole_ns / 1e6:.2f}"
        assert f"| {label} | {size / 1e6:.0f} | {times} | {kept} |" in PAGES["greedy"].splitlines()
    attention, queries = found[labels["attention"]], found[labels["rotated queries"]]
    lost = loss(row, "greedy", "independent")
    assert f"recomputes {attention[3] / 1e6:.1f} ms in each of the four layers, {lost:.1%} of a step" in PAGE
    assert f"take {queries[3] / 1e6:.2f} ms alone, but {queries[4] / 1e6:.2f} ms with the product" in PAGE
