"""Values carry the module and the line of the model that made them, and whoever looks at a value is told both."""

from __future__ import annotations

import functools
import json
import linecache
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import answer, run
from examples import chain
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM
from transformers.models.llama import modeling_llama

import remat
from costmodels import MemoryBudget
from remat import Graph, GraphBuilder, Infeasible, InvalidPlan, Plan
from remat.answer.saved_lines import saved_lines
from remat.pytorch.read.places import module_path, source_line
from remat.pytorch.run import ranks
from remat.pytorch.run.report import Report

HERE = Path(__file__)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.up(self.norm(x)))
        return x + self.down(h)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().sum()


def at(code: str) -> str:
    """Where a line of this file is, given a part of it that no line before has."""
    number = next(i for i, line in enumerate(HERE.read_text().splitlines(), 1) if code in line)
    return f"{HERE.name}:{number}"


UP, DOWN, LOSS = at("h = F.gelu(self.up"), at("return x + self.down(h)"), at("return x.square().sum()")


@functools.cache
def captured() -> Graph:
    return remat.capture(Net(), torch.randn(4, 8))


def compiled(function: Callable[..., Any], x: Tensor) -> Graph:
    torch.compiler.reset()
    step = remat.compile(function, codegen=False)
    step(x).sum().backward()
    (planned,) = step.report().graphs
    return planned.graph


def found(graph: Graph, op: str, forward: bool) -> list[tuple[str, str]]:
    """The places of all values of one operator in one of the passes, in order."""
    return [
        (module, line)
        for module, line, name, ahead in zip(graph.modules, graph.sources, graph.ops, graph.in_forward, strict=True)
        if name == op and ahead == forward
    ]


@pytest.mark.parametrize("graph", [captured, lambda: compiled(Net(), torch.randn(4, 8))], ids=["capture", "compile"])
def test_each_value_is_where_its_module_and_line_made_it(graph: Callable[[], Graph]) -> None:
    values, layers = graph(), ("layers.0", "layers.1")
    lines = [(f"{layer}.{name}", line) for layer in layers for name, line in (("up", UP), ("down", DOWN))]
    assert found(values, "aten.addmm.default", forward=True) == lines
    assert found(values, "aten.erf.default", forward=True) == [(layer, UP) for layer in layers]
    assert found(values, "aten.rsqrt.default", forward=True) == [(f"{layer}.norm", UP) for layer in layers]
    assert found(values, "aten.sum.default", forward=True) == [("", LOSS)]
    # Of the backward pass: the density of the normal distribution, and two products for each of the forward pass.
    assert found(values, "aten.exp.default", forward=False) == [(layer, UP) for layer in reversed(layers)]
    products = found(values, "aten.mm.default", forward=False)
    assert products == [line for line in reversed(lines) for _ in range(2)]
    assert values.places[values.ops.index("aten.exp.default")] == f"backward of layers.1, {UP}"
    assert values.places[values.ops.index("aten.addmm.default")] == f"layers.0.up, {UP}"
    assert values.places[values.ops.index("aten.sum.default")] == LOSS
    inputs = [place for place, given in zip(values.places, values.input, strict=True) if given]
    assert f"input of layers.1.down, {DOWN}" in inputs
    assert all(place.startswith("input of ") for place in inputs)
    assert all(values.places)


def _free(x: Tensor) -> Tensor:
    return _helper(x.sin()) + x


def _helper(x: Tensor) -> Tensor:
    return x.exp()


def test_functions_have_lines_and_no_modules() -> None:
    x = torch.randn(8, requires_grad=True)
    for graph in (remat.capture(_free, x), compiled(_free, x)):
        assert found(graph, "aten.sin.default", forward=True) == [("", at("return _helper(x.sin())"))]
        assert found(graph, "aten.exp.default", forward=True) == [("", at("return x.exp()"))]
        assert found(graph, "aten.cos.default", forward=False) == [("", at("return _helper(x.sin())"))]


def test_modules_that_a_function_uses_are_named_as_there() -> None:
    class Task:
        def __init__(self) -> None:
            self.net = Layer()

        def loss(self, x: Tensor) -> Tensor:
            return self.net(x).sum()

    net, task, x = Layer(), Task(), torch.randn(4, 8)
    assert "up" in remat.capture(lambda x: net(x).sum(), x).modules
    assert "net.up" in compiled(lambda x: net(x).sum(), x).modules
    for graph in (remat.capture(task.loss, x), compiled(task.loss, x)):
        assert set(graph.modules) == {"", "net", "net.norm", "net.up", "net.down"}


def test_lines_of_torch_are_left_out() -> None:
    graph = remat.capture(nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.GELU(), nn.Linear(8, 8))), torch.randn(4, 8))
    assert set(graph.sources) == {""}
    assert {"0", "1.0", "1.1"} == set(filter(None, graph.modules))


def test_values_of_a_published_model_are_at_the_lines_that_name_their_modules() -> None:
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(**sizes, num_key_value_heads=1, intermediate_size=64))
    tokens = torch.randint(64, (2, 8))
    graph = remat.capture(model, tokens, labels=tokens)
    assert all(graph.places)
    assert set(graph.modules) <= {name for name, _ in model.named_modules()}
    projections = set[str]()
    for module, source in zip(graph.modules, graph.sources, strict=True):
        file, _, line = source.partition(":")
        if file == "modeling_llama.py" and module.endswith("_proj"):
            name = module.rpartition(".")[2]
            assert f"self.{name}" in linecache.getline(str(modeling_llama.__file__), int(line))
            projections.add(module.removeprefix("model.layers."))
    of_attention, of_mlp = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
    expected = {f"{i}.self_attn.{name}" for i in range(2) for name in of_attention}
    assert projections == expected | {f"{i}.mlp.{name}" for i in range(2) for name in of_mlp}


def test_what_a_pass_of_the_compiler_made_is_where_it_is_read() -> None:
    """Inductor rewrites attention that is written out, and leaves no notes: many values would have no place."""
    sizes = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = BertForMaskedLM(BertConfig(**sizes, intermediate_size=64, attn_implementation="eager"))
    graph = remat.capture(model, torch.randint(64, (2, 16)))
    assert all(graph.places)
    assert {module for module, _ in found(graph, "aten.bmm.default", forward=True)} == {
        "bert.encoder.layer.0.attention.self"
    }


@pytest.mark.parametrize(
    ("dynamos", "ours"),
    [
        ("L['self']", ""),
        ("L['self'].layers.3.mlp", "layers.3.mlp"),
        ("L['self']._modules['layers']._modules['3'].mlp", "layers.3.mlp"),
        ("L['self'].experts.a b", "experts.a b"),
        ("L['self'].func._orig_mod.0", "func.0"),
        ("L['nets'][0].layers.1", "nets.0.layers.1"),
        ("G['net']._checkpoint_wrapped_module.up", "net.up"),
        ("G['__import_my_models'].net.up", "net.up"),
        ("L['model_or_fn'].__self__.net.up", "net.up"),
        ("L['model_or_fn'].__closure__[1].cell_contents[0].up", "0.up"),
    ],
)
def test_paths_are_those_of_named_modules(dynamos: str, ours: str) -> None:
    assert module_path(dynamos) == ours


def test_a_line_is_the_innermost_of_the_model_without_its_folder() -> None:
    torchs, own = (str(Path(package.__file__).parent) for package in (torch, remat.pytorch))
    frames = [f"{own}/read/capture.py", "/home/a b/model.py", "/home/net.py", f"{torchs}/nn/modules/linear.py"]
    trace = "\n".join(f'  File "{path}", line {n}, in forward\n    x' for n, path in enumerate(frames, 1))
    assert source_line(f"{trace}\nGradient addition node due to multiple use of tensor around:") == "net.py:3"
    for cell in ("/tmp/ipykernel_12/3456.py", "<ipython-input-3-1a2b3c>", "/tmp/ipython-input-1-2.py"):
        assert source_line(f'  File "{cell}", line 2, in f') == "cell:2"
    assert not source_line(f'  File "{own}/read/capture.py", line 3, in call')


def test_files_keep_places_and_old_files_have_none(tmp_path: Path) -> None:
    graph, path = captured(), tmp_path / "net.json"
    graph.save(path)
    assert remat.Graph.load(path).places == graph.places
    document = json.loads(path.read_text())
    assert str(HERE.parent) not in path.read_text()  # a name of a file, not of a folder
    del document["values"]["modules"], document["values"]["sources"]
    path.write_text(json.dumps(document))
    assert not any(remat.Graph.load(path).places)
    remat.Graph.load(path).save(path)
    assert json.loads(path.read_text()) == document
    with pytest.raises(remat.errors.InvalidGraph, match=r"Graph\.sources must have one entry a name"):
        replace(graph, sources=("net.py:1",))


def test_a_moved_model_is_the_same_model() -> None:
    graph = captured()
    moved = replace(graph, sources=tuple("moved.py:1" for _ in graph.names), modules=())
    assert (moved, moved.signature) == (graph, graph.signature)
    assert ranks.key_of_graph(moved) == ranks.key_of_graph(graph)


# What people read.


def test_an_explanation_says_where(tmp_path: Path) -> None:
    graph, path = captured(), tmp_path / "net.json"
    graph.save(path)
    exp = graph.names[graph.ops.index("aten.exp.default")]
    assert f"In the model: backward of layers.1, {UP}." in str(remat.explain(graph, exp))
    assert answer("explain", path, exp)["place"] == f"backward of layers.1, {UP}"
    chain(2).save(path)
    assert "In the model" not in str(remat.explain(chain(2), "cos"))
    assert "place" not in answer("explain", path, "cos")


def test_a_timeline_says_where(tmp_path: Path) -> None:
    graph, path = captured(), tmp_path / "net.json"
    graph.save(path)
    plan = remat.choose(graph).plan
    timeline = remat.timeline(graph, plan or pytest.fail("no plan"))
    assert timeline.peak_place == graph.places[graph.index[timeline.names[timeline.peak_step]]]
    assert f"  {timeline.peak_place}," in str(timeline).splitlines()
    assert all(tensor.place == graph.places[graph.index[tensor.name]] for tensor in timeline.peak_tensors)
    assert f"{timeline.peak_tensors[0].name} ({timeline.peak_tensors[0].place})" in str(timeline)
    assert answer("inspect", "timeline", path)["peak_tensors"][0]["place"] == timeline.peak_tensors[0].place
    long = replace(
        timeline.peak_tensors[0], place="backward of model.layers.0.post_attention_layernorm, modeling.py:57"
    )
    assert str(long).splitlines()[1].strip() == long.place
    assert max(map(len, str(long).splitlines())) <= 80


LONG = "transformer.encoder.of_the_model.with_long_names."


@pytest.mark.parametrize("fused", [True, False])
def test_kernels_of_a_plan_say_where_within_80_columns(fused: bool) -> None:
    graph = captured()
    deep = tuple(LONG * 2 + path if path else "" for path in graph.modules)
    graph = replace(graph, modules=deep, names=tuple(f"{name}_with_a_long_name" for name in graph.names))
    plan = remat.choose(graph).plan
    traffic = remat.predict_traffic(graph, plan, fused=fused)
    lines = str(traffic).splitlines()
    assert max(map(len, lines)) <= 80
    assert max(map(len, str(remat.timeline(graph, plan)).splitlines())) <= 80
    ends = [graph.places[kernel.values[-1]].rpartition("with_long_names.")[2] for kernel in traffic.kernels]
    assert all(any(line.endswith(end) for line in lines) for end in ends if end)
    assert any(line.startswith("    …") for line in lines)


def test_a_long_module_is_cut_at_a_dot(monkeypatch: pytest.MonkeyPatch) -> None:
    step = remat.compile(Net(), codegen=False)
    step(torch.randn(4, 8)).backward()
    (planned,) = step.report().graphs
    deep = tuple(LONG + path if path else "" for path in planned.graph.modules)
    told = str(Report((replace(planned, graph=replace(planned.graph, modules=deep)),))).splitlines()
    assert max(map(len, told)) <= 80
    assert any("…with_long_names.layers.*.norm and" in line for line in told)


def test_refusals_say_where() -> None:
    graph = captured()
    with pytest.raises(Infeasible) as caught:
        remat.choose(graph, MemoryBudget(1500, of="peak"))
    lines = str(caught.value).splitlines()
    assert f"(backward of layers.1.up, {UP})" in str(caught.value)
    assert len(lines) == 8  # what, five tensors, all others, what to do
    with pytest.raises(InvalidPlan, match=rf"neither saved nor recomputed: .*\(layers.0.norm, {UP}\)"):
        remat.check_plan(remat.plugin.base_problem(graph), Plan((), ()))
    builder = GraphBuilder()
    key = builder.op("draw", builder.input("x", bytes=4), cannot_recompute="random", cannot_save="secret")
    big = builder.op("scale", key, cannot_save="secret")
    builder.output(big)
    builder.gradient(builder.op("mul", builder.tangent("dy", bytes=4), big))
    lost = replace(builder.build(), modules=("", "mask", "", "", ""), sources=("", "net.py:7", "net.py:8", "", ""))
    with pytest.raises(Infeasible, match=r"\n  draw \(mask, net.py:7\): cannot be saved"):
        remat.choose(lost)
    held = replace(lost, cannot_save=type(lost.cannot_save).none(len(lost)))
    with pytest.raises(Infeasible, match=r"\n  scale \(net.py:8\): 4 B"):
        remat.choose(held, MemoryBudget("2B"))


def test_a_report_adds_up_what_is_saved_by_lines() -> None:
    step = remat.compile(Net(), codegen=False)
    step(torch.randn(4, 8)).backward()
    lines = step.report().saved_lines
    assert {line.line for line in lines} == {UP, DOWN, LOSS}
    assert sum(line.bytes for line in lines) == step.report().as_frame()["saved_bytes"].sum()
    told = str(step.report())
    assert max(map(len, told.splitlines())) <= 80
    assert "layers.*.norm" in next(line for line in told.splitlines() if UP in line)
    assert not saved_lines([(chain(3), Plan(("cos",), ()))])


def test_what_lies_in_one_storage_is_at_the_line_that_made_it() -> None:
    builder = GraphBuilder()
    made = builder.op("exp", builder.input("x", bytes=4), name="made")
    builder.output(builder.op("sin", builder.op("t", made, view=True, name="seen")))
    builder.gradient(builder.op("mul", builder.tangent("dy", bytes=4), "seen"))
    graph = replace(
        builder.build(), sources=("", "a.py:1", "b.py:2", "", "", ""), modules=("", "0.fc", "1.fc", "", "", "")
    )
    (line,) = saved_lines([(graph, Plan(("seen",), ()))])
    assert str(line) == "4 B from a.py:1 (*.fc)"
    nameless = replace(graph, sources=())
    assert str(*saved_lines([(nameless, Plan(("made", "seen"), ()))])) == "4 B from 0.fc"


def test_the_table_of_a_solution_says_where(tmp_path: Path) -> None:
    graph, path = captured(), tmp_path / "net.json"
    graph.save(path)
    told = run("solve", path).output
    heading = next(line for line in told.splitlines() if line.startswith("saved activation"))
    assert heading.split() == ["saved", "activation", "from", "memory", "price"]
    assert f"layers.0.up, {UP}" in told
    chain(2).save(path)
    assert "operator" in run("solve", path).output


def test_a_picture_says_where(tmp_path: Path) -> None:
    graph, path = captured(), tmp_path / "net.svg"
    figure = remat.show(graph, path=path)
    exp = graph.names[graph.ops.index("aten.exp.default")]
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts[texts.index(exp) + 1] == f"512 B  {UP}"
    svg = path.read_text()
    for name, op, place in zip(graph.names, graph.ops, graph.places, strict=True):
        assert f"<title>{name} ({op}; {place})</title>" in svg
    remat.show(chain(1), path=path)
    assert "<title>cos (cos)</title>" in path.read_text()
