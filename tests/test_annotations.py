"""Marks on values: what the user demands is what the plan does."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import remat
from costmodels import ByteTraffic
from remat import GraphBuilder
from remat.pytorch.measure.saved import saved_activations
from remat.pytorch.read import operators


class Autocast(nn.Module):
    """Two layers in bfloat16, with float32 weights: the case of DeepSpeed's DeepCompile."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.down(self.up(x).relu()).float()


def test_a_compiled_autocast_step_keeps_no_copy_of_a_weight() -> None:
    torch.manual_seed(0)
    model, x = Autocast(), torch.randn(8, 64)

    def gradients(step: nn.Module) -> list[Tensor]:
        model.zero_grad()
        step(x).square().mean().backward()
        return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]

    kept = {}
    for marked in (False, True):
        torch.compiler.reset()
        step = remat.compile(model, recompute_parameter_copies=marked, codegen=False)
        torch.testing.assert_close(gradients(step), gradients(model), rtol=2e-2, atol=2e-2)  # bfloat16 has 8 bits
        kept[marked] = saved_activations(step, model, x)[1].bytes
    assert kept[False] - kept[True] >= 2 * 64 * 256, "the copy of the second weight, in bfloat16"


def test_a_marked_copy_may_be_in_both_graphs_even_if_it_is_a_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check after the split goes by the marked graph: casts stand in for gathers here."""
    cast = torch.ops.prims.convert_element_type.default
    monkeypatch.setattr(operators, "_unrepeatable", lambda target: "a collective" if target is cast else None)
    model, x = Autocast(), torch.randn(8, 64)
    step = remat.compile(model, recompute_parameter_copies=True, codegen=False)
    torch.testing.assert_close(step(x), model(x), rtol=2e-2, atol=2e-2)


def policy(decision: CheckpointPolicy, _: object, op: object, *args: object, **kwargs: object) -> CheckpointPolicy:
    return decision if op is torch.ops.aten.sin.default else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("decision", ["MUST_SAVE", "PREFER_SAVE", "MUST_RECOMPUTE"])
@pytest.mark.parametrize("mode", ["conservative", "aggressive"])
def test_selective_checkpointing_decides_what_runs_twice(decision: str, mode: str) -> None:
    contexts = functools.partial(
        create_selective_checkpoint_contexts, functools.partial(policy, CheckpointPolicy[decision])
    )

    def f(x: Tensor) -> Tensor:
        return checkpoint(lambda x: x.exp().sin().tanh(), x, use_reentrant=False, context_fn=contexts).sum()

    graph = remat.capture(f, torch.randn(8, 8, requires_grad=True))
    plan = remat.solve(ByteTraffic(mode=mode).pose(graph)).plan  # type: ignore[arg-type]
    recomputed = {graph.ops[graph.index[name]] for name in plan.recomputed}
    assert ("aten.sin.default" in recomputed) == (decision == "MUST_RECOMPUTE")
    # exp and tanh prefer recomputation: whatever is saved of the region, it is not they.
    saved = {graph.ops[graph.index[name]] for name in plan.saved}
    assert saved.isdisjoint({"aten.exp.default", "aten.tanh.default"})


def test_a_demand_that_contradicts_a_fact_is_explained() -> None:
    g = GraphBuilder()
    seed = g.op("seed", g.input("x"), must_recompute=True, cannot_recompute="draws from the generator")
    g.output(seed)
    g.gradient(g.op("mul", g.tangent("t"), seed))
    conflict = r"seed: cannot be saved \(marked MUST_RECOMPUTE\); cannot be recomputed \(draws from the generator\)"
    with pytest.raises(remat.Infeasible, match=conflict):
        remat.solve(ByteTraffic().pose(g.build()))
