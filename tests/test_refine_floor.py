"""The floor of traffic: no plan that makes the same calls is below it; where one kernel can do all, one is at it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from depth import drawn
from examples import cosines
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import remat
from experiments.traffic_study.traffic_floor import Floor
from remat import Graph, GraphBuilder, InvalidPlan, Plan
from remat.answer.choice import Choice
from remat.improve.refine.states import Space
from remat.testing.strategies import graphs


def some_plans(graph: Graph, data: st.DataObject, count: int) -> list[Plan]:
    space, n = Space(graph), len(graph)
    wanted = [np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), np.bool_) for _ in range(count)]
    return [space.state(mask).choice.plan(graph) for mask in wanted]


@drawn(60)
@given(graphs(max_values=12, facts=False), st.data())
def test_no_plan_that_makes_the_same_calls_is_below_the_floor(graph: Graph, data: st.DataObject) -> None:
    """Equal sizes: an operator that computes less than it reads is taken to read no more than it computes."""
    graph = replace(graph, bytes=np.full(len(graph), 8))
    floors: dict[tuple[tuple[bool, tuple[int, ...], int], ...], int] = {}
    moved: list[tuple[tuple[tuple[bool, tuple[int, ...], int], ...], int]] = []
    for plan in some_plans(graph, data, 3):
        traffic = remat.predict_traffic(graph, plan)
        made = [kernel for kernel in traffic.kernels if not kernel.generated]
        calls = tuple(sorted((call.backward, call.values, call.bytes) for call in made))
        floors[calls] = max(floors.get(calls, 0), Floor.of(graph, plan).bytes)
        moved.append((calls, traffic.bytes))
    assert all(floors[calls] <= amount for calls, amount in moved)


def save_all(graph: Graph) -> Plan:
    problem = remat.plugin.base_problem(graph)
    return Choice.from_saved(problem, ~problem.cannot_save.mask).plan(problem)


def test_the_optimum_of_the_papers_cosines_is_at_the_floor() -> None:
    graph = cosines(4)
    best = remat.refine(graph, save_all(graph), "traffic")
    floor = Floor.of(graph, best.plan)
    assert floor.bytes <= best.after[0]
    assert (floor.calls, floor.handed_over) == (0, 4 + 4)  # the sum is written, and read


def test_every_part_is_counted_once() -> None:
    g = GraphBuilder()
    x, w = g.input("x", bytes=10), g.input("w", bytes=100, parameter=True)
    up = g.op("mm", g.op("sin", x, name="act"), w, bytes=1000, compute_bound=True, name="up")
    g.output(g.op("cos", up, name="y"))
    slope = g.op("mul", g.tangent("dy", bytes=1000), g.op("sin", up, name="dcos"), name="slope")
    g.gradient(g.op("mm", slope, "act", bytes=100, compute_bound=True, name="dw"))
    graph = g.build()
    floor = Floor.of(graph, Plan(("act", "up"), ("dcos",)))
    assert floor.calls == (10 + 100 + 1000) + (1000 + 10 + 100)
    assert floor.forward == 10 + 1000 + 1000, "act and y are written, up is read"
    assert floor.backward == 1000, "slope is written"
    assert floor.handed_over == 1000, "up is read, and was written by its call"


class Mlp(nn.Module):
    """Two normalized layers with GeLU around a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            x = x + self.down(nn.functional.gelu(self.up(self.norm(x))))
        return x.square().sum()


def test_refined_plans_of_a_model_share_one_floor_and_stay_above_it() -> None:
    graph = remat.capture(Mlp(), torch.randn(32, 64))
    given_plan = save_all(graph)
    found = remat.refine(graph, given_plan, "traffic")
    assert Floor.of(graph, given_plan) == Floor.of(graph, found.plan)
    assert 0.5 * found.after[0] < Floor.of(graph, found.plan).bytes < found.after[0] < found.before[0]


def test_a_plan_that_is_not_legal_has_no_floor() -> None:
    with pytest.raises(InvalidPlan, match="not legal"):
        Floor.of(cosines(4), Plan(("add3",), ()))
