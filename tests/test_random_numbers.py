"""Random numbers are drawn once: whatever is recomputed, gradients belong to the loss that was seen."""

from __future__ import annotations

import pytest
import torch
from strategies import Dice, SaveEverything
from torch import Tensor, nn
from torch.nn import functional as F

import remat
from costmodels import ByteTraffic
from experiments.demo import SaveLeast
from remat.pytorch.capture import visit_joint_graphs
from remat.pytorch.facts import extract
from remat.pytorch.partitioner import check_nothing_runs_twice


class Dropouts(nn.Module):
    """Dropout between layers, dropout in attention, and noise by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(F.dropout(x, 0.2)).view(4, 8, 2, 24).transpose(1, 2).chunk(3, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.3)
        y = self.out(y.transpose(1, 2).reshape(4, 8, 16)).tanh()
        return F.dropout(y.exp() * (1 + torch.rand_like(y)), 0.5)


def loss_and_gradients(step: nn.Module, model: nn.Module, x: Tensor) -> list[Tensor]:
    torch.manual_seed(7)
    model.zero_grad()
    loss = step(x).square().sum()
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


@pytest.fixture(scope="module")
def model_and_input() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Dropouts(), torch.randn(4, 8, 16)


@pytest.fixture(scope="module")
def nothing_recomputed(model_and_input: tuple[nn.Module, Tensor]) -> list[Tensor]:
    model, x = model_and_input
    torch.compiler.reset()
    return loss_and_gradients(remat.compile(model, cost_model=SaveEverything()), model, x)


@pytest.mark.parametrize(
    "cost_model",
    [
        ByteTraffic(),
        ByteTraffic(mode="aggressive"),
        ByteTraffic(mode="aggressive", rules={"random": False}),
        SaveLeast(),
        *map(Dice, range(3)),
    ],
    ids=repr,
)
def test_gradients_equal_those_of_the_run_that_recomputes_nothing(
    cost_model: remat.CostModel, model_and_input: tuple[nn.Module, Tensor], nothing_recomputed: list[Tensor]
) -> None:
    model, x = model_and_input
    torch.compiler.reset()
    step = remat.compile(model, cost_model=cost_model)
    torch.testing.assert_close(loss_and_gradients(step, model, x), nothing_recomputed)


def test_torchs_own_budget_gets_this_wrong(
    model_and_input: tuple[nn.Module, Tensor], nothing_recomputed: list[Tensor]
) -> None:
    """pytorch#190758: with a budget below 1, a recomputed dropout draws afresh. Should this test ever
    fail because torch is right, delete it.
    """
    model, x = model_and_input
    torch.compiler.reset()
    with torch._functorch.config.patch(activation_memory_budget=0.1):
        theirs = loss_and_gradients(torch.compile(model), model, x)
    torch.testing.assert_close(theirs[0], nothing_recomputed[0])
    assert any(not torch.allclose(a, b, rtol=0.1) for a, b in zip(theirs, nothing_recomputed, strict=True))


def test_a_draw_in_both_graphs_is_noticed_after_the_fact() -> None:
    """The last line of defence: whatever torch extracts is compared with the facts."""
    graphs = []

    def visit(joint_graph: torch.fx.Graph, node_info: object, num_fwd_outputs: int) -> None:
        graph = extract(joint_graph, node_info, num_fwd_outputs)
        twice = torch.fx.GraphModule({}, joint_graph)
        with pytest.raises(remat.InvalidPlan, match="would run in both passes, but must not: draws from the random"):
            check_nothing_runs_twice(graph, twice, twice)
        graphs.append(graph)

    visit_joint_graphs(visit, lambda x: F.dropout(x, 0.5), torch.randn(4, requires_grad=True))
    assert graphs


def test_a_seed_is_cheaper_to_save_than_a_mask_unless_the_rule_forbids() -> None:
    """With the rule off, the mask is expanded again from the seed that the forward pass drew."""
    x = torch.randn(64, 64, requires_grad=True)
    graph = remat.capture(lambda x: F.dropout(x, 0.5), x)
    saved = {}
    for rule in (True, False):
        plan = remat.solve(ByteTraffic(mode="aggressive", rules={"random": rule}).pose(graph)).plan
        assert plan is not None
        saved[rule] = [graph.dtypes[graph.index[name]] for name in plan.saved]
    assert saved == {True: ["bool"], False: ["int64"]}
