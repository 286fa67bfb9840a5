"""The examples of the paper and the post, with their exact figures (B is the size of a tensor)."""

from __future__ import annotations

import numpy as np
import pytest
from examples import cosines

import remat
from costmodels import ByteTraffic
from remat import Graph, GraphBuilder, Plan, Problem
from remat.answer.network import Reduction

B = 4096


def solved(graph: Graph, **options: object) -> tuple[Problem, remat.Solution]:
    problem = ByteTraffic(**options).pose(graph)  # type: ignore[arg-type]
    return problem, remat.solve(problem)


def cost_of_saving(problem: Problem, *names: str) -> int:
    saved = np.isin(problem.names, names)
    return remat.check_plan(problem, remat.Choice.from_saved(problem, saved).plan(problem))


def test_f1_saves_the_sum_at_2b_where_both_naive_strategies_cost_4b() -> None:
    problem, solution = solved(cosines(B))
    assert solution.plan.saved == ("add3",)
    assert solution.objective == 2 * B
    assert cost_of_saving(problem, "add3", "cos1") == 4 * B, "what autograd saves"
    assert cost_of_saving(problem, "a", "b", "c", "d") == 4 * B, "recompute everything"


def test_figure_3_source_and_sink_partition() -> None:
    """Section 3.5: source, add3_in, and both vertices of the inputs, add1 and add2 on one side."""
    problem, solution = solved(cosines(B))
    choice = remat.Choice.from_plan(problem, solution.plan)
    available = dict(zip(problem.names, choice.saved | choice.recomputed, strict=True))  # out-vertex on the sink side
    on_sink_side = {name for name in problem.names if available[name]}
    assert on_sink_side == {"add3", "cos1", "sin1", "sin2"}
    assert {problem.names[v] for v in np.flatnonzero(choice.recomputed)} == on_sink_side - {"add3"}


def test_figure_3_network() -> None:
    """The inputs' in-vertices are the source, the needed ones' out-vertices the sink; cos2, which is split there, too,
    would lead nowhere.
    """
    problem, _ = solved(cosines(B))
    reduction = Reduction.of(problem)
    network = reduction.network
    arcs = {(t, h): c for t, h, c in zip(network.tails, network.heads, network.capacities, strict=True)}
    position = problem.index
    vertex_in = {name: int(reduction.in_vertex[position[name]]) for name in problem.names}
    vertex_out = {name: int(reduction.out_vertex[position[name]]) for name in problem.names}
    assert [vertex_in[name] for name in "abcd"] == [0, 0, 0, 0]
    assert vertex_out["sin1"] == vertex_out["sin2"] == 1
    assert arcs[vertex_in["a"], vertex_out["a"]] == B, "an input is read"
    assert arcs[vertex_in["add3"], vertex_out["add3"]] == 2 * B, "an intermediate is written and read"
    assert problem.save_cost[position["cos2"]] == B, "an output is written anyway"
    assert not {vertex_in["cos2"], vertex_out["cos2"]} & {*network.tails, *network.heads}, "but nothing reads it again"
    assert arcs[vertex_out["add2"], vertex_in["add3"]] == network.infinity


def dropout_like(square: bool) -> Graph:
    """f2 of section 2.3 (`x * mask`), and the post's variant (`x * x * mask`)."""
    g = GraphBuilder()
    x = g.input("x", bytes=4 * B)
    rand = g.op("rand_like", x, random=True)
    mask = g.op("lt", rand, name="mask", bytes=B)
    base = g.op("square", x) if square else x
    g.output(g.op("mul", base, mask))
    masked = g.op("mul", g.tangent("grad_out", bytes=4 * B), mask, name="grad_base")
    g.gradient(g.op("mul", masked, x, name="grad_x") if square else masked)
    return g.build()


@pytest.mark.parametrize(("square", "saved"), [(False, ("mask",)), (True, ("x", "mask"))])
@pytest.mark.parametrize("mode", ["conservative", "aggressive"])
def test_dropout_saves_the_bool_mask_and_not_the_random_numbers(
    square: bool, saved: tuple[str, ...], mode: str
) -> None:
    problem, solution = solved(dropout_like(square), mode=mode)
    assert saved == solution.plan.saved
    # Saving the mask moves a quarter of the bytes: 3 of 4 saved (section 2.3).
    assert cost_of_saving(problem, "x", "rand_like") - cost_of_saving(problem, "x", "mask") == 2 * (4 * B - B)


def test_tanh_of_tanh_saves_only_x() -> None:
    """Figure 1: x is in memory, so it costs one read; saving both results costs 2 writes and 2 reads."""
    g = GraphBuilder()
    x = g.input("x", bytes=B)
    inner = g.op("tanh", x, name="inner")
    outer = g.op("tanh", inner, name="outer")
    g.output(outer)
    grad = g.op("tanh_backward", g.tangent("grad_out", bytes=B), outer, name="grad_inner")
    g.gradient(g.op("tanh_backward", grad, inner, name="grad_x"))
    problem, solution = solved(g.build())
    assert solution.plan == Plan(("x",), ("inner", "outer"))
    assert solution.objective == B
    assert cost_of_saving(problem, "inner", "outer") == 2 * B + B, "outer is an output, so written anyway"


def test_a_value_with_several_uses_is_paid_once() -> None:
    g = GraphBuilder()
    x, y, z = (g.input(name, bytes=B) for name in "xyz")
    s = g.op("add", g.op("add", x, y), z, name="s")
    g.output(g.op("sin", s), g.op("cos", s), g.op("exp", s))
    t = g.tangent("t", bytes=B)
    for i in range(3):
        g.gradient(g.op("mul", t, s, name=f"grad_{i}"))
    _, solution = solved(g.build())
    assert solution.plan == Plan(("s",), ())
    assert solution.objective == 2 * B


def test_saving_a_view_is_saving_its_storage_once() -> None:
    """Two views of one product: the storage is saved once, and both views are taken again."""
    g = GraphBuilder()
    x, w = g.input("x", bytes=B), g.input("w", bytes=B)
    mm = g.op("mm", x, w, bytes=B, compute_bound=True)
    left, right = g.op("view", mm, view=True, name="left"), g.op("permute", mm, view=True, name="right")
    g.output(g.op("mul", left, right))
    t = g.tangent("t", bytes=B)
    g.gradient(g.op("mul", t, left, name="grad_right"), g.op("mul", t, right, name="grad_left"))
    problem, solution = solved(g.build())
    assert solution.plan == Plan(("mm",), ("left", "right"))
    assert solution.objective == B, "the product is written anyway; it is read once"
    assert cost_of_saving(problem, "left", "right") == 2 * B


def test_a_view_of_a_written_value_is_written_too() -> None:
    """The view feeds a matrix product, so its base is in memory: one read, not write and read."""
    g = GraphBuilder()
    x, w = g.input("x", bytes=B), g.input("w", bytes=B)
    s = g.op("add", x, w, name="s")
    flat = g.op("view", s, view=True)
    g.output(g.op("mm", flat, w, compute_bound=True))
    g.gradient(g.op("mm", g.tangent("t", bytes=B), flat, compute_bound=True, name="grad_w"))
    graph = g.build()
    assert graph.materialized[graph.index["s"]]
    _, solution = solved(graph)
    assert solution.objective == B


def test_a_forward_output_that_the_backward_needs_costs_one_read() -> None:
    g = GraphBuilder()
    x = g.input("x", bytes=B)
    h = g.op("mm", x, compute_bound=True)
    y = g.op("exp", h, name="y")
    g.output(y)
    g.gradient(g.op("mul", g.tangent("t", bytes=B), y))
    _, solution = solved(g.build())
    # Saving h and recomputing y costs as much; y is closer to the backward pass.
    assert solution.plan == Plan(("y",), ())
    assert solution.objective == B


def test_a_forward_value_that_is_itself_a_gradient_must_be_available() -> None:
    g = GraphBuilder()
    x = g.input("x", bytes=B)
    y = g.op("sin", x)
    g.output(y)
    g.tangent("t", bytes=B)
    g.gradient(g.op("cos", x, name="gradient"))
    problem, solution = solved(g.build())
    assert problem.needed.tolist() == [name == "gradient" for name in problem.names]
    assert solution.plan == Plan(("x",), ("gradient",))


def test_an_input_that_is_also_saved_costs_a_read_and_no_memory() -> None:
    g = GraphBuilder()
    x = g.input("x", bytes=B)
    g.output(g.op("sin", x))
    g.gradient(g.op("mul", g.tangent("t", bytes=B), x))
    problem, solution = solved(g.build())
    assert solution.plan == Plan(("x",), ())
    assert solution.objective == B
    assert problem.save_bytes[problem.index["x"]] == 0
