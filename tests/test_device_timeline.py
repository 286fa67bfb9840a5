"""Live memory by predicted kernels: beside Inductor's own plan of a GPU's memory, without one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from depth import deep

import remat
from costmodels import ByteTraffic
from experiments.accuracy.inductor_peak import planned_peak
from remat.errors import UnknownName
from remat.predict.memory import simulate
from remat.pytorch.inductor.scheduled import Scheduled

INSTANCES = Path(__file__).parents[1] / "experiments" / "instances"


def solved(graph: remat.Graph, mode: str) -> remat.Plan:
    plan = remat.solve(ByteTraffic(mode=mode).pose(graph)).plan
    assert plan is not None
    return plan


@pytest.mark.parametrize("mode", ["conservative", "aggressive"])
@pytest.mark.parametrize(
    ("name", "off_by"),
    [
        ("small-layernorm-gelu-mlp", 0.002),
        pytest.param("small-resnet", 0.002, marks=deep),  # scatters into a buffer of zeros
        pytest.param("unet", 0.14, marks=deep),  # parts of concatenations
    ],
)
def test_the_peak_is_the_one_that_inductor_plans_for_a_gpu(name: str, off_by: float, mode: str) -> None:
    graph = remat.Graph.load(INSTANCES / f"{name}.json.gz")
    plan, peaks = solved(graph, mode), []
    inputs = {value for value in plan.saved if graph.input[graph.base[graph.index[value]]]}

    def visit(lowering: Any, names: Any, _: Any) -> None:
        peaks.append(planned_peak(lowering, [passed for passed, own in names.items() if own in inputs]))

    Scheduled(graph, device="a100").visit(plan, visit)
    timeline = remat.timeline(graph, plan, holds_outputs=False, device="a100")
    for ours, theirs in zip((timeline.forward_peak_bytes, timeline.backward_peak_bytes), peaks, strict=True):
        assert ours == pytest.approx(theirs, rel=off_by)


def test_a_step_is_a_kernel_and_what_is_saved_the_same() -> None:
    graph = remat.Graph.load(INSTANCES / "small-resnet.json.gz")
    plan = solved(graph, "conservative")
    by_value, by_kernel = simulate(graph, plan), remat.timeline(graph, plan, device="h100")
    traffic = remat.predict_traffic(graph, plan, device="h100")
    assert traffic.backend == "triton"
    assert len(by_kernel) == len(traffic.kernels) < len(by_value)
    assert by_kernel.saved_bytes == by_value.saved_bytes
    assert by_kernel.at_forward_end == by_value.at_forward_end
    assert len(remat.timeline(graph, plan, device="cpu")) < len(by_kernel)  # kernels between calls are one function
    with pytest.raises(UnknownName, match=r"no device is named 'h10'.*did you mean 'h100'"):
        remat.timeline(graph, plan, device="h10")
