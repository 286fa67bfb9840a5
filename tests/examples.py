"""Joint graphs that several tests draw, compare and explain."""

from __future__ import annotations

from dataclasses import replace

from remat import Graph, GraphBuilder
from remat.predict.time import DeviceProfile

SLOW_LINK = DeviceProfile(
    "toy", {"float32": 1e9}, 1e9, 1000.0, source="made up", host_bytes_per_s=1e8, host_latency_ns=50.0
)
"""A byte takes a nanosecond to read or write, and ten to copy to the host."""


def with_backward(g: GraphBuilder, names: list[str], modules: dict[str, str]) -> Graph:
    """Builds the graph of a chain: the backward pass reads all values but the input, the last one first.

    Args:
        names: the input, and what is computed from it; the last one is the output.
        modules: the path of the module that computes each value.
    """
    g.output(names[-1])
    late = g.tangent("dy", bytes=8)
    for name in reversed(names[1:]):
        late = g.op("mul", late, name, bytes=8)
    g.gradient(late)
    graph = g.build()
    return replace(graph, modules=tuple(modules.get(name, "") for name in graph.names))


def cosines(size: int = 4 * 2**20) -> Graph:
    """y = cos(cos(a + b + c + d)), as in figure 2 of the paper. The optimum saves `add3` alone."""
    g = GraphBuilder()
    for name in "abcd":
        g.input(name, bytes=size)
    g.op("add", "a", "b", name="add1")
    g.op("add", "add1", "c", name="add2")
    g.op("add", "add2", "d", name="add3")
    g.op("cos", "add3", name="cos1")
    g.output(g.op("cos", "cos1", name="cos2"))
    dy = g.tangent("grad_out", bytes=size)
    outer = g.op("mul", dy, g.op("sin", "cos1", name="sin2"), name="mul2")
    g.gradient(g.op("mul", outer, g.op("sin", "add3", name="sin1"), name="grad_in"))
    return g.build()


def linear_dropout() -> Graph:
    """dropout(x @ w.T), with a transposed view, a tuple that cannot be saved, and an input that must be."""
    g = GraphBuilder()
    x, w, seed = g.input("x", bytes=400), g.input("w", bytes=100), g.input("seed", bytes=8)
    t = g.op("t", w, view=True)
    mm = g.op("mm", x, t, bytes=400, compute_bound=True)
    pair = g.op("philox", seed, bytes=0, cannot_save="a tuple")
    mask = g.op("getitem", pair, bytes=100, random=True, name="mask")
    g.output(g.op("mul", mm, mask))
    dy = g.tangent("dy", bytes=400)
    back = g.op("mul", dy, mask, name="dmm")
    g.gradient(
        g.op("mm", back, x, bytes=100, name="dw"), g.op("mm", back, g.op("t", t, view=True, name="tt"), name="dx")
    )
    return g.build()


def impossible() -> Graph:
    """Needs a random value that is a tuple: it can be neither saved nor recomputed."""
    g = GraphBuilder()
    g.input("seed", bytes=8)
    g.op("rand", "seed", random=True, cannot_save="a tuple")
    g.output("rand")
    g.gradient(g.op("mul", g.tangent("dy"), "rand", name="dx"))
    return g.build()


def chain(length: int) -> Graph:
    """x -> cos -> cos -> ..., with a sine and a product for each on the way back."""
    g = GraphBuilder()
    last = g.input("x", bytes=64)
    forward = [last := g.op("cos", last) for _ in range(length)]
    g.output(last)
    back = g.tangent("dy", bytes=64)
    for value in reversed([*forward[:-1]]):
        back = g.op("mul", back, g.op("sin", value))
    g.gradient(back)
    return g.build()


def library_calls() -> Graph:
    """x -> a -> b -> the loss, with calls of libraries alone; the backward pass reads b, then a."""
    g = GraphBuilder()
    a = g.op("mm", g.input("x", bytes=100), name="a", bytes=100, compute_bound=True)
    b = g.op("mm", a, name="b", bytes=100, compute_bound=True)
    g.output(g.op("sum", b, name="loss", bytes=4, fusible=False))
    db = g.op("mm", g.tangent("dloss", bytes=4), b, name="db", bytes=100, compute_bound=True)
    g.gradient(g.op("mm", db, a, name="da", bytes=100, compute_bound=True))
    return g.build()
