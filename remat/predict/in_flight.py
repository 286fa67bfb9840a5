"""Computes the peak of a graph while several of its calls are alive, as in a stage of a pipeline.

While one call runs, each of the others waits with what it saved and what it returned, in whatever order they run.
Gradients of parameters are in memory once, however many calls have added to them.
"""

from __future__ import annotations

import numpy as np

from remat.facts.graph import Graph
from remat.predict.memory.timeline import Timeline


def peak_in_flight(graph: Graph, line: Timeline, calls: int) -> int:
    """Returns the most bytes alive while one call runs and all others wait for their backward passes.

    Args:
        graph: the joint graph.
        line: the timeline of one call.
        calls: how many calls are alive at the same time. For one, this is the peak of the timeline. For more, gradients
            of parameters that earlier calls have left count, too: a stage of a pipeline runs more microbatches than it
            holds at a time.
    """
    return line.peak_bytes + other_calls_bytes(graph, line, calls)


def other_calls_bytes(graph: Graph, line: Timeline, calls: int) -> int:
    """Returns the bytes that other calls hold or have left as gradients; arguments are those of `peak_in_flight`."""
    return 0 if calls == 1 else (calls - 1) * line.at_forward_end + accumulated_bytes(graph)


def accumulated_bytes(graph: Graph) -> int:
    """Returns an upper bound on the bytes of the parameters' gradients, to which each call adds its own."""
    gradients = graph.owners(graph.gradient) & ~graph.input
    # A graph does not say which gradients are those of parameters; these are no larger than their parameters.
    return min(int(graph.bytes[of].sum()) for of in (gradients, graph.parameter))


def result_bytes(graph: Graph) -> int:
    """Returns the bytes of the storages that a call returns, without those of inputs."""
    return int(graph.bytes[graph.owners(graph.output) & ~graph.input].sum())


def argument_bytes(graph: Graph) -> int:
    """Returns the bytes of the inputs that each call has of its own: those that are not parameters."""
    return int(graph.bytes[graph.input & ~graph.parameter & (graph.base == np.arange(len(graph)))].sum())
