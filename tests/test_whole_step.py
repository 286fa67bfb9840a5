"""A training step that was traced as one graph is read as the joint graph of its model."""

from __future__ import annotations

import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.proxy_tensor import make_fx

import remat
from experiments.models.recipe import whole_step
from experiments.models.workloads import gpt_small
from remat import CaptureError
from remat.pytorch import read_step


def test_it_costs_what_the_captured_graph_costs() -> None:
    torch.manual_seed(0)
    model, args = gpt_small(layers=1, fused=True)
    whole, joint = whole_step(model, args), remat.capture(model, *args)
    assert remat.choose(whole).objective == remat.choose(joint).objective
    for facts in ("parameter", "output", "gradient"):
        assert getattr(whole, facts).sum() == getattr(joint, facts).sum()
    assert whole.in_tangents.any()
    assert whole.meta["device"] == joint.meta["device"] == "cpu"


def traced(*, detached: bool = False) -> fx.GraphModule:
    model, x = nn.Linear(4, 4), torch.randn(2, 4)

    def step(weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = nn.functional.linear(x, weight).square().mean()
        return (loss * 2 if detached else loss), *torch.autograd.grad(loss, weight)

    return make_fx(step)(model.weight)


def test_the_traced_graph_stays_as_it_is() -> None:
    module = traced()
    before = module.code
    assert len(read_step(module, parameters=1)) == len(read_step(module, parameters=1))
    assert module.code == before
    module.graph.lint()


def test_a_step_with_dropout_is_read() -> None:
    def step(weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = nn.functional.dropout(weight.sin(), 0.5).square().mean()
        return loss, *torch.autograd.grad(loss, weight)

    graph = read_step(make_fx(step)(torch.ones(4, requires_grad=True)), parameters=1)
    assert graph.random.any()
    assert graph.in_tangents.any()


def test_a_graph_whose_first_output_is_no_loss_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"first output of a step must be its loss.*0 calls.*torch\.autograd\.grad"):
        read_step(traced(detached=True))
