"""Predicts the live bytes of a compiled step over its kernels and calls: see `remat.predict.buffers` for the model.

`remat.predict.memory` models any compiler that fuses, and is fast enough for a search. This module predicts the buffers
that the code of TorchInductor allocates on one backend.
"""

from __future__ import annotations

from remat.answer.plan import Plan
from remat.errors import InvalidOption
from remat.facts.argument_checks import checked_flag
from remat.facts.graph import Graph, checked_graph
from remat.predict.buffers import StepMemory, records_calls
from remat.predict.buffers.orders import with_torchs_order
from remat.predict.memory.simulator import simulate
from remat.predict.memory.timeline import Timeline
from remat.predict.time.known_devices import backend_of
from remat.proof.validate import legal_choice


def timeline(
    graph: Graph,
    plan: Plan,
    *,
    holds_outputs: bool = True,
    device: str | None = None,
    copy_stream: bool = False,
    torchs_order: bool = False,
) -> Timeline:
    """Predicts live bytes over the kernels and library calls of a compiled training step under a plan.

    Args:
        graph: the joint graph.
        plan: a legal plan for it. Offloaded values are copied between kernels, as in compiled steps; the bytes are
            those of the device alone. `remat.offload_timeline` models concurrent copies with times.
        holds_outputs: whether the caller holds the forward outputs until the end of the backward pass.
        device: the device of the kernels: "cpu", or a GPU such as "a100" or "h100". None for the device on which the
            graph was captured; a hand-written graph without calls is then simulated value by value
            (`remat.predict.memory`).
        copy_stream: whether offloaded values are copied in a CUDA stream of their own (see `remat.compile`).
        torchs_order: whether the kernels have the order that `torch.compile` finds on its own; by default, they have
            that of `remat.compile` (`remat.pytorch.KernelOrder`), unless the graph comes from a step that runs without
            it. Value by value, there are no kernels.

    Raises:
        InvalidPlan: the plan names unknown values, is not legal, or was made for another graph.
        InvalidGraph: a call that the graph records cannot be parsed, or is missing.
        InvalidOption: the graph is no `Graph` or the plan no `Plan`; a flag is neither True nor False; or `copy_stream`
            is used value by value.
        UnknownName: no device has this name.

    >>> from remat import GraphBuilder
    >>> g = GraphBuilder()
    >>> y = g.op("cos", g.op("cos", g.input("x", bytes=4), name="inner"), name="y")
    >>> g.output(y)
    >>> g.gradient(g.op("mul", g.tangent("dy", bytes=4), g.op("sin", "inner"), name="dx"))
    >>> print(timeline(g.build(), Plan(("inner",), ("sin",)), device="a100"))
    forward pass: 1 steps, peak 8 B, 8 B at its end, 4 B of them saved
    backward pass: 1 steps, peak 8 B
    peak: 8 B at step 0, y (cos) of the forward pass,
      where 2 storages are alive:
             4 B  saved      inner
             4 B  output     y
    """
    checked_flag("holds_outputs", holds_outputs)
    checked_flag("copy_stream", copy_stream)
    checked_flag("torchs_order", torchs_order)
    choice = legal_choice(checked_graph(graph), plan)
    if device is None and not records_calls(graph):
        if copy_stream:
            raise InvalidOption(
                "copy_stream=True is for predicted kernels, and this graph was written without the calls of its "
                "operators: name a device, such as 'h100'"
            )
        return simulate(graph, plan, holds_outputs=holds_outputs)
    backend = None if device is None else backend_of(device)
    graph = graph.derived(with_torchs_order) if torchs_order else graph
    memory = StepMemory(graph, backend, holds_outputs=holds_outputs, copy_stream=copy_stream)
    return memory.timeline(choice.saved, choice.offloaded)
