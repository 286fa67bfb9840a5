"""What `remat.compile` does with nothing else: PyTorch's own prices, and never worse than its own plan."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import networkx as nx
import numpy as np
import pytest
import torch
from depth import deep_except
from torch import fx
from torch._functorch import partitioners

import remat
from costmodels import ByteTraffic, MultiRead
from costmodels.pytorch_prices import FARTHEST, pytorch_prices, steps_to_backward
from experiments.models.cases import CASES
from experiments.models.workloads import KERNEL_ZOO
from remat import Graph, GraphBuilder, InvalidOption
from remat.answer.plan_facts import PlanFacts
from remat.answer.registry import DEFAULT_STEP_MODEL, find_costmodel
from remat.errors import InvalidProblem
from remat.pytorch import Partitioner
from remat.pytorch.measure.torch_budgets import torchs_plans
from remat.pytorch.read.capture import visit_joint_graphs
from remat.pytorch.read.extract import extract
from remat.pytorch.seam.gpu_sheets import sheet_of
from remat.pytorch.seam.torch_partitioner import torchs_choice

OURS = find_costmodel(DEFAULT_STEP_MODEL)
QUICK = ["GPT, fused attention", "LSTM cells"]


def price_differences(model: Any, args: tuple[Any, ...]) -> set[tuple[str, float, int]]:
    """Lists the values that PyTorch's network prices otherwise than ours, of those that may be saved."""
    found: set[tuple[str, float, int]] = set()

    def visit(joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int) -> None:
        theirs: dict[str, float] = {}
        place: Any = partitioners if hasattr(partitioners, "minimum_cut") else nx  # torch 2.15 has its own
        cut = place.minimum_cut

        def spy(network: Any, *ends: Any) -> Any:
            theirs.update(
                {u.removesuffix("_in"): arc["capacity"] for u, v, arc in network.edges(data=True) if u[:-3] == v[:-4]}
            )
            return cut(network, *ends)

        with patch.object(place, "minimum_cut", spy):
            torchs_choice(joint_graph, node_info)
        problem = OURS.pose(extract(joint_graph, node_info, num_fwd_outputs))
        ours = {problem.names[i]: int(problem.save_cost[i]) for i in np.flatnonzero(~problem.cannot_save.mask)}
        assert len(ours.keys() & theirs.keys()) > 5
        found.update(
            (name, theirs[name], ours[name]) for name in ours.keys() & theirs.keys() if theirs[name] != ours[name]
        )

    visit_joint_graphs(visit, model, *args)
    return found


@pytest.mark.parametrize(
    "name", ["pointwise chain", "dropout", "batch normalization", "recurrent cells", "encoder layer"]
)
def test_prices_are_pytorchs_to_the_byte(name: str) -> None:
    assert price_differences(CASES[name].build(), CASES[name].inputs()) == set()


def four_figures(graph: Graph, plan: remat.Plan) -> tuple[int, int, int, int]:
    """Saved bytes, bytes moved, kernels and peak, by the predicted kernels of the graph's device."""
    device = "a100" if graph.meta.get("device") == "cuda" else "cpu"
    traffic = remat.predict_traffic(graph, plan, device=device)
    peak = remat.timeline(graph, plan, device=device).peak_bytes
    return PlanFacts.of(graph, plan).saved_bytes, traffic.bytes, len(traffic.kernels), peak


def assert_never_worse(graph: Graph, theirs: remat.Plan) -> None:
    ours = remat.choose(graph, OURS).plan
    for mine, its in zip(four_figures(graph, ours), four_figures(graph, theirs), strict=True):
        assert mine <= its


@pytest.mark.parametrize("name", deep_except(QUICK, KERNEL_ZOO))
def test_no_figure_is_above_that_of_pytorchs_default(name: str) -> None:
    torch.manual_seed(0)
    model, args = KERNEL_ZOO[name]()
    for graph, plans in torchs_plans(model, *args, budgets=[1.0]):
        assert_never_worse(graph, plans[1.0])


def test_no_figure_is_above_on_a_gpu_that_is_not_there() -> None:
    torch.manual_seed(0)
    model, args = KERNEL_ZOO["dropout MLP"]()
    ((graph, plans),) = torchs_plans(model, *args, budgets=[1.0], device="a100")
    assert (graph.meta["device"], graph.meta["gpu"]) == ("cuda", sheet_of("a100").name)
    assert_never_worse(graph, plans[1.0])


def test_a_step_without_a_cost_model_takes_pytorchs_prices() -> None:
    assert Partitioner.of().cost_model == ByteTraffic(prices="pytorch") == OURS
    assert (OURS.unit, ByteTraffic().unit) == ("weighted bytes", "bytes")


def chain(length: int) -> Graph:
    g = GraphBuilder()
    value = g.input("x", bytes=4)
    for i in range(length):
        value = g.op("sin", value, name=f"v{i}", bytes=4)
    g.output(value)
    g.gradient(g.op("mul", g.tangent("t", bytes=4), value))
    return g.build()


def test_bytes_weigh_a_tenth_more_with_each_step_up_to_a_hundred() -> None:
    graph = chain(FARTHEST + 20)
    steps = dict(zip(graph.names, steps_to_backward(graph).tolist(), strict=True))
    assert [steps[f"v{FARTHEST + 20 - i}"] for i in (1, 2, 3, FARTHEST, FARTHEST + 9)] == [1, 2, 3, FARTHEST, FARTHEST]
    price = dict(zip(graph.names, pytorch_prices(graph).tolist(), strict=True))
    assert price["x"] == int(4 * 1.1**100)
    assert price[f"v{FARTHEST + 16}"] == 2 * int(4 * 1.1**4)


def test_prices_past_what_can_be_counted_are_refused() -> None:
    g = GraphBuilder()
    x = g.input("x", bytes=2**60)
    g.output(g.op("sin", x, bytes=2**60))
    g.gradient(g.op("mul", g.tangent("t", bytes=4), x, bytes=4))
    with pytest.raises(InvalidProblem, match=r"PyTorch's prices must add up to less than 2\*\*62"):
        OURS.pose(g.build())


def test_odd_prices_are_refused() -> None:
    with pytest.raises(InvalidOption, match=r"ByteTraffic\.prices must be one of paper, pytorch, got 'torch'"):
        ByteTraffic(prices="torch")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="MultiRead has prices of its own"):
        MultiRead(prices="pytorch")
