"""Predicted memory traffic: the paper's figures, what a plan has to be, and the copies of plans that offload."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from depth import deep
from examples import chain, cosines
from strategies import DiceWithHost, SaveOnHost, all_on_host
from torch import Tensor

import remat
from experiments.accuracy.live_kernels import inductor_kernels
from experiments.models.cases import CASES
from experiments.models.workloads import KERNEL_ZOO
from remat import CostModel, Graph, GraphBuilder, Plan, predict_traffic, solve
from remat.plugin import PlanFacts
from remat.predict.traffic import PredictedTraffic
from remat.pytorch.inductor.scheduled import Scheduled


def five_saved(x: Tensor) -> Tensor:
    """The tanh GeLU, of which autograd saves x, x * x, 0.5 * x, the tanh, and that plus one."""
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * (x * x * x))))


def autograd_saves(graph: Graph) -> Plan:
    """What the operators of these functions keep: both factors of a product, and a hyperbolic tangent."""
    arguments: list[list[int]] = [[] for _ in range(len(graph))]
    for u, v in zip(graph.producers.tolist(), graph.consumers.tolist(), strict=True):
        arguments[v].append(u)
    saved = graph.in_forward & False
    for v in range(len(graph)):
        if graph.in_forward[v] and graph.ops[v] == "aten.mul.Tensor" and not graph.arguments[v]:
            saved[arguments[v]] = True
        saved[v] |= bool(graph.in_forward[v]) and graph.ops[v] == "aten.tanh.default"
    return plan_of(graph, *(graph.names[v] for v in saved.nonzero()[0].tolist()))


def plan_of(graph: Graph, *saved: str) -> Plan:
    return remat.Choice.from_saved(graph, np.isin(graph.names, saved)).plan(graph)


def test_gelu_without_fusion_moves_more_where_it_recomputes_more() -> None:
    """Table 1, right half: without fusion, recomputation costs."""
    graph = remat.capture(five_saved, torch.randn(1024, requires_grad=True))
    kept = predict_traffic(graph, autograd_saves(graph), fused=False)
    recomputed = predict_traffic(graph, plan_of(graph, "primals_1"), fused=False)
    assert recomputed.accesses > kept.accesses > 13
    assert len(kept.kernels) == (~graph.view & [op != "placeholder" for op in graph.ops]).sum()


def test_a_plan_that_is_not_legal_is_refused() -> None:
    graph = cosines()
    with pytest.raises(remat.InvalidPlan, match="cos9"):
        predict_traffic(graph, Plan(("cos9",), ()))
    with pytest.raises(remat.InvalidPlan):
        predict_traffic(graph, Plan(("cos1",), ()))  # sin1 needs add3, which is neither saved nor recomputed
    other = plan_of(cosines(), "add3").for_graph(chain(2))
    with pytest.raises(remat.InvalidPlan, match="another graph"):
        predict_traffic(graph, other, fused=False)


def test_the_table_names_what_every_kernel_reads_and_writes() -> None:
    graph = cosines(size=4)
    lines = str(predict_traffic(graph, plan_of(graph, "add3"))).splitlines()
    assert lines[0].startswith("forward")
    assert "a, b, c, d -> " in lines[0]
    assert lines[-2:] == [
        "2 kernels for CPUs (1 forward, 1 backward): 24 B read,",
        "12 B written, 6 reads and 3 writes of tensors",
    ]
    assert "add3" in lines[0].rpartition("->")[2]
    assert str(PredictedTraffic(())).endswith("0 reads and 0 writes of tensors")


@pytest.mark.parametrize("model", [SaveOnHost(), pytest.param(DiceWithHost(3), marks=deep)], ids=lambda m: m.name)
@pytest.mark.parametrize(
    "name", ["pointwise chain", pytest.param("LayerNorm-GeLU MLP", marks=deep), pytest.param("dropout MLP", marks=deep)]
)
def test_inductor_counts_as_many_bytes(name: str, model: CostModel) -> None:
    """Its own count has the copies as calls: what is on the host has no bytes, so each counts once."""
    make = KERNEL_ZOO[name] if name in KERNEL_ZOO else lambda: (CASES[name].build(), CASES[name].inputs())
    module, args = make()
    graph = remat.capture(module, *args)
    plan = solve(model.pose(graph)).plan
    found = predict_traffic(graph, plan)
    counted = inductor_kernels(module, *args, plans=plan)
    assert found.offloaded_bytes == PlanFacts.of(graph, plan).offloaded_bytes > 0
    assert found.bytes + 2 * found.offloaded_bytes == sum(kernel.bytes for kernel in counted)
    assert len(found.kernels) + 2 * len(plan.offloaded) == len(counted)


@pytest.mark.parametrize("name", ["LayerNorm-GeLU MLP", pytest.param("GPT, fused attention", marks=deep)])
def test_an_h100_has_the_kernels_that_are_predicted(name: str) -> None:
    graph, plan = all_on_host(name)
    assert plan.offloaded
    counted = Scheduled(graph, device="h100").kernels(plan)
    found = predict_traffic(graph, plan, device="h100")
    assert found.bytes + 2 * found.offloaded_bytes == sum(kernel.bytes for kernel in counted)
    assert len(found.kernels) + 2 * len(plan.offloaded) == len(counted)


def test_calls_move_what_they_moved_and_copies_are_named_apart() -> None:
    g = GraphBuilder()
    y = g.op("mm", g.input("x", bytes=400), name="y", bytes=400, compute_bound=True)
    g.output(g.op("sum", y, name="loss", bytes=4, fusible=False))
    g.gradient(g.op("mm", g.tangent("dloss", bytes=4), y, name="dy", bytes=400, compute_bound=True))
    graph, plan = g.build(), Plan(("y",), ())
    away = replace(plan, offloaded=("y",))
    for fused in (False, True):
        stays, leaves = (predict_traffic(graph, one, fused=fused) for one in (plan, away))
        assert leaves.kernels == stays.kernels
        assert (stays.offloaded_bytes, leaves.offloaded_bytes) == (0, 400)
        assert "besides, 400 B are copied to the host, and as much back" in str(leaves)
        assert "besides" not in str(stays)
