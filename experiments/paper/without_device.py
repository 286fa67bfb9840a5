"""Schedules plans for a GPU that is not there: TorchInductor's Triton kernels, its peak, and a modelled time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch._subclasses import FakeTensorMode

from costmodels import ByteTraffic
from experiments.accuracy.inductor_peak import planned_peak
from experiments.accuracy.peak_error import SaveEverything, solved
from experiments.paper.methods import AGGRESSIVE, FULL, MIN_CUT, NO, OURS, cut
from experiments.paper.table import VIRTUAL, Figures
from remat import Choice, CostModel, Graph, Plan, predict_traffic, timeline
from remat.answer.plan_facts import PlanFacts
from remat.predict.kernels import Kernel
from remat.predict.time import ModelledTime, modelled_time
from remat.pytorch.inductor.scheduled import Scheduled, renamed
from remat.pytorch.inductor.traffic_count import InductorKernel, scheduled_kernels

T = TypeVar("T")

COST_MODELS: dict[str, CostModel] = {NO: SaveEverything(), AGGRESSIVE: ByteTraffic(mode="aggressive")}

FIGURES = {"kernels": "kernels", "modelled_ms": "time of a step, modelled (ms)"}
"""What a row without a device has in any table, and the headings."""


@dataclass(frozen=True)
class UnlaunchedStep:
    """Says what a plan becomes on a GPU, by TorchInductor's own schedule, without running anything.

    Attributes:
        kernels: of both passes, in order.
        saved_bytes: kept between the passes; parameters, buffers and arguments apart.
        peak_bytes: the most that either pass holds, by Inductor's memory planner: what is saved, temporary
            buffers, outputs and gradients; parameters, buffers, arguments, tangents and workspaces apart.
        time: of the kernels on `VIRTUAL`.
    """

    kernels: tuple[Kernel, ...]
    saved_bytes: int
    peak_bytes: int
    time: ModelledTime

    @property
    def bytes(self) -> int:
        """Bytes read and written by all kernels."""
        return sum(kernel.bytes for kernel in self.kernels)

    @property
    def accesses(self) -> int:
        """Tensors of the graph that kernels read or write, each once a kernel."""
        return sum(len(kernel.reads) + len(kernel.writes) for kernel in self.kernels)

    @property
    def figures(self) -> Figures:
        """The figures that have the same meaning in every table."""
        return {"kernels": len(self.kernels), "modelled_ms": self.time.ns / 1e6}


def fakes(make: Callable[[], T]) -> T:
    """Makes a model or tensors without contents."""
    with FakeTensorMode():
        return make()


def scheduled(graph: Graph, plan: Plan) -> UnlaunchedStep:
    """Has Inductor schedule a plan for the GPU."""
    facts = PlanFacts.of(graph, plan)
    found: list[InductorKernel] = []
    peaks: list[int] = []

    def visit(lowering: Any, inputs: Mapping[str, str], _: Sequence[str]) -> None:
        found.extend(renamed(kernel, inputs) for kernel in scheduled_kernels(lowering))
        peaks.append(planned_peak(lowering, facts.saved_inputs))

    Scheduled(graph, device=VIRTUAL).visit(plan, visit)
    kernels = in_graph(found, graph)
    return UnlaunchedStep(kernels, facts.saved_bytes, max(peaks, default=0), modelled_time(graph, kernels, VIRTUAL))


def operator_by_operator(graph: Graph, plan: Plan) -> UnlaunchedStep:
    """Models a step that runs each operator of the two graphs by itself; the peak is simulated."""
    kernels = predict_traffic(graph, plan, fused=False).kernels
    saved_bytes, peak_bytes = PlanFacts.of(graph, plan).saved_bytes, timeline(graph, plan).peak_bytes
    return UnlaunchedStep(kernels, saved_bytes, peak_bytes, modelled_time(graph, kernels, VIRTUAL))


def plan_of(method: str, graph: Graph, torchs: Plan) -> Plan:
    """Finds the plan of one of `experiments.paper.methods`, of PyTorch's own for this graph."""
    if method in (FULL, MIN_CUT):
        return torchs
    return cut(graph) if method == OURS else solved(graph, COST_MODELS[method])


def in_graph(found: Iterable[InductorKernel], graph: Graph) -> tuple[Kernel, ...]:
    """Finds in the graph what kernels compute, read and write; what Inductor has made itself is not there.

    Inductor names for a kernel also what its arguments were made of. So a value counts once a pass: a product for the
    first call that names it, anything else for the first kernel.
    """
    seen: set[tuple[bool, int]] = set()
    kernels: list[Kernel] = []
    for kernel in found:
        named = _positions(kernel.operators, graph)
        values = [
            v for v in named if not (kernel.generated and graph.compute_bound[v]) and (kernel.backward, v) not in seen
        ]
        seen |= {(kernel.backward, v) for v in values}
        reads, writes = (
            _positions([name for name, _ in accessed], graph) for accessed in (kernel.reads, kernel.writes)
        )
        written_bytes = sum(size for _, size in kernel.writes)
        read_bytes = kernel.bytes - written_bytes
        kernels.append(
            Kernel(kernel.backward, kernel.generated, tuple(values), reads, writes, read_bytes, written_bytes)
        )
    return tuple(kernels)


def _positions(names: Iterable[str], graph: Graph) -> tuple[int, ...]:
    return tuple(graph.index[name] for name in names if name in graph.index)


def as_marked(graph: Graph, plan: Plan) -> Plan:
    """Saves also what is marked MUST_SAVE: the outputs of checkpointed layers.

    PyTorch's own plan recomputes those that are elements of tuples, such as of a pooling, whatever their mark.
    """
    return Choice.from_saved(graph, Choice.from_plan(graph, plan).saved | graph.must_save).plan(graph)
