"""Whatever the library prints of a graph can be printed: over the corpus, and over models of another package."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import answer, once, run
from depth import deep_except
from torch import nn
from transformers import CLIPVisionConfig, CLIPVisionModel, GPT2Config, GPT2LMHeadModel, ViTConfig, ViTModel
from typer.main import get_command

import remat
from costmodels import ByteTraffic, MemoryBudget
from remat import Corpus, Graph
from remat.cli.app import app
from remat.predict.buffers import records_calls
from remat.predict.memory import lower_bound
from remat.predict.time import modelled_time

CORPUS = Corpus.open()
SMALL = [entry.name for entry in CORPUS.entries if entry.values < 3000]
QUICK = ["small-gpt-fused-attention", "qehvi-4"]

SIZES: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


def vit() -> tuple[nn.Module, tuple[Any, ...]]:
    """Its class token, copied to each image, is only copied into a concatenation: a kernel that computes no value."""
    return ViTModel(ViTConfig(image_size=16, patch_size=8, **SIZES)), (torch.randn(2, 3, 16, 16),)


def clip() -> tuple[nn.Module, tuple[Any, ...]]:
    return CLIPVisionModel(CLIPVisionConfig(image_size=16, patch_size=8, **SIZES)), (torch.randn(2, 3, 16, 16),)


def gpt2() -> tuple[nn.Module, tuple[Any, ...]]:
    config = GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=1, n_head=2, use_cache=False)
    return GPT2LMHeadModel(config), (torch.randint(50, (2, 8)),)


FOREIGN: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {"vit": vit, "clip": clip, "gpt2": gpt2}


@pytest.fixture(scope="module")
def graph_of() -> Callable[[str], Graph]:
    captured: dict[str, Graph] = {}

    def graph(name: str) -> Graph:
        if name in FOREIGN and name not in captured:
            model, inputs = FOREIGN[name]()
            captured[name] = remat.capture(model, *inputs)
        return captured[name] if name in FOREIGN else CORPUS.graph(name)

    return graph


each = pytest.mark.parametrize("name", deep_except([*QUICK, "vit"], [*SMALL, *FOREIGN]))


def shown(graph: Graph) -> Iterator[object]:
    """Everything that can be printed, of one graph."""
    problem, solution = ByteTraffic().pose(graph), remat.choose(graph)
    plan = solution.plan
    yield from (graph, problem, solution, solution.termination, solution.certificate, plan)
    is_small = len(graph) < 1000  # of a larger one, what takes long is printed for a GPU alone
    if is_small:
        half = remat.choose(graph, MemoryBudget(0.5), "lagrangian", throw=False)
        yield from (half, half.termination, half.certificate)
    for device in (None, "h100") if is_small else ("h100",):
        traffic = remat.predict_traffic(graph, plan, device=device)
        yield from (traffic, remat.timeline(graph, plan, device=device), lower_bound(graph))
        if device is not None:
            yield modelled_time(graph, traffic.kernels, device)
    yield remat.predict_traffic(graph, plan, fused=False)
    yield remat.offload_timeline(graph, plan, device="h100")
    yield from (remat.explain(graph, name) for name in {*plan.saved[:3], *plan.recomputed[:3], graph.names[-1]})
    yield remat.frontier(graph)
    if is_small and records_calls(graph):
        yield remat.step_frontier(graph, 1, time_limit_s=1e-9)
    yield remat.compare(graph, solvers=["ortools", "exhaustive"])


@each
def test_all_that_is_made_of_a_graph_has_its_printed_forms(graph_of: Callable[[str], Graph], name: str) -> None:
    for thing in shown(graph_of(name)):
        assert str(thing)
        assert repr(thing)
        for form in ("as_frame", "_repr_html_"):
            if hasattr(thing, form):
                assert len(getattr(thing, form)()) > 0, (type(thing), form)


def lines_of(graph: Path | str, folder: Path, value: str) -> dict[str, list[list[object]]]:
    """The lines to try of each command that takes a graph."""
    plan, out = folder / "plan.json", folder / "out"
    return {
        "solve": [
            [graph, "-o", plan],
            [graph, "-m", "memory-budget:budget=0.5", "-s", "lagrangian"],
            *([graph, "--problem", f"{out}.{kind}"] for kind in ("json", "mps", "max")),
        ],
        "compare": [[graph, "-s", "ortools", "-s", "exhaustive"]],
        "explain": [[graph, value]],
        "frontier": [
            [graph, "-o", f"{out}.svg"],
            [graph, "--against", "step", "--budgets", 1, "--time-limit", 0.01],
            [graph, "--html", f"{out}.html", "--budgets", 0],
        ],
        "inspect": [
            ["picture", graph, "-o", f"{out}.svg", "--plan", plan, "--around", value, "--hops", 1],
            ["timeline", graph, "--plan", plan, "-o", f"{out}.svg"],
            ["traffic", graph, "--plan", plan],
            ["traffic", graph, "--plan", plan, "--device", "h100"],
            ["traffic", graph, "--no-fused"],
        ],
    }


ELSEWHERE = {"capture", "forecast", "device", "plugins"}
"""Commands that take no graph: their own tests print them; and those of `inspect kernels`, which takes long."""


@pytest.mark.parametrize("name", deep_except(["qehvi-4", "vit"], [*QUICK, *FOREIGN]))
def test_each_command_prints_for_people_and_json(
    graph_of: Callable[[str], Graph], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it prints, of any graph, is above; a name of the corpus stands for its graph."""
    graph, path = graph_of(name), tmp_path / "graph.json.gz"
    graph.save(path)
    value = graph.names[int(graph.in_forward.nonzero()[0][-1])]
    lines = lines_of(name if name in QUICK else path, tmp_path, value)
    assert lines.keys() | ELSEWHERE | {"corpus"} == get_command(app).commands.keys()  # pyright: ignore
    for command, tried in lines.items():
        for arguments in tried:
            with monkeypatch.context() as patch:
                for function in ("choose", "compare", "frontier", "step_frontier"):
                    patch.setitem(vars(remat), function, once(getattr(remat, function)))
                assert run(command, *arguments).stdout, (command, arguments)
                assert answer(command, *arguments), (command, arguments)


@pytest.mark.parametrize("name", deep_except(["vit"], FOREIGN))
def test_commands_on_models_print_for_people_and_json(name: str, tmp_path: Path, monkeypatch: Any) -> None:
    for function in ("capture", "forecast"):
        monkeypatch.setitem(vars(remat), function, once(getattr(remat, function)))
    (tmp_path / f"made_{name}.py").write_text(f"from test_printed_forms import {name}\ndef sized(n): return {name}()\n")
    monkeypatch.chdir(tmp_path)
    lines: dict[str, list[object]] = {
        "capture": [f"made_{name}:{name}", "-o", tmp_path / "graph.json"],
        "forecast": [f"made_{name}:{name}", "-m", "byte-traffic"],
    }
    for command, arguments in lines.items():
        assert run(command, *arguments).stdout
        assert answer(command, *arguments)
