"""A whole training step, tagged with a plan, gives the same gradients at the predicted peak."""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from depth import deep
from torch import Tensor, fx, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy
from transformers import LlamaConfig, LlamaForCausalLM

import remat
from costmodels import MemoryBudget
from experiments.models.hugging_face import NextToken
from experiments.models.tagged_steps import OFFLOADED, REPEATED, Step, recomputing, run, traced
from experiments.models.workloads import convnet, gpt_small, perceptron, resnet
from remat import InvalidOption, InvalidPlan
from remat.answer.plan_facts import no_recompute_plan
from remat.errors import UnknownName
from remat.improve.one_liners import layers_of
from remat.predict.buffers.orders import has_torchs_order
from remat.pytorch import MemoryPolicy
from tests.modules import ModuleOf

Sample = tuple[nn.Module, tuple[Tensor, ...]]


class Experts(nn.Module):
    """Adds to each token what the two experts with the highest scores make of it."""

    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(width), nn.Linear(width, experts)
        self.up, self.down = (nn.Parameter(torch.randn(experts, width, width) / width**0.5) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x)
        scores, chosen = self.gate(tokens).softmax(-1).topk(2)
        shares = torch.zeros_like(self.gate(tokens)).scatter(-1, chosen, scores)
        inner = F.gelu(torch.einsum("tw,ewv->etv", tokens, self.up))
        return x + torch.einsum("etv,evw,te->tw", inner, self.down, shares)


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Experts(32, 4) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def llama() -> Sample:
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=160,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    return NextToken(LlamaForCausalLM(config)), (torch.randint(256, (2, 32)),)


MODELS: dict[str, Callable[[], Sample]] = {
    "GPT": lambda: gpt_small(layers=3, fused=True),
    "Llama": llama,
    "convolutions": convnet,
    "experts": lambda: (Mixture(), (torch.randn(128, 32),)),
}


def made(name: str, **how: Any) -> Step:
    torch.manual_seed(0)
    return traced(*MODELS[name](), **how)


def torchs_pass(module: fx.GraphModule) -> fx.GraphModule:
    passes = pytest.importorskip(
        "torch._functorch._activation_checkpointing.remat_using_tags_for_fwd_loss_bwd_graph_pass"
    )
    return passes.remat_using_tags_for_fwd_loss_bwd_graph(copy.deepcopy(module))


def tags(module: fx.GraphModule) -> dict[str, CheckpointPolicy]:
    return {node.name: node.meta["recompute"] for node in module.graph.nodes if "recompute" in node.meta}


def repeated(module: fx.GraphModule) -> set[str]:
    """The names of what runs twice."""
    names = [node.name for node in module.graph.nodes]
    return {name.removesuffix("_recomputed") for name in names if name.endswith("_recomputed")}


def equal(some: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


QUICK = [("GPT", "45%"), ("Llama", "75%"), ("convolutions", "45%"), ("experts", "45%")]


@pytest.mark.parametrize(
    ("name", "share"),
    [pytest.param(*each, marks=() if each in QUICK else deep) for each in product(MODELS, ["75%", "45%"])],
)
def test_a_tagged_step_has_the_same_gradients_and_exactly_the_predicted_peak(name: str, share: str) -> None:
    step, policy = made(name), MemoryPolicy(MemoryBudget(share, of="peak"))
    graph = policy.graph(step.module)
    untagged = run(step.module, step.inputs)
    assert untagged.peak_bytes == remat.timeline(graph, no_recompute_plan(graph)).peak_bytes
    plan = policy.plan(step.module)
    assert policy(step.module) is step.module
    for follow in (recomputing, torchs_pass):
        module = follow(step.module)
        assert repeated(module) == {*plan.recomputed} & {*tags(step.module)}
        tagged = run(module, step.inputs)
        assert equal(tagged.results, untagged.results)
        assert tagged.peak_bytes == remat.timeline(graph, plan).peak_bytes
        assert tagged.peak_bytes < 0.85 * untagged.peak_bytes


def test_it_keeps_the_contract() -> None:
    step = made("GPT")
    before = step.module.code
    assert MemoryPolicy("memory-budget")(step.module, config=object()) is step.module
    assert step.module.code == before
    for node in step.module.graph.nodes:
        assert ("recompute" in node.meta) == (
            node.op == "call_function" and not node.meta.get("autograd_backward", False)
        )
    assert {*tags(step.module).values()} == {CheckpointPolicy.MUST_SAVE, CheckpointPolicy.MUST_RECOMPUTE}


@pytest.mark.parametrize("annotated", [True, False])
def test_nothing_that_enters_a_layer_is_recomputed_unless_that_is_allowed(annotated: bool) -> None:
    step = made("GPT", annotated=annotated)

    def recomputed_entries(across_layers: bool) -> int:
        policy = MemoryPolicy(MemoryBudget(0.0), across_layers=across_layers)
        graph = policy.graph(step.module)
        layers = layers_of(graph)
        assert layers.max() == 2
        again = np.isin(graph.names, policy.plan(step.module).recomputed)
        u, v = graph.producers, graph.consumers
        return int((again[u] & again[v] & (layers[v] >= 0) & (layers[u] != layers[v]) & ~graph.view[u]).sum())

    assert recomputed_entries(False) == 0
    assert recomputed_entries(True) > 0


def test_random_operators_run_once() -> None:
    torch.manual_seed(0)
    model, args = perceptron(dropout=0.3)
    step, policy = (
        traced(ModuleOf(lambda net, *inputs: net.model(*inputs).square().mean(), model=model), args),
        MemoryPolicy(MemoryBudget(0.0)),
    )
    torch.manual_seed(1)
    untagged = run(step.module, step.inputs)
    for follow in (recomputing, torchs_pass):
        module = follow(policy(step.module))
        torch.manual_seed(1)
        assert equal(run(module, step.inputs).results, untagged.results)
    assert CheckpointPolicy.MUST_RECOMPUTE in tags(step.module).values()
    assert tags(step.module)["bernoulli_"] is CheckpointPolicy.MUST_SAVE


def test_a_plan_that_repeats_an_operator_with_a_generator_is_refused() -> None:
    step = made("GPT")
    plan = MemoryPolicy("memory-budget").plan(step.module)
    attention, *results = [name for name in step.module.graph.nodes if "attention" in f"{name} {name.args}"][:3]
    again = {attention.name, *(result.name for result in results)}
    other = remat.Plan(tuple(name for name in plan.saved if name not in again), (*plan.recomputed, *again))
    with pytest.raises(InvalidPlan, match="does not repeat random numbers"):
        MemoryPolicy(other)(step.module)


def test_running_statistics_are_updated_once() -> None:
    def statistics(tagged: bool) -> list[Tensor]:
        torch.manual_seed(0)
        model, args = resnet(blocks=(1, 1), batch=2)
        step = traced(model, args)
        if tagged:
            module = recomputing(MemoryPolicy(MemoryBudget(0.0))(step.module))
            assert repeated(module)
            step = Step(module, step.inputs)
        run(step.module, step.inputs)
        return [buffer for name, buffer in model.named_buffers() if name.endswith("running_mean")]

    assert equal(tuple(statistics(True)), tuple(statistics(False)))


def test_what_is_written_in_place_is_not_recomputed() -> None:
    def step(w: Tensor, x: Tensor) -> tuple[Tensor, ...]:
        scaled = (x @ w).sin()
        doubled = scaled * 2
        shifted = doubled + 1
        doubled.add_(scaled)
        loss = (scaled.cos().mul_(3) * doubled.exp() * shifted.sin()).sin().mean()
        return loss, *torch.autograd.grad(loss, [w])

    inputs = torch.randn(8, 8, requires_grad=True), torch.randn(8, 8)
    module = make_fx(step, tracing_mode="fake")(*inputs)
    untagged = run(module, inputs)
    tagged = recomputing(MemoryPolicy(MemoryBudget(0.0))(module))
    assert repeated(tagged)
    assert equal(run(tagged, inputs).results, untagged.results)


def test_nothing_is_recomputed_of_kept_modules() -> None:
    step = made("GPT")

    def of_the_head(**how: Any) -> set[CheckpointPolicy]:
        policy = MemoryPolicy(MemoryBudget(0.0), **how)
        graph = policy.graph(step.module)
        values = [name for name, path in zip(graph.names, graph.modules, strict=True) if path == "head"]
        found = tags(policy(step.module))
        plan = policy.plan(step.module)
        return {found[name] for name in values if name in found and name in (*plan.saved, *plan.recomputed)}

    assert CheckpointPolicy.MUST_RECOMPUTE in of_the_head()
    assert of_the_head(kept_modules=("head",)) == {CheckpointPolicy.MUST_SAVE}


@pytest.mark.skipif(OFFLOADED is None, reason="this torch has no tag for values on the host")
def test_values_wait_on_the_host() -> None:
    step, policy = made("GPT"), MemoryPolicy(MemoryBudget(0.3, offload="h100"))
    graph, plan = policy.graph(step.module), policy.plan(step.module)
    assert {name for name, tag in tags(policy(step.module)).items() if tag is OFFLOADED} == {*plan.offloaded} != set()
    untagged = run(step.module, step.inputs)
    tagged = run(recomputing(step.module), step.inputs)
    assert equal(tagged.results, untagged.results)
    assert tagged.peak_bytes == remat.timeline(graph, plan).peak_bytes < untagged.peak_bytes


def test_torchs_marks_of_the_backward_pass_lead_to_the_same_tags() -> None:
    compiler: Any = torch.compiler
    if not hasattr(compiler, "_patch_engine_backward"):
        pytest.skip("this torch does not mark the backward pass in make_fx")
    unmarked = made("GPT")
    with compiler._non_strict_tracing_context(), compiler._patch_engine_backward():
        marked = made("GPT")
    assert any(node.meta.get("autograd_backward") for node in marked.module.graph.nodes)
    policy = MemoryPolicy("memory-budget")
    assert tags(policy(marked.module)) == tags(policy(unmarked.module))


def test_a_plan_is_for_its_graph() -> None:
    policy = MemoryPolicy("memory-budget")
    plan = policy.plan(made("GPT").module)
    assert tags(MemoryPolicy(plan)(made("GPT").module)) == tags(policy(made("GPT").module))
    with pytest.raises(InvalidPlan, match="made for another graph"):
        MemoryPolicy(plan)(made("Llama").module)


def test_copies_of_parameters_are_made_again() -> None:
    torch.manual_seed(0)
    model, args = perceptron()
    with torch.autocast("cpu"):
        step = traced(ModuleOf(lambda net, *inputs: net.model(*inputs).square().mean(), model=model), args)
    parameters = [f"arg0_{i + 1}" for i in range(len(step.inputs) - 1)]
    casts = {node.name for node in step.module.graph.nodes if node.args and str(node.args[0]) in parameters}

    def saved(**how: Any) -> set[str]:
        return casts & {*MemoryPolicy(MemoryBudget(1.0), **how).plan(step.module).saved}

    assert saved()
    assert not saved(recompute_parameter_copies=True)


def test_a_compiled_step_is_planned_by_its_kernels() -> None:
    step, policy = made("GPT"), MemoryPolicy(MemoryBudget("60%", of="peak"), compiled=True)
    graph = policy.graph(step.module)
    assert graph.fusible.any()
    assert has_torchs_order(graph)
    assert not MemoryPolicy("memory-budget").graph(step.module).fusible.any()
    untagged = run(step.module, step.inputs)
    assert equal(run(recomputing(policy(step.module)), step.inputs).results, untagged.results)
    assert any(tag in REPEATED for tag in tags(step.module).values())


def test_options_are_checked_where_they_are_typed() -> None:
    with pytest.raises(UnknownName):
        MemoryPolicy("no such model")
    with pytest.raises(InvalidOption, match=r"MemoryPolicy\.compiled"):
        MemoryPolicy("memory-budget", compiled=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="must be a tuple of paths"):
        MemoryPolicy("memory-budget", kept_modules="loss")  # type: ignore[arg-type]
