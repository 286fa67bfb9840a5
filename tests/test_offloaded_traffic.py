"""The kernels of plans that offload, and the copies beside them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from depth import deep
from strategies import DiceWithHost, SaveOnHost, all_on_host

import remat
from experiments.accuracy.live_kernels import inductor_kernels
from experiments.models.cases import CASES
from experiments.models.workloads import KERNEL_ZOO
from remat import CostModel, GraphBuilder, Plan, predict_traffic, solve
from remat.plugin import PlanFacts
from remat.pytorch.inductor.scheduled import Scheduled


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
