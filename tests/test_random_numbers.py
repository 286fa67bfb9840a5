"""Random numbers are drawn once: whatever is recomputed, gradients belong to the loss that was seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from depth import deep
from strategies import Dice
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import remat
from costmodels import ByteTraffic
from experiments.models.save_everything import SaveEverything, SaveLeast
from remat.pytorch.measure.saved import saved_activations
from remat.pytorch.read.capture import visit_joint_graphs
from remat.pytorch.read.extract import extract
from remat.pytorch.run import partitioner
from remat.pytorch.run.partitioner import check_nothing_runs_twice


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


def model_and_input() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return Dropouts(), torch.randn(4, 8, 16)


@cache
def nothing_recomputed(codegen: bool) -> list[Tensor]:
    model, x = model_and_input()
    return loss_and_gradients(remat.compile(model, cost_model=SaveEverything(), codegen=codegen), model, x)


DRAWN_AGAIN = ByteTraffic(mode="aggressive", rules={"random": False})


@pytest.mark.parametrize(
    ("cost_model", "codegen"),
    [
        # In the quick half, code for draws is compiled below, of dropout alone.
        *(pytest.param(cost_model, True, marks=deep) for cost_model in (SaveLeast(), DRAWN_AGAIN)),
        *((cost_model, False) for cost_model in (ByteTraffic(), ByteTraffic(mode="aggressive"), *map(Dice, range(3)))),
    ],
    ids=repr,
)
def test_gradients_equal_those_of_the_run_that_recomputes_nothing(cost_model: remat.CostModel, codegen: bool) -> None:
    expected, (model, x) = nothing_recomputed(codegen), model_and_input()
    step = remat.compile(model, cost_model=cost_model, codegen=codegen)
    torch.testing.assert_close(loss_and_gradients(step, model, x), expected)


@deep
def test_torchs_own_budget_gets_this_wrong() -> None:
    """pytorch#190758: with a budget below 1, a recomputed dropout draws afresh. Should this test ever
    fail because torch is right, delete it.
    """
    expected, (model, x) = nothing_recomputed(True), model_and_input()
    with torch._functorch.config.patch(activation_memory_budget=0.1):
        theirs = loss_and_gradients(torch.compile(model), model, x)
    torch.testing.assert_close(theirs[0], expected[0])
    assert any(not torch.allclose(a, b, rtol=0.1) for a, b in zip(theirs, expected, strict=True))


def test_kernels_of_a_gpu_may_draw_other_numbers_from_a_seed_so_none_is_recomputed() -> None:
    """Over one index Triton kernels draw four numbers at a time, in a reduction one: found in Triton's interpreter."""
    model, x = MarkedDropout(partial(F.dropout, p=0.4), marked=False), torch.randn(4, 16)
    for device, banned in {"h100": True, None: False}.items():
        graph = remat.capture(model, x, device=device)
        draws = [i for i, op in enumerate(graph.ops) if op.startswith("prims.inductor_random")]
        assert len(draws) == 2
        assert [bool(graph.cannot_recompute.mask[i]) for i in draws] == [banned] * 2


def all_again() -> Any:
    return create_selective_checkpoint_contexts(lambda *_, **__: CheckpointPolicy.MUST_RECOMPUTE)


class MarkedDropout(nn.Module):
    """Dropout in a region that is recomputed by demand, in a plain checkpoint (`contexts` is None), or in no region."""

    def __init__(
        self, dropout: Callable[[Tensor], Tensor], marked: bool = True, contexts: Callable[[], Any] | None = all_again
    ) -> None:
        super().__init__()
        self.dropout, self.marked = dropout, marked
        self.options = {} if contexts is None else {"context_fn": contexts}
        self.before, self.after = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        x = checkpoint(self.region, x, use_reentrant=False, **self.options) if self.marked else self.region(x)
        return self.after(x)

    def region(self, x: Tensor) -> Tensor:
        # One draw needs the other: Inductor puts independent calls in an order of its own, whoever partitions.
        return self.dropout(self.dropout(x.sin()).exp())


def random_operators(seen: list[tuple[set[str], set[str]]]) -> Callable[..., None]:
    """A check to run after the split, that notes the operators that both passes wrap to share random numbers."""

    def note(graph: remat.Graph, forward: torch.fx.GraphModule, backward: torch.fx.GraphModule) -> None:
        check_nothing_runs_twice(graph, forward, backward)
        wrapped = [
            {str(n.target) for n in module.graph.nodes if str(n.target).startswith("run_")}
            for module in (forward, backward)
        ]
        seen.append((wrapped[0], wrapped[1]))

    return note


NUMBERS: dict[str, dict[str, Any]] = {
    "drawn operator by operator": {"codegen": False},
    "eager's": {"options": {"fallback_random": True}},
    "Inductor's": {},
}


def seeded(**options: Any) -> tuple[MarkedDropout, Tensor]:
    """A model whose weights do not depend on the options, and its input."""
    torch.manual_seed(0)
    return MarkedDropout(partial(F.dropout, p=0.4), **options), torch.randn(4, 16)


@cache
def drawn_once(numbers: str) -> list[Tensor]:
    """What the model gives in no region, with everything saved."""
    plain, x = seeded(marked=False)
    return loss_and_gradients(remat.compile(plain, cost_model=SaveEverything(), **NUMBERS[numbers]), plain, x)


@pytest.mark.parametrize(
    ("numbers", "cost_model"),
    [
        *((numbers, SaveLeast()) for numbers in NUMBERS),
        *(("drawn operator by operator", model) for model in (ByteTraffic(), Dice(0))),
    ],
    ids=repr,
)
def test_a_draw_that_must_be_recomputed_is_the_same_draw(
    numbers: str, cost_model: remat.CostModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, settings, (model, x) = drawn_once(numbers), NUMBERS[numbers], seeded()
    seen: list[tuple[set[str], set[str]]] = []
    monkeypatch.setattr(partitioner, "check_nothing_runs_twice", random_operators(seen))
    step = remat.compile(model, cost_model=cost_model, **settings)
    torch.testing.assert_close(loss_and_gradients(step, model, x), expected)
    # Inductor's own random numbers come from seeds, which are saved; eager's are drawn again.
    again = ({"run_and_save_rng_state"}, {"run_with_rng_state"}) if settings else (set(), set())
    assert seen == [again]


@pytest.mark.parametrize("numbers", NUMBERS)
def test_a_plain_checkpoint_draws_again_and_saves_no_mask(numbers: str) -> None:
    """torch marks what it contains PREFER_RECOMPUTE, and restores the generator for that, too."""
    expected, settings, (model, x) = drawn_once(numbers), NUMBERS[numbers], seeded(contexts=None)
    step = remat.compile(model, **settings)
    torch.testing.assert_close(loss_and_gradients(step, model, x), expected)
    kept = saved_activations(step, model, x)[1].each
    assert [tensor for tensor in kept if tensor.dtype == "bool"] == []
    states = [tensor for tensor in kept if tensor.dtype == "uint8"]
    assert len(states) == (2 if settings else 0)  # of the generator, one for each draw; else a seed, in 8 bytes
    assert sum(tensor.bytes for tensor in kept if tensor not in states) <= x.nbytes + 2 * 8


@torch.library.custom_op("remat_tests::noise", mutates_args=(), tags=(torch.Tag.nondeterministic_seeded,))
def noise(x: Tensor) -> Tensor:
    return x * torch.rand_like(x)


noise.register_fake(torch.empty_like)
noise.register_autograd(lambda ctx, gradient: gradient)


def test_a_draw_of_unknown_origin_is_not_recomputed_even_on_demand() -> None:
    step = remat.compile(MarkedDropout(noise), codegen=False)
    with pytest.raises(Exception, match=r"noise.*cannot be recomputed \(draws from the random number generator"):
        step(torch.randn(4, 16))


@pytest.mark.parametrize("marked", [False, True])
def test_a_draw_in_both_graphs_is_noticed_after_the_fact(marked: bool) -> None:
    """The last line of defence: whatever torch extracts is compared with the facts."""
    graphs = []

    def visit(joint_graph: torch.fx.Graph, node_info: object, num_fwd_outputs: int) -> None:
        graph = extract(joint_graph, node_info, num_fwd_outputs)
        if marked:  # then torch must have wrapped it
            graph = replace(graph, cannot_recompute=graph.cannot_recompute.without(graph.cannot_recompute.mask))
        twice = torch.fx.GraphModule({}, joint_graph)
        with pytest.raises(
            remat.InvalidPlan, match=r"would run in both passes, but cannot be recomputed \(draws from the random"
        ):
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
        saved[rule] = [graph.dtypes[graph.index[name]] for name in plan.saved]
    assert saved == {True: ["bool"], False: ["int64"]}
