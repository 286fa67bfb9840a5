"""Predicts the memory traffic of a training step under a plan, kernel by kernel: see `remat.predict.kernels`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from remat.answer.plan import Plan
from remat.answer.plan_facts import PlanFacts
from remat.errors import InvalidOption
from remat.facts.graph import Graph
from remat.predict.kernels import Kernel, backend_for, kernels
from remat.predict.time.known_devices import backend_of
from remat.words import cut, human_bytes, wrapped

_SHOWN, _WIDTH = 4, 80
_WHOSE = {"cpu": "kernels for CPUs", "triton": "Triton kernels", "": "kernels without fusion"}


@dataclass(frozen=True)
class PredictedTraffic:
    """Holds the kernels of both passes, and the bytes that they read and write.

    Attributes:
        kernels: the forward pass's, then the backward pass's, in execution order.
        names: the names of the values of the graph, for tables.
        places: the lines of the model that compute them (`remat.Graph.places`), for tables.
        backend: TorchInductor's backend, "cpu" or "triton" (for GPUs); "" without fusion.
        offloaded_bytes: the bytes that are copied to the host; as many are copied back. No kernel makes these copies,
            and no sum below includes them.
    """

    kernels: tuple[Kernel, ...]
    names: tuple[str, ...] = field(default=(), repr=False)
    backend: str = ""
    places: tuple[str, ...] = field(default=(), repr=False)
    offloaded_bytes: int = 0

    @property
    def reads(self) -> int:
        """Returns how many tensors are read; each counts once per kernel that reads it."""
        return sum(len(kernel.reads) for kernel in self.kernels)

    @property
    def writes(self) -> int:
        return sum(len(kernel.writes) for kernel in self.kernels)

    @property
    def accesses(self) -> int:
        """Counts reads and writes of tensors: "Mem" in Table 1 of the paper (Yu and He)."""
        return self.reads + self.writes

    @property
    def read_bytes(self) -> int:
        return sum(kernel.read_bytes for kernel in self.kernels)

    @property
    def written_bytes(self) -> int:
        return sum(kernel.written_bytes for kernel in self.kernels)

    @property
    def bytes(self) -> int:
        return self.read_bytes + self.written_bytes

    def __str__(self) -> str:
        lines = list[str]()
        for k in self.kernels:
            head = (
                f"{'backward' if k.backward else 'forward':<8}  {'kernel' if k.generated else 'call':<6}  "
                f"{human_bytes(k.read_bytes):>10} read  {human_bytes(k.written_bytes):>10} written"
            )
            lines += wrapped(head, f"{self._listed(k.reads)} -> {self._listed(k.writes)}")
            if self.places and (place := self.places[(k.values or k.writes)[-1]]):
                lines.append(f"    {cut(place, _WIDTH - 4)}")
        counts = Counter(k.backward for k in self.kernels)
        lines += [
            f"{len(self.kernels)} {_WHOSE[self.backend]} ({counts[False]} forward, {counts[True]} backward): "
            f"{human_bytes(self.read_bytes)} read,",
            f"{human_bytes(self.written_bytes)} written, {self.reads} reads and {self.writes} writes of tensors",
        ]
        if self.offloaded_bytes:
            lines.append(f"besides, {human_bytes(self.offloaded_bytes)} are copied to the host, and as much back")
        return "\n".join(lines)

    def _listed(self, values: Iterable[int]) -> str:
        names = [self.names[v] if v < len(self.names) else str(v) for v in values]
        more = f", and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return (", ".join(names[:_SHOWN]) or "nothing") + more


def predict_traffic(
    graph: Graph, plan: Plan, *, fused: bool = True, backend: str | None = None, device: str | None = None
) -> PredictedTraffic:
    """Predicts the memory traffic of a training step under a plan.

    The kernels are those of TorchInductor for one device. They differ: for GPT-2 small, CPUs move a fifth more. A graph
    that was captured on a CPU has kernels for CPUs by default, and those of a GPU with `backend="triton"`. Its
    operators stay those of a CPU; a GPU has another attention operator, which saves other values.

    Args:
        graph: the joint graph.
        plan: a legal plan for it.
        fused: whether operators fuse as in TorchInductor; otherwise every operator is a kernel.
        backend: "cpu", or "triton" for GPUs; None for the device on which the graph was captured. It has no effect
            without fusion.
        device: "cpu", "cuda" or a GPU such as "a100" or "h100": another way to choose the backend.

    Raises:
        InvalidPlan: the plan names unknown values, is not legal, or was made for another graph.
        InvalidGraph: a call that the graph records cannot be parsed, or is missing.
        InvalidOption: graph or plan has the wrong type, or the backend is unknown, or not that of the device.
        UnknownName: no device has this name.

    >>> from remat import GraphBuilder
    >>> g = GraphBuilder()
    >>> y = g.op("cos", g.op("cos", g.input("x", bytes=4), name="inner"), name="y")
    >>> g.output(y)
    >>> g.gradient(g.op("mul", g.tangent("dy", bytes=4), g.op("sin", "inner"), name="dx"))
    >>> saved = predict_traffic(g.build(), Plan(("inner",), ("sin",)))
    >>> (saved.accesses, saved.bytes), predict_traffic(g.build(), Plan(("inner",), ("sin",)), fused=False).accesses
    ((6, 24), 9)
    """
    if device is not None:
        if backend not in (None, backend_of(device)):
            raise InvalidOption(f"backend={backend!r} is not the one for device={device!r}: leave one of them out")
        backend = backend_of(device)
    launches = kernels(graph, plan, fused=fused, backend=backend)
    name = backend_for(graph, backend).name if fused else ""
    return PredictedTraffic(launches, graph.names, name, graph.places, PlanFacts.of(graph, plan).offloaded_bytes)
