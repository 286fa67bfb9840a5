"""`remat.explain` states the decision, its reasons, and what deciding otherwise costs."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from depth import drawn
from examples import chain, cosines, linear_dropout
from helpers import every_plan
from hypothesis import given
from hypothesis import strategies as st
from strategies import DiceWithHost

import remat
from remat import Corpus, Graph, GraphBuilder
from remat.errors import UnknownName
from remat.testing import graphs
from remat.views.explain import Decision

MIB = 2**20


def test_a_saved_value() -> None:
    why = remat.explain(cosines(), "add3")
    assert Decision.SAVED is why.decision
    assert (why.save_bytes, why.save_cost, why.recompute_cost) == (4 * MIB, 8 * MIB, 0)
    assert why.readers == ("cos1", "sin1")
    assert (why.alternative.extra_cost, why.alternative.proven) == (4 * MIB, True)
    assert (why.alternative.saves, why.alternative.drops) == (("d", "add2"), ("add3",))
    decided, priced, _, read, alternative, instead = str(why).splitlines()
    assert re.search(r"add3 \(add, 4\.0 MiB\).*\bsaved\b", decided)
    assert re.search(r"8\.0 MiB.*4\.0 MiB.*from its inputs is free", priced)
    assert "cos1, sin1" in read
    assert "at least 4.0 MiB more" in alternative
    assert "d, add2" in instead


def test_without_a_name_the_weightiest_saved_value_is_explained() -> None:
    graph = Corpus.open().graph("small-bert")
    found = remat.explain(graph)
    sizes = {name: graph.activation_bytes[graph.index[name]] for name in remat.choose(graph).plan.saved}
    largest = sorted(filter(sizes.get, sizes), key=lambda name: -sizes[name])[:12]
    costs = {name: remat.explain(graph, name).alternative.extra_cost or 0 for name in largest}
    assert found.alternative.extra_cost == max(costs.values()) > min(costs.values())
    with pytest.raises(UnknownName, match="saves no activation: name the value"):
        remat.explain(chain(1))


@pytest.mark.parametrize(
    ("name", "decision", "extra_cost", "told"),
    [
        ("cos1", Decision.RECOMPUTED, 8 * MIB, "sin2"),
        ("sin1", Decision.DEFERRED, 8 * MIB, "sin1"),  # the backward pass alone needs it
        ("add1", Decision.ABSENT, 8 * MIB, "Nothing in the backward pass reads it."),
        ("grad_in", Decision.TANGENT, None, "The backward pass returns it."),
    ],
)
def test_what_is_not_saved_is_explained_as_well(
    name: str, decision: Decision, extra_cost: int | None, told: str
) -> None:
    why = remat.explain(cosines(), name)
    assert why.decision is decision
    assert (None if why.alternative is None else why.alternative.extra_cost) == extra_cost
    assert told in str(why)


def test_an_input_takes_no_memory_and_an_impossible_alternative_names_the_rules() -> None:
    why = remat.explain(linear_dropout(), "x")
    assert (why.decision, why.save_bytes, why.alternative.extra_cost) == (Decision.SAVED, 0, None)
    assert "takes 0 B; it cannot be recomputed (an input of the graph)" in str(why)
    assert "A plan that does not save it does not exist" in str(why)
    assert "Relax" not in str(why), "nothing is wrong"
    assert "asked: what if it were not saved?" in why.alternative.conflict


def test_what_cannot_be_saved_says_why() -> None:
    why = remat.explain(linear_dropout(), "philox")
    assert (why.cannot_save, why.alternative) == ("a tuple", None)
    assert "It cannot be saved (a tuple)" in str(why)


def test_an_argument_that_is_lost_makes_a_value_unrecomputable() -> None:
    g = GraphBuilder()
    g.op("split", g.input("x"), cannot_save="a tuple", cannot_recompute="a collective")
    g.output(g.op("getitem", "split"))
    g.gradient(g.op("mul", g.tangent("dy"), "getitem", name="dx"))
    why = remat.explain(g.build(), "getitem")
    assert why.cannot_recompute == "uses 'split', which can be neither saved nor recomputed"


def test_readers_are_named_through_views() -> None:
    g = GraphBuilder()
    x, w = g.input("x", bytes=9), g.input("w", bytes=9)
    mm = g.op("mm", x, w, compute_bound=True)
    g.op("t", mm, view=True)
    g.output(g.op("relu", mm))
    g.gradient(g.op("mul", g.tangent("dy", bytes=9), "t", name="dx"))
    graph = g.build()
    recomputed = next(name for name in ("mm", "t") if remat.explain(graph, name).decision is Decision.SAVED)
    expected = {"mm": ("dx (through t)",), "t": ("dx",)}[recomputed]
    assert expected == remat.explain(graph, recomputed).readers


def test_a_tie_is_called_a_tie() -> None:
    g = GraphBuilder()
    g.op("t", g.op("mm", g.input("x", bytes=8), compute_bound=True), view=True)
    g.output("mm")
    g.gradient(g.op("mul", g.tangent("dy", bytes=8), "t", name="dx"))
    why = remat.explain(g.build(), "t")
    assert why.alternative.extra_cost == 0
    assert "costs no more: there are several best plans" in str(why)


@drawn(60)
@given(graphs(max_values=8, facts=False), st.integers(0, 2**32 - 1), st.data())
def test_each_way_to_decide_has_its_price(graph: Graph, seed: int, data: st.DataObject) -> None:
    """Where values can be offloaded: saved on the device, saved on the host, or not saved at all."""
    model = DiceWithHost(seed)
    problem = model.pose(graph)
    host = problem.offload
    name = data.draw(st.sampled_from(problem.names))
    v = problem.index[name]
    saved_cost, copies = problem.save_cost.tolist(), host.cost.tolist()
    may = (~host.banned.mask).tolist()
    least = dict[str, int]()
    for plan in every_plan(replace(problem, offload=None)):
        rest = plan.cost - sum(max(saved_cost[u] - copies[u], 0) for u in plan.saved if may[u] and u != v)
        said = {"keeps it on the device": rest} if v in plan.saved else {"does not save it": rest}
        if v in plan.saved and may[v]:
            said["offloads it"] = rest - saved_cost[v] + copies[v]
        if v not in plan.recomputed:
            said["does not recompute it"] = min(said.values())
        for what, cost in said.items():
            least[what] = min(cost, least.get(what, cost))
    best = min(least.values())
    why = remat.explain(graph, name, model)
    for other in filter(None, (why.alternative, *why.others)):
        expected = least.get("keeps it on the device" if other.question == "saves it" else other.question)
        assert other.extra_cost == (None if expected is None else expected - best)
    told = {"does not save it", "keeps it on the device", "offloads it"}
    now = {Decision.SAVED: "keeps it on the device", Decision.OFFLOADED: "offloads it"}.get(why.decision)
    if may[v] and now:
        assert {other.question for other in filter(None, (why.alternative, *why.others))} == told - {now}


def test_an_offloaded_value() -> None:
    graph = cosines()
    for seed in range(50):
        model = DiceWithHost(seed)
        plan = remat.solve(model.pose(graph)).plan
        if plan.offloaded:
            break
    why = remat.explain(graph, plan.offloaded[0], model)
    assert why.decision is Decision.OFFLOADED
    assert (why.offload_cost, why.cannot_offload) == (0, None)
    assert "offloaded: saved, and on the host until the backward pass needs it." in str(why)
    assert "offloading it costs 0 pips for two copies" in str(why)
    stays = next(other for other in why.others if other.question == "keeps it on the device")
    assert plan.offloaded[0] in stays.keeps
    an_input = remat.explain(graph, graph.names[0], model)
    assert an_input.cannot_offload == "an input's memory, which the caller holds"
    assert "cannot be offloaded (an input's memory, which the caller holds)" in str(an_input)


def test_a_claim_is_not_called_a_bound() -> None:
    assert "costs 4.0 MiB more" in str(remat.explain(cosines(), "add3", solver="pulp"))
