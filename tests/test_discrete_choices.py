"""Discrete choices are made once: a router that is recomputed might send tokens to other experts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from depth import deep
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from transformers import (
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

import remat
from costmodels import MemoryBudget
from experiments.models.save_everything import SaveEverything
from remat.pytorch.read import extract
from remat.pytorch.read.discrete_choices import CHOSEN

LEAST = MemoryBudget(0.0)
SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
_noise = torch.Generator()


# The errors are large, so that they change choices among few tokens.
@torch.library.custom_op("remat_tests::rounded_anew", mutates_args=())
def rounded_anew(x: Tensor, share: float = 0.25) -> Tensor:
    """Returns its argument with other rounding errors at each call, as another kernel would."""
    return x + x * (torch.rand(x.shape, generator=_noise) - 0.5).to(x.dtype) * share


@rounded_anew.register_fake
def _(x: Tensor, share: float = 0.25) -> Tensor:
    return torch.empty_like(x)


rounded_anew.register_autograd(lambda ctx, gradient: (gradient, None))


class Experts(nn.Module):
    """Sends each token through the two of its experts that have the highest scores."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(16, 8), nn.Parameter(torch.randn(8, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = x.tanh()
        scores, experts = rounded_anew(self.gate(x)).softmax(-1).topk(2)
        return ((self.experts[experts] @ x[:, None, :, None]).squeeze(-1) * scores[..., None]).sum(1).sin().sum()


def language_model(name: str) -> nn.Module:
    if name == "mixtral":
        return MixtralForCausalLM(MixtralConfig(**SIZES, num_key_value_heads=2, num_local_experts=8))
    if name == "qwen3":
        experts = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
        return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, num_key_value_heads=2, head_dim=16, **experts))
    experts = {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "n_shared_experts": 1}
    heads = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
    config = DeepseekV3Config(**SIZES, **experts, **heads, moe_intermediate_size=48, first_k_dense_replace=1)
    return DeepseekV3ForCausalLM(config)


class Loss(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.model = language_model(name).to(torch.bfloat16)
        for path, module in self.model.named_modules():
            if path.endswith(("mlp.gate", "mlp.router", "block_sparse_moe.gate")):
                module.register_forward_pre_hook(lambda _, inputs: (rounded_anew(inputs[0]), *inputs[1:]))

    def forward(self, ids: Tensor) -> Tensor:
        logits = self.model(input_ids=ids, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), ids.flatten())


def model_and_input(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return (Experts(), torch.randn(64, 16)) if name == "experts" else (Loss(name), torch.arange(64).view(2, 32))


def gradients(name: str, cost_model: remat.CostModel) -> Tensor:
    model, inputs = model_and_input(name)
    torch._dynamo.reset()  # another instance of a class would get the graphs of the first one
    step = remat.compile(model, cost_model=cost_model, codegen=False)
    _noise.manual_seed(1)  # the forward pass draws first, and so the same whatever is recomputed
    step(inputs).backward()
    return torch.cat([p.grad.flatten().float() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize(
    "name", ["experts", *(pytest.param(name, marks=deep) for name in ("mixtral", "qwen3", "deepseek"))]
)
@pytest.mark.filterwarnings("ignore:remat. 0%", "ignore:this budget of saved memory raises the predicted peak")
def test_recomputed_scores_are_rounded_otherwise_and_tokens_still_go_where_they_went(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = remat.capture(*model_and_input(name))
    plan = remat.choose(graph, LEAST).plan
    assert plan is not None
    recomputed = {graph.ops[graph.index[value]] for value in plan.recomputed}
    assert "remat_tests.rounded_anew.default" in recomputed  # of which scores are made
    assert not recomputed & {"aten.topk.default", "aten.sort.default"}

    expected = gradients(name, SaveEverything())
    once = (gradients(name, LEAST) - expected).norm() / expected.norm()
    monkeypatch.setattr(extract, "discrete_choices", lambda ops, values, inputs, forward: forward & False)
    twice = (gradients(name, LEAST) - expected).norm() / expected.norm()
    assert 3 * once < twice


def choices(model: nn.Module, *inputs: Tensor) -> list[str]:
    """Lists the operators of a model whose results are discrete choices."""
    graph = remat.capture(model, *inputs)
    reasons = graph.cannot_recompute.as_dict().items()
    return [graph.ops[v].removeprefix("aten.") for v, reason in reasons if reason == CHOSEN]


class Of(nn.Module):
    """Computes a function of an input and of a parameter."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight).sin()


def above_their_mean(x: Tensor, weight: Tensor) -> Tensor:
    above = (x * weight > x.mean()).long()  # 0 or 1 for each number
    return weight[above] * x


def by_place(x: Tensor, weight: Tensor) -> Tensor:
    return weight[torch.arange(8).argsort(descending=True)] * x


def nearest(x: Tensor, weight: Tensor) -> Tensor:
    return weight[(x[:, None] - weight).abs().argmin(1)] * x


@torch.library.custom_op("remat_tests::best", mutates_args=())
def best(x: Tensor) -> Tensor:
    return x.argmax(-1)


@best.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(x.shape[:-1], dtype=torch.long)


def by_code(x: Tensor, weight: Tensor) -> Tensor:
    z = (x * weight).tanh() * 3
    return weight[(z + (z.round() - z).detach() + 3).long()] * z


def sampled(x: Tensor, weight: Tensor) -> Tensor:
    grid = (x * weight).view(1, 2, 2, 2).tanh()
    return F.grid_sample(x.view(1, 1, 2, 4), grid, align_corners=True)


def within_capacity(x: Tensor, weight: Tensor) -> Tensor:
    positive = x * weight > 0
    return x * weight * (positive & (positive.cumsum(0) <= 2))


CASES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], list[str]]] = {
    "the nearest vector": (nearest, ["argmin.default"]),
    "the largest number with its place": (lambda x, weight: (x * weight).max(0).values * x, ["max.dim"]),
    "a mask that becomes an index": (above_their_mean, ["gt.Tensor"]),
    "the largest numbers": (
        lambda x, weight: x * weight * (x * weight >= (x * weight).topk(2)[0][-1]),
        ["topk.default", "ge.Tensor"],
    ),
    "the largest number, by a mask": (
        lambda x, weight: weight * x * (x * weight == (x * weight).amax()),
        ["eq.Tensor"],
    ),
    "a number that is cut to an index": (
        lambda x, weight: weight[(x * weight).sigmoid().mul(8).long()] * x,
        ["prims.convert_element_type.default"],
    ),
    "a number that is rounded for an index": (
        lambda x, weight: weight[(x * weight).sigmoid().mul(8).floor().long()] * x,
        ["floor.default"],
    ),
    "codes": (by_code, ["round.default", "prims.convert_element_type.default"]),
    "a grid of places": (sampled, ["floor.default", "floor.default"]),
    "an operator of one's own": (
        lambda x, weight: weight[best((x[:, None] * weight).detach())] * x,
        ["remat_tests.best.default"],
    ),
    "a mask that is counted": (within_capacity, ["gt.Scalar"]),
    "a mask that multiplies": (lambda x, weight: torch.where(x * weight > 0, x, weight), []),
    "ReLU": (lambda x, weight: (x * weight).relu(), []),
    "the largest number": (lambda x, weight: (x * weight).amax() * x, []),
    "an order of integers": (by_place, []),
    "pooling": (lambda x, weight: F.max_pool2d((x * weight).view(1, 1, 2, 4), 2), []),
}


@pytest.mark.parametrize(("function", "expected"), CASES.values(), ids=CASES)
def test_what_counts_as_a_choice(function: Callable[[Tensor, Tensor], Tensor], expected: list[str]) -> None:
    assert choices(Of(function), torch.randn(8)) == expected


class Largest(nn.Module):
    """Keeps the four largest numbers of each row, or the largest one."""

    def __init__(self, threshold: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.threshold, self.weight = threshold, nn.Parameter(torch.randn(64, 96, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        h = (x @ self.weight * 1.1).sigmoid()
        return ((h * (h >= self.threshold(h))) @ self.weight.t()).float().sin().sum()


@pytest.mark.parametrize("budget", [0.0, pytest.param(0.3, marks=deep)])
@pytest.mark.parametrize(
    "threshold", [lambda h: h.topk(4, -1)[0][:, -1:], lambda h: h.amax(-1, keepdim=True)], ids=["topk", "amax"]
)
def test_a_number_in_bfloat16_stays_equal_to_itself(threshold: Callable[[Tensor], Tensor], budget: float) -> None:
    """The kernel that recomputes has it in float32, and what was saved was rounded."""
    torch.manual_seed(0)
    model, x = Largest(lambda h: threshold(h).detach()), torch.randn(512, 64, dtype=torch.bfloat16)
    model(x).backward()
    assert model.weight.grad is not None
    expected, model.weight.grad = model.weight.grad.float(), None
    torch._dynamo.reset()
    remat.compile(model, cost_model=MemoryBudget(budget))(x).backward()
    assert model.weight.grad is not None
    assert (model.weight.grad.float() - expected).norm() < 0.05 * expected.norm()


def test_sampled_places_and_their_weights_belong_together() -> None:
    """At the places of the pixels themselves, a rounding error decides which four pixels are read."""

    class Sampler(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image = nn.Parameter(torch.randn(1, 3, 32, 32))

        def forward(self, grid: Tensor) -> Tensor:
            return F.grid_sample(self.image, rounded_anew(grid, 2**-20), align_corners=True).sin().sum()

    torch.manual_seed(0)
    model, grid = Sampler(), F.affine_grid(torch.eye(2, 3)[None], [1, 3, 32, 32], align_corners=True)
    gradient: list[Tensor] = []
    for cost_model in (SaveEverything(), LEAST):
        torch._dynamo.reset()
        _noise.manual_seed(1)
        remat.compile(model, cost_model=cost_model, codegen=False)(grid.requires_grad_()).backward()
        assert model.image.grad is not None
        gradient.append(model.image.grad)
        model.image.grad = None
    assert (gradient[1] - gradient[0]).norm() < 0.01 * gradient[0].norm()


def test_a_choice_that_the_user_lets_torch_repeat_is_repeated() -> None:
    contexts = partial(create_selective_checkpoint_contexts, lambda *_, **__: CheckpointPolicy.MUST_RECOMPUTE)

    class Marked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = Experts()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.experts, x, use_reentrant=False, context_fn=contexts).cos()

    assert choices(Experts(), torch.randn(64, 16)) == ["topk.default"]
    assert choices(Marked(), torch.randn(64, 16)) == []
