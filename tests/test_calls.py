"""A call written into `Graph.arguments` is the call that was made, and can be made again."""

from __future__ import annotations

import json
import operator
from pathlib import Path
from typing import Any

import pytest
import torch
from strategies import flat, small_gpt
from torch import fx, nn
from torch.nn import functional as F

import remat
from remat import Graph, GraphBuilder
from remat.errors import InvalidGraph
from remat.pytorch.read.call_text import CannotRebuild, call_of, call_texts
from remat.pytorch.read.operators import Operators
from remat.pytorch.read.sample_call import rebuild, result_mismatch

CPU = torch.device("cpu")


def conv_net() -> tuple[nn.Module, torch.Tensor]:
    """Convolutions, batch norm, max pooling and a linear head, with an image each of two."""
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, stride=2, groups=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 4),
    )
    return model, torch.randn(2, 3, 16, 16)


def attention() -> Graph:
    def attend(x: torch.Tensor) -> torch.Tensor:
        q, k, v = x.chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    return remat.capture(attend, torch.randn(1, 2, 16, 48, requires_grad=True))


def symbolic() -> Graph:
    x = torch.randn(6, 4, requires_grad=True)
    torch._dynamo.mark_dynamic(x, 0)
    return remat.capture(lambda x: (x.reshape(2, -1) @ torch.ones(x.shape[0] * 2, 3)).sin(), x)


@pytest.mark.parametrize(
    "make", [lambda: remat.capture(*flat(small_gpt())), lambda: remat.capture(*conv_net()), attention, symbolic]
)
def test_every_operator_runs_again_and_gives_what_the_graph_says(make: Any, tmp_path: Path) -> None:
    made = make()
    made.save(tmp_path / "graph.json.gz")
    graph = Graph.load(tmp_path / "graph.json.gz")
    assert graph == made
    ran = 0
    for value, op in enumerate(graph.ops):
        if "." in op:
            wrong = result_mismatch(graph, value, rebuild(graph, value, CPU)())
            assert not wrong, f"{graph.names[value]} = {op}{graph.arguments[value]}: {wrong}"
            ran += 1
    assert ran >= 4
    assert any(graph.arguments)


def test_sizes_that_are_symbols_are_written_with_their_hints() -> None:
    graph = symbolic()
    hints = [text for text in graph.arguments if '"hint":' in text]
    assert hints
    assert any('"hint":6' in text or '"hint":12' in text for text in hints)


def traced(*args: Any, **kwargs: Any) -> tuple[str, ...]:
    """The texts of a call with `args`, in which "x" and "y" stand for two nodes; first, middle and last node."""
    graph = fx.Graph()
    nodes = {name: graph.placeholder(name) for name in "xy"}
    args, kwargs = fx.node.map_aggregate((args, kwargs), lambda a: nodes.get(a, a) if isinstance(a, str) else a)
    call = graph.call_function(operator.add, args, kwargs)
    return texts_of([*nodes.values(), call])


def texts_of(nodes: list[fx.Node]) -> tuple[str, ...]:
    return call_texts(nodes, [node.all_input_nodes for node in nodes], Operators.of(nodes), frozenset()).value()


@pytest.mark.parametrize(
    "args",
    [
        ("x", "y"),
        ("y", "x"),
        ("x", "x"),
        ("x",),
        (),
        ("x", 2, 0.5, True, None, "text"),
        ("x", float("inf"), -float("inf")),
        ("x", 1),
        ("x", 1.0),
        (["x", "y"], 0),
        (["x"], 0),
        ("x", [None, "y"], [1, [2, "x"]]),
        ("x", torch.bfloat16, torch.strided, torch.channels_last, CPU),
        ("x", 1 + 2j, slice(0, None, 2)),
    ],
)
@pytest.mark.parametrize("kwargs", [{}, {"alpha": "x"}, {"dtype": torch.int8, "other": "y", "sizes": [1, 2]}])
def test_a_call_comes_back_as_it_was(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    *_, text = traced(*args, **kwargs)
    order = list(dict.fromkeys(name for name in _flat((args, kwargs)) if name in ("x", "y")))
    got_args, got_kwargs = call_of(text, order, CPU)
    assert (repr(got_args), repr(got_kwargs)) == (repr(list(args)), repr(kwargs))
    assert (text == "") == (list(args) == order and not kwargs)


def _flat(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return _flat(list(tree.values()))
    if isinstance(tree, (list, tuple)):
        return [leaf for part in tree for leaf in _flat(part)]
    return [tree] if isinstance(tree, str) else []


def test_equal_constants_of_other_types_are_told_apart() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    calls = [graph.call_function(operator.add, (x, constant)) for constant in (1, 1.0, True, "1", 0.0, -0.0)]
    texts = texts_of(calls)
    assert [json.loads(text)[1] for text in texts] == [1, 1.0, True, "1", 0.0, 0.0]
    assert len(set(texts)) == len(calls)


def test_the_captured_device_gives_way_to_the_one_at_hand() -> None:
    args, _ = call_of('[{"v":0},{"device":"cuda:1"}]', ["x"], CPU)
    assert args == ["x", CPU]


def test_what_is_not_known_is_not_made_up() -> None:
    *_, text = traced("x", torch.Generator())
    assert text == '[{"v":0},{"unknown":"Generator"}]'
    with pytest.raises(CannotRebuild, match="an argument of type Generator"):
        call_of(text, ["x"], CPU)


@pytest.mark.parametrize(
    "text", ["[", "7", '{"args": []}', '[{"v":3}]', '[{"what":1}]', "[{}]", '[{"dtype":"float33"}]']
)
def test_a_text_that_is_no_call_is_one_clear_error(text: str) -> None:
    with pytest.raises(InvalidGraph, match=r"Graph\.arguments: .* is not a call of 1 producers"):
        call_of(text, ["x"], CPU)


def test_arguments_are_part_of_a_graph(tmp_path: Path) -> None:
    def build(call: str) -> Graph:
        g = GraphBuilder()
        g.input("x", bytes=8, dtype="float32", shape=(2,))
        g.output(g.op("aten.sum.dim_IntList", "x", bytes=4, dtype="float32", flops=2, call=call))
        return g.build()

    graph = build('[{"v":0},[0]]')
    assert graph.arguments == ("", '[{"v":0},[0]]')
    assert graph != build("")
    graph.save(tmp_path / "graph.json")
    assert Graph.load(tmp_path / "graph.json") == graph
    document = json.loads((tmp_path / "graph.json").read_text())
    del document["values"]["arguments"]
    document["version"] = 1
    (tmp_path / "older.json").write_text(json.dumps(document))
    assert Graph.load(tmp_path / "older.json") == build("")


def test_a_graph_has_a_call_for_every_value_or_none() -> None:
    g = GraphBuilder()
    g.output(g.op("sin", g.input("x")))
    graph = g.build()
    columns = {label: getattr(graph, label) for label in graph.__dataclass_fields__}
    assert Graph(**columns | {"arguments": ()}).arguments == ("", "")
    with pytest.raises(InvalidGraph, match=r"Graph\.arguments must have one entry a name \(2\), got 1"):
        Graph(**columns | {"arguments": ("",)})
