"""Values that look alike up to a distance have one colour: those of equal layers, with their dropouts."""

from __future__ import annotations

import torch

import remat
from remat import Graph, GraphBuilder
from remat.improve.equivalence_classes import equivalence_classes


def layer(g: GraphBuilder, x: str, i: int) -> str:
    """A perceptron with a residual: x + gelu(x @ w) @ v."""
    up = g.op("mm", x, g.input(f"w{i}", bytes=9, parameter=True), bytes=40, name=f"up{i}", compute_bound=True)
    act = g.op("mul", up, g.op("tanh", up, name=f"tanh{i}"), name=f"act{i}")
    down = g.op("mm", act, g.input(f"v{i}", bytes=9, parameter=True), bytes=10, name=f"down{i}", compute_bound=True)
    return g.op("add", x, down, name=f"x{i + 1}")


def deep(layers: int) -> Graph:
    """Perceptrons in a row."""
    g = GraphBuilder()
    x = g.op("sin", g.input("tokens", bytes=10), name="x0")
    for i in range(layers):
        x = layer(g, x, i)
    g.output(g.op("cos", x, name="loss"))
    back = g.op("mul", g.tangent("d", bytes=10), g.op("sin", x, name="dcos"), name="dx")
    for i in reversed(range(layers)):
        dact = g.op("mm", back, f"v{i}", bytes=40, compute_bound=True, name=f"dact{i}")
        g.gradient(g.op("mm", back, f"act{i}", bytes=9, compute_bound=True, name=f"dv{i}"))
        slope = g.op("mul", f"up{i}", f"tanh{i}", name=f"slope{i}")
        dup = g.op("mul", dact, slope, name=f"dup{i}")
        g.gradient(g.op("mm", dup, f"x{i}", bytes=9, compute_bound=True, name=f"dw{i}"))
        inner = g.op("mm", dup, f"w{i}", bytes=10, compute_bound=True, name=f"dinner{i}")
        back = g.op("add", back, inner, name=f"dx{i}")
    g.gradient(g.op("mul", back, g.op("cos", "tokens", name="dsin"), name="dtokens"))
    return g.build()


def test_equal_values_of_equal_layers_have_one_colour() -> None:
    graph = deep(9)
    colour = dict(zip(graph.names, equivalence_classes(graph, 2).tolist(), strict=True))
    for name in ("up", "tanh", "act", "down", "slope", "dup", "dw"):
        assert len({colour[f"{name}{i}"] for i in range(2, 7)}) == 1
    assert len({colour[name] for name in ("up4", "tanh4", "act4", "down4", "x4", "slope4", "dup4")}) == 7
    # As far as the ends, nothing is equal.
    assert len(set(equivalence_classes(graph, len(graph)).tolist())) == len(graph)


def test_dropouts_of_equal_layers_have_one_colour_though_each_has_its_own_seed() -> None:
    def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(9):
            x = torch.nn.functional.dropout((x @ w).relu(), 0.1)
        return x

    graph = remat.capture(layers, torch.randn(8, 8), torch.randn(8, 8, requires_grad=True))
    colours = equivalence_classes(graph, 2)[[v for v, op in enumerate(graph.ops) if op.startswith("aten.gt")]]
    assert len(colours) == 9
    assert len(set(colours[3:6].tolist())) == 1
