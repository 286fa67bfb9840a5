"""Predicts the live bytes of a compiled step over its kernels and calls: see `remat.predict.buffers` for the model.

`remat.predict.memory` models any compiler that fuses, and is fast enough for a search. Here the buffers are those that
the code of TorchInductor allocates for one backend.
"""

from __future__ import annotations

from remat.answer.plan import Plan
from remat.errors import InvalidOption
from remat.facts.argument_checks import checked_flag
from remat.facts.graph import Graph, checked_graph
from remat.predict.buffers import StepMemory, records_calls
from remat.predict.memory.simulator import simulate
from remat.predict.memory.timeline import Timeline
from remat.predict.time.known_devices import backend_of
from remat.proof.validate import legal_choice


def timeline(
    graph: Graph, plan: Plan, *, holds_outputs: bool = True, device: str | None = None, copy_stream: bool = False
) -> Timeline:
    """Predicts live bytes over the kernels and library calls of a compiled training step under a plan.

    Args:
        graph: the joint graph.
        plan: a legal plan for it. What it offloads is copied between kernels, as compiled steps do; the bytes are those
            of the device alone. For copies beside kernels, on a clock, see `remat.offload_timeline`.
        holds_outputs: the caller keeps the outputs of the forward pass until the end of the backward.
        device: whose kernels they are: "cpu", or a GPU such as "a100" or "h100". None for the device on which the graph
            was captured; then one that was written by hand, without the calls of its operators, is simulated value by
            value (`remat.predict.memory`).
        copy_stream: what is offloaded is copied in a stream of its own (see `remat.compile`).

    Raises:
        InvalidPlan: the plan names unknown values, is not legal, or was made for another graph.
        InvalidGraph: a call recorded in the graph cannot be read, or is missing.
        InvalidOption: no graph, or no plan; a flag is neither True nor False; or `copy_stream`, value by value.
        UnknownName: there is no such device.

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
    choice = legal_choice(checked_graph(graph), plan)
    if device is None and not records_calls(graph):
        if copy_stream:
            raise InvalidOption(
                "copy_stream=True is for predicted kernels, and this graph was written without the calls of its "
                "operators: name a device, such as 'h100'"
            )
        return simulate(graph, plan, holds_outputs=holds_outputs)
    backend = None if device is None else backend_of(device)
    memory = StepMemory(graph, backend, holds_outputs=holds_outputs, copy_stream=copy_stream)
    return memory.timeline(choice.saved, choice.offloaded)
