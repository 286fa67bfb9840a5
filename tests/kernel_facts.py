"""What the tests of kernels compare: predicted ones with those that Inductor schedules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from costmodels import ByteTraffic
from remat import Graph, Plan, solve


def facts(kernels: Iterable[Any]) -> list[tuple[bool, bool, int]]:
    """The pass, the maker (Inductor, or a library) and the bytes of each kernel, in no order."""
    return sorted((kernel.backward, kernel.generated, kernel.bytes) for kernel in kernels)


def best_plan(graph: Graph, mode: Literal["conservative", "aggressive"] = "conservative") -> Plan:
    """The plan that moves the fewest bytes between the passes."""
    return solve(ByteTraffic(mode=mode).pose(graph)).plan
