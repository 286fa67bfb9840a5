"""The modelled time of a step: what it is made of, by hand, and what it must never do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import remat
from costmodels import MemoryBudget, RecomputeTime, StepTime
from remat import Graph, GraphBuilder, Plan, predict_traffic
from remat.errors import UnknownName
from remat.predict.kernels import Kernel, kernels
from remat.predict.time import DeviceProfile, Roofline, modelled_time
from remat.predict.time.known_devices import KNOWN

TOY = DeviceProfile(
    "a toy", {"float32": 1e9, "float16": 4e9}, 1e9, 500, source="a test", flops_fraction=0.5, bytes_fraction=0.5
)
"""Half a byte, half an operation and two operations of float16 products a nanosecond."""


def product() -> Graph:
    """dw = x.T @ (dy * cos(x @ w)), in half precision; the products take 2e6 operations each."""
    g = GraphBuilder()
    size, half = 2000, "float16"
    g.input("x", bytes=size, dtype=half)
    g.input("w", bytes=size, dtype=half)
    g.op("mm", "x", "w", name="y", compute_bound=True, flops=2_000_000, bytes=size, dtype=half)
    g.output(g.op("cos", "y", name="z", flops=1000, bytes=size, dtype=half))
    g.op("sin", "y", flops=1000, bytes=size, dtype=half)
    g.op("mul", g.tangent("dz", bytes=size), "sin", name="dy", flops=1000, bytes=size, dtype=half)
    g.gradient(g.op("mm", "x", "dy", name="dw", compute_bound=True, flops=2_000_000, bytes=size, dtype=half))
    return g.build()


def kernel(graph: Graph, *names: str, backward: bool = False, read: int = 0, written: int = 0) -> Kernel:
    values = tuple(graph.index[name] for name in names)
    return Kernel(backward, generated=True, values=values, reads=(), writes=(), read_bytes=read, written_bytes=written)


def test_by_hand() -> None:
    graph = product()
    kernels = [
        kernel(graph, "y", read=4000, written=2000),  # 2e6 operations at 2 a ns: 1,000,000 ns, more than its bytes
        kernel(graph, "z", read=2000, written=2000),  # 4,000 bytes at 0.5 a ns: 8,000 ns; 1,000 operations take 2,000
        kernel(graph, "sin", "dy", backward=True, read=4000, written=2000),
        kernel(graph, "dw", backward=True),
    ]
    time = modelled_time(graph, kernels, TOY)
    assert [round(each.ns) for each in time.kernels] == [1_000_500, 8_500, 12_500, 1_000_500]
    assert (round(time.forward_ns), round(time.backward_ns)) == (1_009_000, 1_013_000)
    assert time.ns == time.forward_ns + time.backward_ns


def test_it_names_its_device_and_says_that_it_is_a_model() -> None:
    graph = product()
    assert str(modelled_time(graph, [kernel(graph, "z", read=2000)], TOY)) == (
        "modelled for a toy, not measured: 0.0045 ms forward, 0 ms backward, 1 kernels"
    )


@pytest.mark.parametrize("device", sorted(KNOWN))
def test_more_bytes_more_kernels_or_a_slower_device_never_take_less_time(device: str) -> None:
    graph, profile = product(), KNOWN[device]
    kernels = predict_traffic(graph, Plan(("x", "y"), ("sin",))).kernels
    time = modelled_time(graph, kernels, device).ns
    assert time > len(kernels) * profile.launch_ns
    more = [replace(each, read_bytes=each.read_bytes + 10**9) for each in kernels]
    assert modelled_time(graph, more, device).ns > time
    assert modelled_time(graph, [*kernels, kernel(graph)], device).ns == pytest.approx(time + profile.launch_ns)
    slower = replace(profile, bytes_per_s=profile.bytes_per_s / 10, launch_ns=2 * profile.launch_ns)
    assert modelled_time(graph, kernels, slower).ns > time


class Products(nn.Module):
    """Products and a convolution whose bias is added by those who read them; a product in a sum that is one call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(64, 64), nn.Linear(64, 64), nn.Conv2d(4, 8, 3)
        self.weight = nn.Parameter(torch.randn(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (torch.sin(self.first(x)) @ self.weight + x) @ self.weight
        return torch.tanh(self.last(self.second(y).relu().cos().reshape(2, 4, 64, -1))).sum()


@pytest.mark.parametrize("backend", ["cpu", "triton"])
def test_what_each_pass_multiplies_is_counted_once_in_a_call(backend: str) -> None:
    graph = remat.capture(Products(), torch.randn(128, 64, requires_grad=True), device="h100")
    problem = remat.plugin.base_problem(graph)
    for save_cost in (0 * problem.save_cost, problem.save_cost + 1):
        plan = remat.solve(replace(problem, save_cost=save_cost)).plan
        found = kernels(graph, plan, backend=backend)
        for backward in (False, True):
            mine = [each for each in found if each.backward == backward]
            counted = [v for each in mine for v in each.values if graph.compute_bound[v]]
            assert len(counted) == len(set(counted))
            assert {v for each in mine if not each.generated for v in each.values} >= set(counted)
            own = graph.in_tangents if backward else graph.in_forward
            assert set(counted) >= set(np.flatnonzero(own & graph.compute_bound).tolist())


def test_a_faster_gpu_takes_less_time() -> None:
    graph = product()
    large = [kernel(graph, "z", read=10**9, written=10**9)]
    order = ["h200", "h100", "a100-80gb", "a100-40gb"]
    times = [modelled_time(graph, large, device).ns for device in order]
    assert times == sorted(times)
    assert len(set(times)) == len(order)


DEVICE = DeviceProfile("one byte a nanosecond", {"float32": 1e12}, 1e9, 5.0, "for this test")


def test_a_save_costs_what_it_moves_and_parameters_are_free() -> None:
    g = GraphBuilder()
    weight = g.input("weight", bytes=64, parameter=True)
    x = g.input("x", bytes=64)
    fused = g.op("sin", x, name="fused", bytes=64)
    product = g.op("mm", fused, weight, name="product", bytes=64, fusible=False)
    g.output(product)
    tangent = g.tangent("dy", bytes=64)
    g.gradient(g.op("mul", tangent, g.op("cos", fused, bytes=64), bytes=64))
    graph = g.build()
    prices = dict(zip(graph.names, StepTime(DEVICE).terms(graph).save_cost.tolist(), strict=True))
    assert (prices["weight"], prices["x"], prices["product"]) == (0, 64, 64)
    assert prices["fused"] == 64  # a product reads it, so that it is in memory anyway


def test_recomputation_costs_what_the_roofline_says() -> None:
    g = GraphBuilder()
    y = g.op("sin", g.input("x", bytes=64), name="y", bytes=64)
    g.output(g.op("exp", y, bytes=64))
    g.gradient(g.op("mul", g.tangent("dy", bytes=64), g.op("cos", y, bytes=64), bytes=64))
    graph = g.build()
    terms, expected = StepTime(DEVICE).terms(graph), RecomputeTime(Roofline(DEVICE)).terms(graph)
    assert terms.recompute_cost.tolist() == expected.recompute_cost.tolist()
    assert terms.cannot_save.as_dict() == expected.cannot_save.as_dict()
    assert terms.save_cost[graph.index["y"]] == 128  # its write and its read: no kernel of the forward pass writes it


def test_the_optimum_is_one_minimum_cut_with_a_proof() -> None:
    graph = remat.Corpus.open().graph("small-bert")
    solution = remat.solve(StepTime().pose(graph))
    assert solution.is_proven
    least_time = remat.solve(RecomputeTime("roofline").pose(graph)).plan
    assert solution.plan is not None
    assert least_time is not None
    assert solution.objective is not None
    assert solution.objective < remat.check_plan(StepTime().pose(graph), least_time)


def test_an_unknown_device_is_refused_where_it_is_typed() -> None:
    with pytest.raises(UnknownName, match="h1000"):
        StepTime("h1000")
    with pytest.raises(UnknownName, match="h1000"):
        MemoryBudget(estimator="roofline:device=h1000")
