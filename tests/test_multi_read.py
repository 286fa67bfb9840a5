"""Reads counted by backward kernel, on hand-made graphs and against slow and obvious counts."""

from __future__ import annotations

import numpy as np
import pytest
from depth import deeper, examples
from hypothesis import given
from hypothesis import strategies as st

from costmodels import ByteTraffic, MultiRead
from costmodels.backward_kernels import BackwardKernels
from costmodels.byte_traffic import Mode
from costmodels.recompute_rules import RULES
from remat import Graph, GraphBuilder, Problem, solve
from remat.errors import InvalidProblem
from remat.facts.columns import BoolArray
from remat.testing import check_cost_model, graphs

B = 64
OFF = dict.fromkeys(RULES, False)


def prices(problem: Problem, value: str) -> tuple[int, int]:
    """(to save, to recompute) in units of B."""
    i = problem.index[value]
    return int(problem.save_cost[i]) // B, int(problem.recompute_cost[i]) // B


def two_kernels(*, library_call: bool = False) -> Graph:
    """x -> s -> e. The backward pass uses s, then a product, then e; or a product of e."""
    g = GraphBuilder()
    x, w = g.input("x", bytes=B), g.input("w", bytes=B)
    s = g.op("sin", x, name="s", bytes=B)
    e = g.op("exp", s, name="e", bytes=B)
    g.output(g.op("tanh", e, bytes=B))
    first = g.op("mul", g.tangent("dy", bytes=B), s, bytes=B)
    product = g.op("mm", first, e if library_call else w, bytes=B, compute_bound=True)
    g.gradient(g.op("mul", product, e, bytes=B))
    return g.build()


def test_a_value_is_read_by_each_kernel_that_needs_it_or_may_recompute_from_it() -> None:
    problem = MultiRead().pose(two_kernels())
    assert prices(problem, "e") == (2, 0)  # the last kernel reads it, and the forward pass would not write it
    assert prices(problem, "s") == (3, 0)  # the first kernel, and the last, that may compute e from it
    assert prices(problem, "x") == (2, 0)  # in memory anyway


def test_what_may_not_be_recomputed_stops_the_count() -> None:
    g = GraphBuilder()
    x = g.input("x", bytes=B)
    noise = g.op("rand_like", g.op("sin", x, name="s", bytes=B), name="noise", bytes=B, random=True)
    g.output(noise)
    dy = g.tangent("dy", bytes=B)
    g.gradient(g.op("mul", g.op("mul", dy, noise, bytes=B), "s", bytes=B))
    problem = MultiRead().pose(g.build())
    assert prices(problem, "noise") == (1, 0)
    assert prices(problem, "s") == (2, 0)
    assert prices(problem, "x") == (1, 0)


def test_a_library_call_of_the_backward_pass_makes_recomputing_a_write_and_its_reads() -> None:
    problem = MultiRead().pose(two_kernels(library_call=True))
    assert prices(problem, "e") == (3, 3)  # read by the product and by the last kernel; written by either pass
    assert prices(problem, "s") == (2, 0)  # the last kernel cannot compute e on its way


def test_a_library_call_that_reads_a_view_reads_the_value() -> None:
    g = GraphBuilder()
    e = g.op("exp", g.input("x", bytes=B), name="e", bytes=B)
    g.output(g.op("tanh", e, bytes=B))
    view = g.op("view", e, name="view", view=True, bytes=B)
    g.gradient(g.op("mm", g.tangent("dy", bytes=B), view, bytes=B, compute_bound=True))
    problem = MultiRead().pose(g.build())
    assert prices(problem, "e") == (2, 2)  # written and read, by whatever pass
    assert prices(problem, "view") == (2, 0)


def test_the_ban_that_became_a_price_can_be_switched_on() -> None:
    graph = two_kernels(library_call=True)
    rule = "materialized_in_backward"
    assert [r.name for r in MultiRead().active_rules] == [name for name in RULES if name != rule]
    for rules, reason in (({}, None), ({rule: True}, RULES[rule].reason)):
        problem = MultiRead(rules=rules).pose(graph)
        assert problem.cannot_recompute.reason(problem.index["e"]) == reason
    assert MultiRead(mode="aggressive").active_rules == ByteTraffic(mode="aggressive").active_rules


def test_one_kernel_that_reads_everything_once_costs_what_the_classic_model_says() -> None:
    g = GraphBuilder()
    last, tangent = g.input("x", bytes=B), g.tangent("dy", bytes=B)
    values = [last := g.op("sin", last, bytes=B) for _ in range(3)]
    g.output(g.op("mm", last, bytes=B, compute_bound=True))
    for value in values:
        tangent = g.op("mul", tangent, value, bytes=B)
    g.gradient(tangent)
    graph = g.build()
    ours, classic = MultiRead().pose(graph), ByteTraffic().pose(graph)
    assert ours.save_cost[:4].tolist() == classic.save_cost[:4].tolist()
    assert not ours.recompute_cost.any()


def test_free_parameters() -> None:
    g = GraphBuilder()
    x, w = g.input("x", bytes=B), g.input("w", bytes=B, parameter=True)
    g.output(g.op("mul", x, w, bytes=B))
    g.gradient(g.op("mul", g.op("mul", g.tangent("dy", bytes=B), w, bytes=B), x, bytes=B))
    graph = g.build()
    assert prices(MultiRead().pose(graph), "w") == (1, 0)
    assert prices(MultiRead(free_parameters=True).pose(graph), "w") == (0, 0)


def slow_reads(backward: BackwardKernels) -> list[int]:
    """Follows every path from every value."""
    graph = backward.graph
    users: dict[int, list[int]] = {}
    for u, v in zip(graph.producers.tolist(), graph.consumers.tolist(), strict=True):
        users.setdefault(u, []).append(v)

    def reached(v: int) -> set[int]:
        found: set[int] = set()
        for user in users.get(v, []):
            if graph.in_tangents[user]:
                found.update(k for k in range(backward.kernels[user].bit_length()) if backward.kernels[user] >> k & 1)
            elif graph.view[user] or not (backward.not_recomputable[user] or backward.own_kernel[user]):
                found |= reached(user)
        return found

    return [0 if graph.in_tangents[v] else len(reached(v)) for v in range(len(graph))]


@given(graphs(max_values=12), st.integers(0, 2**12 - 1))
def test_reads_are_those_of_every_path(graph: Graph, stuck: int) -> None:
    backward = BackwardKernels.of(graph, np.array([stuck >> v & 1 for v in range(len(graph))], np.bool_))
    assert backward.reads().tolist() == slow_reads(backward)


@given(graphs(max_values=14))
def test_kernels_are_those_of_the_tangents_closure(graph: Graph) -> None:
    kernels = BackwardKernels.of(graph, graph.input).kernels
    assert [bits > 0 for bits in kernels] == graph.in_tangents.tolist()


def moved_bytes(graph: Graph, backward: BackwardKernels, saved: BoolArray) -> int:
    """What a saved set moves: kernels read what they need and cannot compute from the rest; each save is written."""
    uses: dict[int, set[int]] = {}
    crossing = ~graph.in_tangents[graph.producers] & graph.in_tangents[graph.consumers]
    for u, v in zip(graph.producers[crossing].tolist(), graph.consumers[crossing].tolist(), strict=True):
        for kernel in range(backward.kernels[v].bit_length()):
            if backward.kernels[v] >> kernel & 1:
                uses.setdefault(kernel, set()).add(u)
    returned = set(np.flatnonzero(graph.gradient & ~graph.in_tangents).tolist())
    total, written = 0, set[int]()
    for needs, reads in [(of, True) for of in uses.values()] + [(returned, False)]:
        found, stack = set(needs), list(needs)
        while stack:
            if not saved[v := stack.pop()]:
                further = set(graph.operands[v]) - found
                found |= further
                stack += further
        here = {v for v in found if saved[v]}
        written |= here
        total += sum(int(graph.moved_bytes[v]) for v in here if reads)
    return total + sum(int(graph.moved_bytes[v]) for v in written if not backward.written[v])


@given(graphs(facts=False), st.sampled_from(("conservative", "aggressive")))
def test_no_plan_costs_less_than_it_moves_with_one_write_and_only_real_reads(graph: Graph, mode: Mode) -> None:
    """`reads` is the most there can be. What kernels of recomputed values read is left out, so none may run."""
    solution = solve(MultiRead(mode=mode).pose(graph))
    assert solution.is_proven
    problem = ByteTraffic(mode=mode, rules={"materialized_in_backward": False}).pose(graph)
    backward = BackwardKernels.of(graph, graph.for_all_values(problem.cannot_recompute.mask))
    if not backward.own_kernel[np.isin(graph.names, solution.plan.recomputed)].any():
        assert moved_bytes(graph, backward, np.isin(graph.names, solution.plan.saved)) <= (solution.objective or 0)


@deeper
@pytest.mark.parametrize("options", [{"mode": "aggressive"}, {"rules": OFF}, {"free_parameters": True}])
def test_it_conforms(options: dict[str, object]) -> None:
    """With these options, too: what it does by default is in `test_testing.py`."""
    check_cost_model(MultiRead(**options), max_examples=examples(60))  # type: ignore[arg-type]


def test_prices_that_no_integer_holds_are_refused() -> None:
    g = GraphBuilder()
    huge = g.op("sin", g.input("x", bytes=1), name="huge", bytes=2**61)
    g.output(huge)
    back = g.tangent("dy", bytes=1)
    for _ in range(16):
        back = g.op("mm", back, huge, bytes=1, compute_bound=True)
    g.gradient(back)
    with pytest.raises(InvalidProblem, match=r"must add up to less than 2\*\*62"):
        MultiRead().pose(g.build())
