"""What can be offloaded."""

from __future__ import annotations

from pathlib import Path

import torch

from remat import Corpus, Graph, GraphBuilder, capture
from remat.plugin import cannot_offload


def reasons(graph: Graph) -> dict[str, str | None]:
    bans = cannot_offload(graph)
    return {name: bans.reason(i) for i, name in enumerate(graph.names)}


def test_what_is_not_contiguous_is_read_from_the_strides(tmp_path: Path) -> None:
    images = torch.randn(2, 3, 8, 8, requires_grad=True).to(memory_format=torch.channels_last)
    graph = capture(lambda x: x.exp().tanh().contiguous().exp().sum(), images)
    strided = [name for name, flag in zip(graph.names, graph.noncontiguous, strict=True) if flag]
    assert {"exp", "tanh"} <= set(strided)
    assert "clone" not in strided
    assert reasons(graph)["exp"] == "not contiguous: it would come back in rows"
    assert reasons(graph)["clone"] is None
    graph.save(tmp_path / "graph.json")
    assert Graph.load(tmp_path / "graph.json").noncontiguous.tolist() == graph.noncontiguous.tolist()


def test_strides_of_symbolic_sizes_are_read_and_guarded_by_nothing() -> None:
    x = torch.randn(5, 7, requires_grad=True)
    torch._dynamo.mark_dynamic(x, 0)
    graph = capture(lambda x: (x.t().exp().tanh() + x.exp().tanh().t()).sum(), x)
    assert any(dtype == "symint" for dtype in graph.dtypes)
    assert graph.noncontiguous.any()


def test_a_file_that_does_not_say_takes_values_for_contiguous(tmp_path: Path) -> None:
    graph = Corpus.open().graph("small-dropout-mlp")
    assert not graph.noncontiguous.any()
    graph.save(tmp_path / "graph.json")
    assert "noncontiguous" not in (tmp_path / "graph.json").read_text()


def test_each_reason_is_told() -> None:
    g = GraphBuilder()
    x, w, size = g.input("x", bytes=4), g.input("w", bytes=4, parameter=True), g.input("s", bytes=8, dtype="symint")
    view = g.op("view", x, view=True, name="view of an input")
    y = g.op("mm", view, w, size, name="y", bytes=4)
    g.op("view", y, view=True, name="view")
    double = g.op("add", size, size, name="double", bytes=8, dtype="symint")
    several = g.op("several", y, double, name="tuple", bytes=0, cannot_save="a tuple")
    g.op("getitem", several, name="element", bytes=4)
    out = g.op("exp", y, name="out", bytes=4)
    returned = g.op("view", out, name="returned", view=True)
    g.output(returned)
    dy = g.tangent("dy", bytes=4)
    g.gradient(g.op("mul", dy, y, out, view, "view", "element", double, name="dx"))
    holder = "which the caller holds"
    assert reasons(g.build()) == {
        "x": f"an input's memory, {holder}",
        "w": f"an input's memory, {holder}",
        "s": f"an input's memory, {holder}",
        "view of an input": f"an input's memory, {holder}",
        "y": None,
        "view": "a view: what owns its memory can be",
        "double": "no tensor with a size",
        "tuple": "a tuple",
        "element": None,
        "out": f"memory of an output, {holder}",
        "returned": f"memory of an output, {holder}",
        "dy": "only the backward pass computes it",
        "dx": "only the backward pass computes it",
    }
