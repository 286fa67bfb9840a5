"""Whatever is given in the place of something else, the error is one of `remat.errors`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_graph import GRAPH

import remat
from costmodels import ByteTraffic, MemoryBudget
from remat import Corpus, CostModel, Graph, GraphBuilder, InvalidOption, Plan, Problem, RematError, Solution
from remat.plugin import Bans, FlowCertificate, InvalidProblem, Multipliers, Termination, Terms
from remat.predict.kernels import Fuser
from remat.pytorch.inductor.scheduled import Scheduled

G = GRAPH
P = ByteTraffic().pose(G)
S = remat.solve(P)
PLAN = S.plan
FRONTIER = remat.frontier(G)

WRONG = (None, "x", 3, -1, 2.5, math.nan, math.inf, np.int64(3), np.float64(0.5), True, [], ["a"], {}, (1, 2), b"x")
WRONG = (*WRONG, [None], object(), G, P, S, PLAN, ByteTraffic, ByteTraffic())


def builder(**facts: Any) -> Graph:
    g = GraphBuilder()
    g.op("sin", **{"bytes": 1, **facts})
    return g.build()


CALLS: dict[str, Callable[[Any], object]] = {
    "solve": remat.solve,
    "solve: solver": lambda it: remat.solve(P, it),
    "solve: time_limit_s": lambda it: remat.solve(P, "pulp", time_limit_s=it),
    "choose": remat.choose,
    "choose: cost_model": lambda it: remat.choose(G, it),
    "frontier": remat.frontier,
    "frontier: estimator": lambda it: remat.frontier(G, estimator=it),
    "frontier: cost_model": lambda it: remat.frontier(G, cost_model=it),
    "Frontier.at": FRONTIER.at,
    "Frontier.bound": FRONTIER.bound,
    "Frontier.refine": FRONTIER.refine,
    "Frontier.price": FRONTIER.price,
    "step_frontier": remat.step_frontier,
    "step_frontier: budgets": lambda it: remat.step_frontier(G, it),
    "timeline": lambda it: remat.timeline(it, PLAN),
    "frontier: offload": lambda it: remat.frontier(G, offload=it),
    "timeline: plan": lambda it: remat.timeline(G, it),
    "timeline: holds_outputs": lambda it: remat.timeline(G, PLAN, holds_outputs=it),
    "timeline: copy_stream": lambda it: remat.timeline(G, PLAN, copy_stream=it),
    "offload_timeline": lambda it: remat.offload_timeline(it, PLAN, "h100"),
    "offload_timeline: plan": lambda it: remat.offload_timeline(G, it, "h100"),
    "offload_timeline: device": lambda it: remat.offload_timeline(G, PLAN, it),
    "offload_timeline: prefetch_ns": lambda it: remat.offload_timeline(G, PLAN, "h100", prefetch_ns=it),
    "cannot_offload": remat.plugin.cannot_offload,
    "Offload": lambda it: remat.plugin.Offload(it, Bans.none(1)),
    "Offload: banned": lambda it: remat.plugin.Offload(np.array([1]), it),
    "Problem.of: offload_cost": lambda it: Problem.of([1, 2], offload_cost=it),
    "MemoryBudget: offload": lambda it: MemoryBudget(0.5, offload=it),
    "predict_traffic": lambda it: remat.predict_traffic(it, PLAN),
    "predict_traffic: plan": lambda it: remat.predict_traffic(G, it),
    "explain": lambda it: remat.explain(it, "y") if it is not G else None,
    "explain: name": lambda it: remat.explain(G, it) if it != "x" else None,
    "show": lambda it: remat.show(it) if it is not G else None,
    "show: plan": lambda it: remat.show(G, it) if it not in (None, PLAN) else None,
    "compare": lambda it: remat.compare(it) if it is not G else None,
    "compare: cost_models": lambda it: remat.compare([G], it, ["networkx"]),
    "certify": lambda it: remat.certify(it, S),
    "certify: solution": lambda it: remat.certify(P, it),
    "check_plan": lambda it: remat.check_plan(it, PLAN),
    "check_plan: plan": lambda it: remat.check_plan(P, it),
    "Plan": lambda it: Plan(it, ()),
    "Choice.from_saved": lambda it: remat.Choice.from_saved(P, it),
    "Plan.for_graph": PLAN.for_graph,
    "Termination": Termination,
    "Termination: bound": lambda it: Termination(remat.TerminationReason.OPTIMAL, it),
    "Solution: objective": lambda it: Solution(PLAN, it, S.termination, None, "me").gap,
    "Solution: termination": lambda it: Solution(PLAN, 1, it, None, "me").gap,
    "FlowCertificate": lambda it: remat.certify(P, Solution(PLAN, 4, S.termination, FlowCertificate(it), "me")),
    "Multipliers": lambda it: Multipliers(it, 1),
    "Problem.of": Problem.of,
    "Problem.of: a price": lambda it: Problem.of([1, it]),
    "Problem.of: edges": lambda it: Problem.of([1, 2], edges=it),
    "Problem.of: an edge": lambda it: Problem.of([1, 2], edges=[it]),
    "Problem.of: needed": lambda it: Problem.of([1, 2], needed=it),
    "Problem.of: names": lambda it: Problem.of([1, 2], names=it),
    "Problem.of: cannot_save": lambda it: Problem.of([1, 2], cannot_save=it),
    "Problem.of: a reason": lambda it: Problem.of([1, 2], cannot_save={0: it}),
    "Problem.of: budget_bytes": lambda it: Problem.of([1, 2], budget_bytes=it),
    "Bans": Bans,
    "Bans.of": lambda it: Bans.of(2, it),
    "Bans.of: a position": lambda it: Bans.of(2, dict.fromkeys([it] if type(it).__hash__ else [], "why")),
    "GraphBuilder: a name": lambda it: builder(name=it),
    "GraphBuilder: bytes": lambda it: builder(bytes=it),
    "GraphBuilder: shape": lambda it: builder(shape=it),
    "GraphBuilder: an argument": lambda it: GraphBuilder().op("sin", it),
    "register": lambda it: remat.plugin.register(it) if it is not ByteTraffic else None,
    "unregister": remat.plugin.unregister,
    "find_estimator": remat.plugin.find_estimator,
    "recompute_parameter_copies": remat.recompute_parameter_copies,
    "Simulator": remat.Simulator,
    "pose": ByteTraffic().pose,
    "pose, with a budget": MemoryBudget().pose,
    "a cost model and": lambda it: ByteTraffic() + it,
    "MemoryBudget": MemoryBudget,
    "Terms and": lambda it: Terms.nothing(G) + it,
    "Terms of something else": lambda it: Terms(it, it, Bans.none(4), Bans.none(4)) + Terms.nothing(G),
    "Terms without bans": lambda it: Terms.nothing(G) + replace(Terms.nothing(G), cannot_save=it),
    "estimate": lambda it: [remat.plugin.find_estimator(name).recompute_cost(it) for name in ("flops", "roofline")],
    "Frontier.plot: other_points": lambda it: FRONTIER.plot(other_points=it),
    "Frontier.plot: points": lambda it: FRONTIER.plot(other_points={"mine": it}),
    "Frontier.plot: a point": lambda it: FRONTIER.plot(other_points={"mine": [it]}),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS.keys())
@pytest.mark.filterwarnings("ignore")
def test_a_slip_raises_an_error_of_ours_or_none(call: Callable[[Any], object]) -> None:
    refused = 0
    for wrong in WRONG:
        try:
            call(wrong)
        except RematError:
            refused += 1
    assert refused


FILES = {
    "Graph.load": Graph.load,
    "Graph.save": G.save,
    "Plan.load": Plan.load,
    "Plan.save": PLAN.save,
    "Corpus.open": Corpus.open,
    "show": lambda it: remat.show(G, path=it),
    "Frontier.plot": FRONTIER.plot,
    "Timeline.show": remat.timeline(G, PLAN).show,
}


@pytest.mark.parametrize("call", FILES.values(), ids=FILES.keys())
@pytest.mark.parametrize("wrong", [3, 2.5, [], b"x", G], ids=lambda wrong: type(wrong).__name__)
def test_a_file_is_named_by_text(call: Callable[[Any], object], wrong: Any) -> None:
    with pytest.raises(InvalidOption, match=r"a file must be named by text or a pathlib.Path"):
        call(wrong)


def test_a_missing_file_is_the_system_s_own_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Graph.load(tmp_path / "none.json")


SAME_WORDS = {
    "graph": [
        Fuser,
        Scheduled,
        remat.show,
        partial(remat.predict_traffic, plan=PLAN),
    ],
    "plan": [
        *(partial(call, G) for call in (remat.timeline, remat.show, remat.predict_traffic)),
        *(partial(remat.check_plan, P), FRONTIER.price),
    ],
}


@pytest.mark.parametrize(("what", "call"), [(what, call) for what, calls in SAME_WORDS.items() for call in calls])
@pytest.mark.parametrize("wrong", ["graph.json.gz", ["x"], S], ids=["a file", "a list", "a solution"])
def test_what_is_no_graph_or_no_plan_is_refused_in_the_same_words(
    what: str, call: Callable[[Any], object], wrong: Any
) -> None:
    hint = r" \(`solution.plan` of a solution\)" if what == "plan" else ""
    with pytest.raises(
        InvalidOption, match=rf"{what} must be a remat\.{what.title()}{hint}.* got {re.escape(repr(wrong)[:4])}"
    ):
        call(wrong)


def test_bans_name_values_that_there_are() -> None:
    with pytest.raises(InvalidProblem, match="a position from 0 to 1 and a reason, got 7"):
        Bans.of(2, {7: "why"})
    with pytest.raises(InvalidProblem, match="from 0 to 1, the number of reasons"):
        Bans(np.array([0, 2]), ("why",))


def test_a_plug_in_without_a_unit_is_named() -> None:
    class Unitless(remat.plugin.Estimator):
        name = "unitless"

        def recompute_cost(self, graph: Graph) -> Any:
            return np.zeros(len(graph), np.int64)

    class Nameless(CostModel):
        unit = "bytes"

        def terms(self, graph: Graph) -> Terms:
            return Terms.nothing(graph)

    for call in (lambda: remat.frontier(G, estimator=Unitless()), lambda: remat.plugin.find_estimator(Unitless())):
        with pytest.raises(InvalidOption, match=r"estimator must have the class attribute 'unit' .* Unitless has none"):
            call()
    with pytest.raises(InvalidOption, match=r"cost_model must have the class attribute 'name' .* Nameless has none"):
        remat.choose(G, Nameless())
