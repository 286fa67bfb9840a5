"""Recomputation between fusion groups: against figure 4 of the paper, exhaustive search, and a slow interpreter."""

from __future__ import annotations

from collections.abc import Container, Iterable
from itertools import chain, combinations, pairwise

import numpy as np
import pytest
from helpers import FLOW, each
from hypothesis import given
from hypothesis import strategies as st

from costmodels import FusionPairs
from remat import GraphBuilder, InvalidOption, solve
from remat.errors import InvalidGraph
from remat.improve.cross_kernel import Group, Pass, pair, recompute_across
from remat.plugin import Solver
from remat.testing import dags


def split(g: GraphBuilder, *groups: tuple[str, str], calls: Container[int] = ()) -> Pass:
    """Each group computes the values that both texts name, and writes those of the second; `calls` are of a library."""
    graph = g.build()
    values = [[[graph.index[name] for name in names.split()] for names in group] for group in groups]
    return Pass(graph, tuple(Group.of(*both, generated=k not in calls) for k, both in enumerate(values)))


def named(whole: Pass, values: Iterable[int]) -> set[str]:
    return {whole.graph.names[v] for v in values}


def figure_4(a: int = 8, b: int = 8, op: str = "cos") -> Pass:
    """Group 1 reads `a` and makes b, c, d; `sort` cannot be fused; group 2 reads b, c and the sorted d."""
    g = GraphBuilder()
    g.input("a", bytes=a)
    g.op(op, "a", name="b", bytes=b)
    g.op("cos", "b", name="c")
    g.op("mul", "b", "c", name="d")
    g.op("sort", "d", name="e", fusible=False)
    g.op("add", "b", "c", name="f")
    g.output(g.op("add", "f", "e", name="g"))
    return split(g, ("", "b c d"), ("", "e"), ("", "f g"), calls=[1])


def _accesses(whole: Pass) -> tuple[int, int]:
    """Counts the (reads, writes) of a value by a group."""
    return sum(map(len, whole.traffic.reads)), sum(map(len, whole.traffic.writes))


def test_figure_4_takes_three_reads_and_two_writes_instead_of_four_and_four() -> None:
    found = recompute_across(whole := figure_4())
    after = Pass(whole.graph, found.groups)
    red_reads, red_writes = 1, 1  # the figure counts the two green groups alone
    assert _accesses(whole) == (4 + red_reads, 4 + red_writes)
    assert _accesses(after) == (3 + red_reads, 2 + red_writes)
    assert [named(whole, values) for values in found.again] == [set(), set(), {"b", "c"}]
    assert (found.bytes_before, found.bytes) == (8 * 10, 8 * 7)


def test_a_sum_of_a_large_tensor_is_read_and_what_follows_from_it_computed_again() -> None:
    found = recompute_across(whole := figure_4(a=1000, b=8, op="sum"))
    assert named(whole, found.again[2]) == {"c"}


@each(FLOW)
def test_any_flow_solver_solves_a_pair(solver: Solver) -> None:
    problem = FusionPairs().pose(pair(figure_4(), 0, 2))
    answer = solve(problem, solver)
    assert answer.is_optimal
    assert answer.plan.recomputed == ("b", "c")


class Facts:
    """What is said of each value of a drawn pass, in plain lists."""

    def __init__(self, draw: st.DrawFn, most: int, groups: int) -> None:
        n = draw(st.integers(groups + 1, most))
        self.operands: list[list[int]] = [[] for _ in range(n)]
        for u, v in draw(dags(n)):
            self.operands[v].append(u)
        size = st.integers(0, draw(st.sampled_from((1, 3, 1000))))
        self.bytes = [draw(size) for _ in range(n)]
        self.kind = [draw(st.sampled_from(("", "", "", "", "sort", "rand", "mm", "once"))) for _ in range(n)]
        self.extra_outputs = {v for v in range(n) if draw(st.integers(0, 5)) == 5}
        self.is_input = [not operands for operands in self.operands]
        users = {u for operands in self.operands for u in operands}
        self.outputs = {v for v in range(n) if v not in users or v in self.extra_outputs}
        # Consecutive values, so that groups run one after the other; inlined ones are drawn on top.
        cuts = sorted(draw(st.lists(st.integers(1, n - 1), min_size=groups - 1, max_size=groups - 1, unique=True)))
        bounds = [0, *cuts, n]
        self.members = [{v for v in range(low, high) if not self.is_input[v]} for low, high in pairwise(bounds)]

    def whole(self) -> Pass:
        g = GraphBuilder()
        for v, operands in enumerate(self.operands):
            if self.is_input[v]:
                g.input(f"v{v}", bytes=self.bytes[v])
                continue
            once = "an effect" if self.kind[v] == "once" else None
            g.op(
                "op",
                *(f"v{u}" for u in operands),
                name=f"v{v}",
                bytes=self.bytes[v],
                fusible=self.kind[v] != "sort",
                random=self.kind[v] == "rand",
                compute_bound=self.kind[v] == "mm",
                cannot_recompute=once,
            )
        g.output(*(f"v{v}" for v in sorted(self.outputs)))
        return Pass(g.build(), tuple(Group.of([], members) for members in self.members))

    def may_run_again(self, v: int) -> bool:
        read = sum(self.bytes[u] for u in set(self.operands[v]))
        return not self.kind[v] and 4 * self.bytes[v] >= read


@st.composite
def facts(draw: st.DrawFn, most: int = 9, groups: int = 2) -> Facts:
    return Facts(draw, most, groups)


def moved(drawn: Facts, computed: list[set[int]]) -> int:
    """Runs the groups in order, and counts every distinct read and write of each; naive on purpose.

    What a group computes and need not is found by leaving it out: a value counts only as long as somebody
    wants it, so values are struck off until nothing changes.
    """
    owner = {v: k for k, members in enumerate(drawn.members) for v in members}
    wanted = [set(values) for values in computed]
    while True:
        reads = [{u for v in values for u in drawn.operands[v]} - values for values in wanted]
        written = {u for each in reads for u in each if u in owner} | (drawn.outputs & owner.keys())
        kept = [
            {v for v in values if (v in written and owner[v] == k) or any(v in drawn.operands[w] for w in values)}
            for k, values in enumerate(wanted)
        ]
        if kept == wanted:
            break
        wanted = kept
    memory = {v for v, is_input in enumerate(drawn.is_input) if is_input}
    total = 0
    for k, values in enumerate(wanted):
        registers: set[int] = set()
        loaded: set[int] = set()
        for v in sorted(values):
            loaded |= set(drawn.operands[v]) - registers
            registers.add(v)
        assert loaded <= memory
        stored = {v for v in written & values if owner[v] == k}
        memory |= stored
        total += sum(drawn.bytes[v] for v in loaded) + sum(drawn.bytes[v] for v in stored)
    return total


@given(facts())
def test_a_pairs_optimum_is_that_of_exhaustive_search(drawn: Facts) -> None:
    """Over every set of A's values that B may compute again: B's reads, and the writes that only B asks for."""
    first, second = drawn.members
    read = {u for v in second for u in drawn.operands[v]} - second
    whole = drawn.whole()
    if not read & first:
        with pytest.raises(InvalidOption, match=r"touching"):
            pair(whole, 0, 1)
        return
    answer = solve(FusionPairs().pose(pair(whole, 0, 1)))

    def price(again: set[int]) -> int:
        reads = {u for v in second | again for u in drawn.operands[v]} - second - again
        reads &= first | {u for v in first for u in drawn.operands[v]}  # B's other reads are not in question
        writes = (reads & first) - drawn.outputs
        return sum(drawn.bytes[v] for v in reads) + sum(drawn.bytes[v] for v in writes)

    candidates = sorted(v for v in first if drawn.may_run_again(v))
    subsets = chain.from_iterable(combinations(candidates, size) for size in range(len(candidates) + 1))
    assert answer.objective == min(price(set(subset)) for subset in subsets)


@given(facts(most=14, groups=4))
def test_the_traffic_of_a_pass_is_what_an_interpreter_counts(drawn: Facts) -> None:
    assert drawn.whole().traffic.bytes == moved(drawn, drawn.members)


@given(facts(most=14, groups=4))
def test_recomputing_across_a_pass_only_lowers_its_traffic_and_ends_where_nothing_helps(drawn: Facts) -> None:
    whole = drawn.whole()
    found = recompute_across(whole)
    computed = [members | set(again) for members, again in zip(drawn.members, found.again, strict=True)]
    assert found.bytes == moved(drawn, computed) <= found.bytes_before == moved(drawn, drawn.members)
    assert all(drawn.may_run_again(v) for again in found.again for v in again)
    assert any(found.again) == (found.bytes < found.bytes_before)
    settled = recompute_across(Pass(whole.graph, found.groups))
    assert settled.bytes == found.bytes
    assert not any(settled.again)


@given(facts(most=14, groups=3))
def test_library_calls_compute_nothing_again(drawn: Facts) -> None:
    whole = drawn.whole()
    calls = tuple(Group.of([], group.writes, generated=k != 1) for k, group in enumerate(whole.groups))
    found = recompute_across(Pass(whole.graph, calls))
    assert not found.again[1]
    assert not any(again & calls[1].values for again in found.again)


def test_what_is_inlined_in_its_readers_is_never_written() -> None:
    """The first group may write `d` alone. With `c` in memory, e = sin(cos(c)) would be as cheap."""
    g = GraphBuilder()
    for name in ("x", "y", "z"):
        g.input(name, bytes=8)
    g.op("add", "x", "y", name="b")
    g.op("add", "b", "z", name="c")
    g.output(g.op("cos", "c", name="d"), g.op("sin", "d", name="e"))
    assert not any(recompute_across(split(g, ("b c", "d"), ("", "e"))).again)


def test_a_view_is_read_and_computed_again_as_what_it_looks_at() -> None:
    g = GraphBuilder()
    g.input("x", bytes=8)
    g.op("exp", "x", name="b")
    g.op("permute", "b", name="t", view=True)
    g.op("sort", "b", name="s", fusible=False)
    g.output(g.op("add", "t", "s", name="y"), g.op("mul", "y", "x", name="z"))
    whole = split(g, ("", "b"), ("", "s"), ("", "y z"), calls=[1])
    assert named(whole, whole.traffic.reads[2]) == {"t", "s", "x"}
    found = recompute_across(whole)
    assert named(whole, found.again[2]) == {"b"}
    assert found.bytes == whole.traffic.bytes - 8


def test_a_slice_is_not_read_whole() -> None:
    g = GraphBuilder()
    g.op("mm", g.input("x", bytes=8), name="qkv", bytes=24, compute_bound=True)
    for name in "qkv":
        g.op("slice", "qkv", name=name, bytes=8, view=True)
    g.output(g.op("add", "q", "k", name="y", bytes=8))
    assert split(g, ("", "qkv"), ("", "y"), calls=[0]).traffic.bytes == (8 + 24) + (8 + 8 + 8)


def test_groups_that_contradict_the_graph_are_refused() -> None:
    graph = figure_4().graph
    at = graph.index
    first, last = Group.of([], [at["b"], at["c"], at["d"]]), Group.of([], [at["f"], at["g"]])
    with pytest.raises(InvalidGraph, match=r"Pass\.groups\[0\] must hold positions .* \(0 to 6\).* got 7"):
        Pass(graph, (Group.of([7]),))
    with pytest.raises(InvalidGraph, match=r"write only what it computes, got 1"):
        Pass(graph, (Group(frozenset(), frozenset([1])),))
    with pytest.raises(InvalidGraph, match=r"'b' must have one writer, got groups 0 and 1"):
        Pass(graph, (first, Group.of([], [at["b"]])))
    with pytest.raises(InvalidGraph, match=r"groups\[2\] reads 'c' for 'f', but no group writes it"):
        Pass(graph, (Group.of([at["c"]], [at["b"], at["d"]]), Group.of([], [at["e"]]), last))
    with pytest.raises(InvalidOption, match=r"two different groups of the pass \(0 to 2\), got 1 and 1"):
        pair(figure_4(), 1, 1)


def test_prices_are_a_read_and_a_write_that_only_b_asks_for() -> None:
    whole = figure_4()
    graph = pair(whole, 0, 2)
    terms = FusionPairs().terms(graph)
    price = dict(zip(graph.names, terms.save_cost.tolist(), strict=True))
    assert [price[v] for v in "abcd"] == [8, 16, 16, 8]  # d is written for the sort anyway
    assert np.flatnonzero(graph.output).tolist() == [graph.index["d"]]


def test_a_view_of_what_is_never_written_is_not_there_to_be_read() -> None:
    g = GraphBuilder()
    for name in ("x", "y"):
        g.input(name, bytes=16)
    g.op("add", "x", "y", name="sum")
    for name in ("left", "right"):
        g.op("slice", "sum", name=name, bytes=8, view=True)
    g.op("exp", "left", name="e")
    g.op("exp", "right", name="f")
    g.op("sort", "e", name="s", fusible=False)
    g.output(g.op("add", g.op("mul", "s", "e", name="m"), "f", name="z"))
    whole = split(g, ("sum", "e f"), ("", "s"), ("m", "z"), calls=[1])
    problem = FusionPairs().pose(pair(whole, 0, 2))
    assert [problem.cannot_save.reason(problem.index[v]) for v in ("sum", "left", "e")] == [
        "no group writes it"
    ] * 2 + [None]
    assert not any(recompute_across(whole).again)


def test_a_value_that_two_groups_read_goes_when_both_compute_it_again() -> None:
    """For either alone, reading y instead of v saves nothing; if both do, v is not written, nor its group run."""
    g = GraphBuilder()
    for name in ("x", "y"):
        g.input(name, bytes=8)
    g.op("add", "x", "y", name="v")
    g.op("sum", g.op("mul", "v", "x", name="p"), name="s", bytes=1)
    g.output(g.op("mul", g.op("mul", "v", "x", name="q"), "s", name="z"))
    whole = split(g, ("", "v"), ("p", "s"), ("q", "z"))
    v = whole.graph.index["v"]
    assert all(whole.with_more(b, [v]).traffic.bytes == whole.traffic.bytes for b in (1, 2))
    found = recompute_across(whole)
    assert found.again == (frozenset(), {v}, {v})
    assert found.bytes == whole.traffic.bytes - 3 * 8


def test_what_a_reads_and_b_computes_for_itself_is_there_on_either_side() -> None:
    """`w` is inlined in B, though A reads it from memory."""
    g = GraphBuilder()
    g.op("exp", g.input("x", bytes=8), name="w")
    g.op("mul", "w", "x", name="v")
    g.op("sort", "v", name="s", fusible=False)
    g.output(g.op("mul", g.op("add", "v", "w", name="q"), "s", name="z"))
    whole = split(g, ("", "w"), ("", "v"), ("", "s"), ("w q", "z"), calls=[2])
    assert {"w", "w (again)"} <= set(pair(whole, 1, 3).names)
    assert named(whole, recompute_across(whole).again[3]) == {"v"}
