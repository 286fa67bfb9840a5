"""Each rule of the classic cost model, on the smallest graph that tells it from the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from costmodels import ByteTraffic
from costmodels.recompute_rules import LONGEST_CHAIN, RULES
from remat import Graph, GraphBuilder, Problem
from remat.plugin import Region

OFF = dict.fromkeys(RULES, False)


def needed_by_backward(g: GraphBuilder, *values: str) -> Graph:
    tangent = g.tangent("t")
    for value in values:
        g.gradient(g.op("mul", tangent, value))
    return g.build()


def one_value(op: str, **fact: bool) -> Graph:
    g = GraphBuilder()
    banned = g.op(op, g.input("x"), name="banned", **fact)
    g.output(banned)
    return needed_by_backward(g, banned)


def small_reduction() -> Graph:
    g = GraphBuilder()
    x = g.input("x", bytes=100)
    banned = g.op("sum", x, name="banned", bytes=24)
    allowed = g.op("sum", x, name="allowed", bytes=25)
    g.output(banned, allowed)
    return needed_by_backward(g, banned, allowed)


def materialized_in_backward() -> Graph:
    """`banned` feeds a product of the backward pass, through a view; `allowed` one of the forward."""
    g = GraphBuilder()
    x, w = g.input("x"), g.input("w")
    banned, allowed = g.op("sin", x, name="banned"), g.op("cos", x, name="allowed")
    view = g.op("view", banned, view=True)
    g.output(g.op("mul", view, g.op("mm", allowed, w, compute_bound=True)))
    g.gradient(g.op("mm", g.tangent("t"), view, compute_bound=True))
    return g.build()


def used_far_apart() -> Graph:
    """`s` is used at once, and again after a product: recomputing the far use would not fuse."""
    g = GraphBuilder()
    s = g.op("sin", g.input("x"), name="s")
    near = g.op("exp", s, name="allowed")
    product = g.op("mm", near, compute_bound=True)
    far = g.op("cos", s, name="banned")
    g.output(g.op("mul", far, product))
    return needed_by_backward(g, near, far)


def long_fusible_chain() -> Graph:
    g = GraphBuilder()
    value = g.input("x")
    for i in range(LONGEST_CHAIN + 20):
        value = g.op("sin", value, name="banned" if i == LONGEST_CHAIN + 1 else f"sin_{i}")
    g.output(value)
    return needed_by_backward(g, value)


EXAMPLES: dict[str, Callable[[], Graph]] = {
    "random": lambda: one_value("rand_like", random=True),
    "compute_bound": lambda: one_value("mm", compute_bound=True),
    "not_fusible": lambda: one_value("sort", fusible=False),
    "small_reduction": small_reduction,
    "materialized_in_backward": materialized_in_backward,
    "used_far_apart": used_far_apart,
    "long_fusible_chain": long_fusible_chain,
}


def test_every_rule_has_an_example_here() -> None:
    assert list(RULES) == list(EXAMPLES)


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_rule_bans_what_it_says_and_nothing_else_and_switched_off_nothing(name: str, on: bool) -> None:
    problem = ByteTraffic(rules=OFF | {name: on}).pose(EXAMPLES[name]())
    found = {problem.names[i]: reason for i, reason in problem.cannot_recompute.as_dict().items()}
    rules = {name: reason for name, reason in found.items() if reason != "an input of the graph"}
    assert rules == ({"banned": RULES[name].reason} if on else {})


def test_a_far_use_of_an_input_is_not_a_far_use_of_a_value() -> None:
    """An input is in memory, so there is no kernel that its far use should have fused with."""
    g = GraphBuilder()
    x = g.input("x")
    product = g.op("mm", g.op("sin", x), compute_bound=True)
    far = g.op("tanh", x, name="far")
    g.output(g.op("mul", product, far))
    problem = ByteTraffic(rules=OFF | {"used_far_apart": True}).pose(needed_by_backward(g, far))
    assert problem.cannot_recompute.reason(problem.index["far"]) is None


@pytest.mark.parametrize(
    ("op", "fact", "reason"), [("rand_like", {"random": True}, "random"), ("mm", {"compute_bound": True}, None)]
)
def test_of_what_the_backward_pass_alone_needs_only_draws_are_banned(
    op: str, fact: dict[str, bool], reason: str | None
) -> None:
    """A product that only the backward pass needs is computed once in any case: not *re*computed."""
    g = GraphBuilder()
    x = g.input("x")
    g.output(g.op("sin", x))
    either = g.op(op, x, name="either", **fact)
    graph = needed_by_backward(g, either, g.op("exp", either))
    assert graph.region[graph.index["either"]] == Region.EITHER
    problem = ByteTraffic().pose(graph)
    assert problem.cannot_recompute.reason(problem.index["either"]) == reason


def test_modes() -> None:
    assert [rule.name for rule in ByteTraffic().active_rules] == list(RULES)
    assert [rule.name for rule in ByteTraffic(mode="aggressive").active_rules] == ["random", "compute_bound"]
    assert not ByteTraffic(mode="aggressive", rules={"random": False, "compute_bound": False}).active_rules


def test_views_are_never_banned() -> None:
    g = GraphBuilder()
    product = g.op("mm", g.input("x"), compute_bound=True)
    view = g.op("slice", product, name="view", bytes=1, view=True, fusible=False)
    g.output(view)
    problem = ByteTraffic().pose(needed_by_backward(g, view))
    assert problem.cannot_recompute.reason(problem.index["view"]) is None


def test_an_expanded_view_moves_the_bytes_of_its_base() -> None:
    g = GraphBuilder()
    small = g.op("sin", g.input("x", bytes=4), name="small")
    g.op("expand", small, name="wide", bytes=400, view=True)
    g.output(g.op("exp", "wide"))
    problem = ByteTraffic().pose(needed_by_backward(g, "wide"))
    price = dict(zip(problem.names, problem.save_cost.tolist(), strict=True))
    assert price["wide"] == price["small"] == 2 * 4


def test_free_parameters() -> None:
    g = GraphBuilder()
    x, w = g.input("x", bytes=8), g.input("w", bytes=16, parameter=True)
    g.output(g.op("mul", x, w))
    graph = needed_by_backward(g, x, w)
    paid, free = ByteTraffic().pose(graph), ByteTraffic(free_parameters=True).pose(graph)
    assert paid.save_cost[:2].tolist() == [8, 16]
    assert free.save_cost[:2].tolist() == [8, 0]


def bans(problem: Problem) -> dict[str, tuple[str | None, str | None]]:
    """Of each value but the input, why it cannot be saved, and why it cannot be recomputed."""
    reasons = (problem.cannot_save.reason, problem.cannot_recompute.reason)
    return {name: (reasons[0](i), reasons[1](i)) for name, i in problem.index.items() if name != "x"}


def test_annotations_overrule_the_cost_model_but_not_the_facts() -> None:
    g = GraphBuilder()
    x = g.input("x")
    kept = g.op("sin", x, name="kept", must_save=True)
    redone = g.op("mm", x, name="redone", must_recompute=True, compute_bound=True)
    seed = g.op("seed", x, name="seed", must_recompute=True, cannot_recompute="moves on")
    g.output(kept, redone)
    assert bans(ByteTraffic().pose(needed_by_backward(g, kept, redone, seed))) == {
        "kept": (None, "marked MUST_SAVE"),
        "redone": ("marked MUST_RECOMPUTE", None),
        "seed": ("marked MUST_RECOMPUTE", "moves on"),
    }


def test_a_cost_model_can_be_a_key() -> None:
    models = {ByteTraffic(), ByteTraffic(mode="aggressive"), ByteTraffic(rules={"random": False}), ByteTraffic()}
    assert len(models) == 3


def test_preferences_overrule_the_cost_model_and_yield_to_facts_and_demands() -> None:
    g = GraphBuilder()
    x = g.input("x")
    cheap = g.op("sin", x, name="cheap", prefer_save=True)
    dear = g.op("mm", x, name="dear", prefer_recompute=True, compute_bound=True)
    seed = g.op("seed", x, name="seed", prefer_recompute=True, cannot_recompute="moves on")
    pair = g.op("pair", seed, name="pair", prefer_save=True, cannot_save="a tuple")
    item = g.op("getitem", pair, name="item", prefer_recompute=True)
    g.output(cheap, dear, item)
    assert bans(ByteTraffic().pose(needed_by_backward(g, cheap, dear, seed, item))) == {
        "cheap": (None, "marked PREFER_SAVE"),
        "dear": ("marked PREFER_RECOMPUTE", None),
        "seed": (None, "moves on"),
        "pair": ("a tuple", None),
        "item": ("marked PREFER_RECOMPUTE", None),
    }
