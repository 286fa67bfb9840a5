"""What the tests of kernels compare: predicted ones with those that Inductor schedules."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any, Literal

import remat
from costmodels import ByteTraffic
from remat import Graph, Plan, solve
from remat.predict.kernels import kernels
from remat.pytorch import virtual_gpu
from remat.pytorch.inductor.rehearsed import WrittenPass, peak_of_passes
from remat.pytorch.inductor.scheduled import Scheduled, scheduled_kernels
from remat.pytorch.seam.virtual_gpu import captured_for


def facts(kernels: Iterable[Any]) -> list[tuple[bool, bool, int]]:
    """The pass, the maker (Inductor, or a library) and the bytes of each kernel, in no order."""
    return sorted((kernel.backward, kernel.generated, kernel.bytes) for kernel in kernels)


def best_plan(graph: Graph, mode: Literal["conservative", "aggressive"] = "conservative") -> Plan:
    """The plan that moves the fewest bytes between the passes."""
    return solve(ByteTraffic(mode=mode).pose(graph)).plan


def assert_as_inductor(graph: Graph, plan: Plan, *, device: str | None = None, peak: bool = False) -> None:
    """Predicted kernels are Inductor's, and with `peak`, the predicted peak is that of the code that it writes.

    Inductor lowers the graph once for both.

    Args:
        device: for which the graph is scheduled, if that is another one than it was captured for.
    """
    scheduled, found, passes = Scheduled(graph, device=device), list[Any](), list[WrittenPass]()

    def visit(lowering: Any, *names: Any) -> None:
        found.extend(scheduled_kernels(lowering))
        if peak:
            passes.append(WrittenPass.of(lowering, *names))

    with virtual_gpu(captured_for(graph.meta)) if graph.meta.get("gpu") else nullcontext():
        scheduled.visit(plan, visit)
        backend = None if device is None else "cpu" if device == "cpu" else "triton"
        assert facts(kernels(graph, plan, backend=backend)) == facts(found)
        if peak:
            joint = scheduled.joint_graph
            written = peak_of_passes(passes, joint.fake_mode, joint.num_fwd_outputs)
            assert remat.timeline(graph, plan).peak_bytes == written
