"""Predicted peaks are what torch's allocator hands out in a compiled step; eager peaks of modules, beside GPUs, too."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from depth import deep, deep_except
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig, SegformerConfig, SegformerForImageClassification
from transformers.models.llama import modeling_llama as llama

import remat
from costmodels import ByteTraffic, MemoryBudget
from experiments.accuracy.compiled_peaks import PLANS, errors, measured_peak
from experiments.accuracy.eager_peaks import PUBLISHED, eager_graph, eager_peak
from experiments.models.cases import CASES
from experiments.models.held_out import HELD_OUT
from experiments.models.hugging_face import Labelled
from experiments.models.save_everything import SaveLeast, plan_of
from experiments.models.workloads import KERNEL_ZOO
from remat.improve.byte_budgets import default_plan
from remat.predict.buffers import StepMemory, step_floor
from remat.predict.memory import simulate
from remat.pytorch.inductor.rehearsed import rehearsed_peak
from remat.pytorch.measure.saved import peak_bytes
from tests.modules import ModuleOf
from tests.results_pages import RESULTS, rows_of, section

ROWS = rows_of("compiled_peaks")


QUICK = {
    "LayerNorm-GeLU MLP": "written over, taken again",
    "EvoNorm": "filters with channels last, what oneDNN takes",
    "mixture of experts: top-k, scatter": "products by a single column are sums",
}
DEEP = {
    "MLP-Mixer": "",
    "nn.TransformerEncoder": "",
    "LSTM cells": "",
    "PointNet: batch norm, max over points": "a view decides a layout",
    "channel shuffle, adaptive max pooling": "copied for one reader alone",
    "DLRM: embedding bags, pairs of products": "what a call sorts",
    "generator: reflection, instance norm": "",
    "sort, cummax, median": "what a call returns and nobody reads",
    "contrastive: normalize, logsumexp": "a diagonal is written in place",
    "SegFormer of two stages": "images that are smaller than a filter",
}


def segformer() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """Reduces rows of attention by a convolution over all of an image, and has filters of one channel each."""
    stages: dict[str, Any] = {"num_encoder_blocks": 2, "depths": [1, 1], "hidden_sizes": [16, 32], "mlp_ratios": [4, 4]}
    stages |= {"sr_ratios": [4, 1], "patch_sizes": [7, 3], "strides": [4, 2], "num_attention_heads": [1, 2]}
    model = SegformerForImageClassification(SegformerConfig(**stages, num_labels=10)).train()
    return Labelled(model), (torch.randn(4, 3, 16, 16), torch.randint(10, (4,)))


MODELS = KERNEL_ZOO | HELD_OUT | {"SegFormer of two stages": segformer}


@pytest.mark.parametrize(
    ("model", "plan"),
    [
        *((model, "save least") for model in QUICK),
        *(pytest.param(model, "default", marks=deep) for model in QUICK),
        *(pytest.param(model, "save least", marks=deep) for model in DEEP),
    ],
)
def test_a_step_allocates_what_is_predicted(model: str, plan: str) -> None:
    """Kernels are left out: they allocate nothing."""
    torch.manual_seed(0)
    graph, chosen, bytes_ = measured_peak((*MODELS[model](), None), PLANS[plan], kernels=False)
    if model == "SegFormer of two stages":
        assert rehearsed_peak(graph, chosen) == bytes_  # on every processor
        if torch.backends.cpu.get_cpu_capability() != "AVX512":  # elsewhere oneDNN pads no groups of one channel
            return
    assert remat.timeline(graph, chosen).peak_bytes == pytest.approx(bytes_, rel=0.005)


def pooled() -> nn.Module:
    """Averages over windows: the backward pass is handed an image that no kernel reads, and holds it to its end."""
    first, last = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 16, 3, padding=1)
    return ModuleOf(
        lambda net, x: net.last(functional.avg_pool2d(net.first(x).relu(), 2)).square().mean(), first=first, last=last
    )


def patched() -> nn.Module:
    """Cuts images into patches, and puts a token before them, as vision transformers do."""

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        tokens = net.patches(x).flatten(2).transpose(1, 2)
        return torch.cat([net.token.expand(len(x), 1, 64), tokens], 1).square().mean()

    return ModuleOf(
        forward, patches=nn.Conv2d(3, 64, 8, stride=8, bias=False), token=nn.Parameter(torch.rand(1, 1, 64))
    )


class Shifted(nn.Module):
    """Mixes each row with the one before it, as RWKV does."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.key, self.value = nn.LayerNorm(64), nn.Linear(64, 64), nn.Linear(64, 64)
        self.share = nn.Parameter(torch.rand(2, 1, 1, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        before = functional.pad(y, (0, 0, 1, -1))
        for_key, for_value = (y * share + before * (1 - share) for share in self.share)
        return x + self.key(for_key).sigmoid() * self.value(for_value)


FORMER_FAULTS = {
    "averages over windows are kernels": (pooled, (8, 3, 32, 32)),
    "patches of images are not padded to more channels, nor copied twice": (patched, (4, 3, 32, 32)),
    "a shift of rows reads what a kernel before it has written": (
        lambda: nn.Sequential(Shifted(), Shifted()),
        (2, 14, 64),
    ),
}
"""Where a step took 46% less, or 6% more, than was predicted."""


@pytest.mark.parametrize("plan", deep_except(["save least"], PLANS))
@pytest.mark.parametrize("name", FORMER_FAULTS)
def test_a_step_allocates_what_was_once_predicted_wrongly(name: str, plan: str) -> None:
    torch.manual_seed(0)
    make, shape = FORMER_FAULTS[name]
    graph, chosen, bytes_ = measured_peak((make(), (torch.randn(shape),), None), PLANS[plan], kernels=False)
    assert ("aten.avg_pool2d_backward.default" in graph.ops) == (make is pooled)
    assert remat.timeline(graph, chosen).peak_bytes == pytest.approx(bytes_, rel=0.005)


def test_so_does_a_step_with_its_kernels() -> None:
    torch.manual_seed(0)
    graph, chosen, bytes_ = measured_peak((*KERNEL_ZOO["dropout MLP"](), None), PLANS["default"], kernels=True)
    assert remat.timeline(graph, chosen).peak_bytes == bytes_


def test_one_peak_is_that_of_its_timeline() -> None:
    graph = remat.Corpus.open().graph("small-resnet")
    plan = plan_of(graph, ByteTraffic())
    saved = np.isin(graph.names, plan.saved)
    timeline = remat.timeline(graph, plan)
    assert StepMemory(graph).peak(saved) == timeline.peak_bytes == timeline.during_bytes.max()
    assert np.array_equal(np.sum(list(timeline.by_why.values()), axis=0), timeline.during_bytes)
    assert timeline.saved_bytes > sum(
        int(graph.bytes[graph.index[name]]) for name in plan.saved if "primals" not in name
    )


def test_a_graph_written_by_hand_is_simulated_by_value() -> None:
    builder = remat.GraphBuilder()
    inner = builder.op("cos", builder.input("x", bytes=4), name="inner", bytes=4)
    builder.output(builder.op("cos", inner, name="y"))
    builder.gradient(builder.op("mul", builder.tangent("dy", bytes=4), builder.op("sin", inner), name="dx"))
    graph, plan = builder.build(), remat.Plan(("inner",), ("sin",))
    assert str(remat.timeline(graph, plan)) == str(simulate(graph, plan))
    assert len(remat.timeline(graph, plan, device="cpu")) < len(remat.timeline(graph, plan))


@pytest.mark.parametrize("name", ["small-resnet", pytest.param("gpt2-small", marks=deep)])
def test_no_plan_is_below_the_floor(name: str) -> None:
    graph = remat.Corpus.open().graph(name)
    least = step_floor(graph).bytes
    memory = StepMemory(graph)
    for model in (ByteTraffic(), ByteTraffic(mode="aggressive"), SaveLeast()):
        assert 0 < least <= memory.peak(np.isin(graph.names, plan_of(graph, model).saved))


def test_the_results_have_every_model_and_say_how_far_off_they_are() -> None:
    have = {row["model"] for row in ROWS}
    failed = json.loads((RESULTS / "compiled_peaks.json").read_text())["failed"]
    assert have | {key.rpartition(", ")[0] for key in failed} >= {*KERNEL_ZOO, *CASES}
    assert len(have & {*HELD_OUT}) >= 51
    assert np.median(np.abs(errors(ROWS))) < 0.001
    assert np.abs(errors([row for row in ROWS if row["group"] == "held out"])).max() < 0.1
    assert np.abs(errors([row for row in ROWS if row["group"] == "zoo"])).max() < 0.03


def test_a_budget_of_the_peak_has_a_bound_that_holds_for_compiled_steps() -> None:
    """By value, no plan would fit in what this one takes: kernels write over what they read."""
    graph = remat.Corpus.open().graph("small-evonorm")
    memory = StepMemory(graph)
    plan = plan_of(graph, ByteTraffic())
    limit = memory.peak(np.isin(graph.names, plan.saved))
    solution = remat.choose(graph, MemoryBudget(limit, of="peak"))
    assert memory.peak(np.isin(graph.names, solution.plan.saved)) <= limit
    assert solution.bound <= solution.objective
    problem = MemoryBudget(limit, of="peak").pose_without_peak(graph)
    assert solution.bound <= remat.Choice.from_plan(problem, plan).cost(problem)


@pytest.mark.parametrize(
    ("model", "share"),
    [
        ("dropout MLP", 0.0),
        pytest.param("ResNet", 0.9, marks=deep),
        pytest.param("GPT, fused attention", 0.5, marks=deep),
        pytest.param("EvoNorm", 0.88, marks=deep),  # at 0.5, 768 bytes are not predicted (docs/results/peaks.md)
    ],
)
def test_a_step_within_a_budget_of_the_peak_stays_within_it(model: str, share: float) -> None:
    """The least that the search finds, or a share; both are less than PyTorch's default takes."""
    torch.manual_seed(0)
    module, args = KERNEL_ZOO[model]()
    graph, plan, bytes_ = measured_peak((module, args, None), MemoryBudget(share, of="peak"), kernels=False)
    limit = remat.timeline(graph, plan).peak_bytes
    default_bytes = remat.timeline(graph, default_plan(graph)).peak_bytes
    assert limit <= (share * default_bytes if share else default_bytes - 1)
    assert 0.995 * limit <= bytes_ <= limit


MLP = llama.LlamaMLP(LlamaConfig(hidden_size=64, intermediate_size=176))


@pytest.mark.parametrize(
    ("module", "args", "more"),
    [
        (MLP, (torch.randn(2, 16, 64),), 0),  # the gradient of a weight decides
        (MLP, (torch.randn(2, 512, 64),), 0),  # the gradient of silu decides
        (llama.LlamaRMSNorm(256), (torch.randn(128, 256),), 0),
        (llama.LlamaRMSNorm(256), (torch.randn(128, 256).bfloat16(),), 0),
        (nn.CrossEntropyLoss(), (torch.randn(128, 256), torch.zeros(128).long()), 4),  # eager's gradient of the loss
    ],
)
def test_the_rules_of_eager_peaks_give_the_bytes_of_real_steps(
    module: nn.Module, args: tuple[Tensor, ...], more: int
) -> None:
    """Captured for a GPU, run on a CPU: the order and the sizes are the same."""
    args[0].requires_grad_()
    graph = eager_graph(module, *args)
    gradient = torch.ones_like(module(*args))

    def step() -> None:
        module(*args).backward(gradient, retain_graph=True)

    step()  # from now on there are older gradients
    held = sum(int(graph.bytes[i]) for i, op in enumerate(graph.ops) if op == "placeholder")
    held += int(graph.bytes[graph.gradient].sum())
    assert peak_bytes(step, torch.device("cpu")) == eager_peak(graph) - held + more


def test_the_published_eager_peaks_of_gpus_are_predicted_to_the_last_digit() -> None:
    rows, page = rows_of("eager_peaks"), section("Eager peaks of modules")
    published = [(name, size, f"{mib:.2f}") for name, peaks in PUBLISHED.items() for size, mib in peaks.items()]
    assert [(row["case"], row["size"], row["predicted_mib"]) for row in rows] == published
    for row in rows:
        assert f"{row['predicted_bytes'] / 2**20:.2f}" == row["predicted_mib"]
        assert f"| {row['size']:,} | {row['published_mib']} | {row['predicted_bytes']:,} |" in page
