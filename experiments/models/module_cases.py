"""Lists the cases that are modules: buffers and inputs that a step overwrites, shared parameters, usual layers."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.models import zoo
from experiments.models.model_case import Inputs, ModelCase, case_in

MODULE_CASES: dict[str, ModelCase] = {}
_case = functools.partial(case_in, MODULE_CASES)


def _tokens(high: int, *shape: int) -> Inputs:
    return lambda: (torch.randint(high, shape),)


@_case("double precision", 4, 16)
class _Double(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.double()).sin().exp()


@_case("overwritten buffer, new value read", 4, 16)
class _NewBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("scale", torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        self.scale.mul_(0.5)
        return self.linear(x) * self.scale.exp().sin()


@_case("overwritten buffer, old value read", 4, 16)
class _OldBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("scale", torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x) * self.scale.clone()
        self.scale.mul_(0.5)
        return y.sin()


@_case("overwritten input", inputs=lambda: (torch.rand(4, 16), torch.rand(4, 16)))
class _Overwritten(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.linear(x).sin() + y * 2
        y.add_(1)
        return (h.exp() * y).cos()


class _Watch(torch.autograd.Function):
    """Returns its input; its backward pass writes into buffers what it saw."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, history: Tensor, steps: Tensor) -> Tensor:
        ctx.history, ctx.steps = history, steps
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        ctx.history.add_(gradient.abs().mean(0))
        ctx.steps.add_(1)
        return gradient * ctx.history.cos(), None, None


@_case("buffers written in both passes", 4, 16)
class _BothPasses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.register_buffer("history", torch.ones(16))
        self.register_buffer("steps", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).sin() * self.history.exp() * self.steps.cos()  # old values: the backward needs them
        self.history.mul_(0.5)
        self.steps.add_(1)
        return _Watch.apply(y, self.history, self.steps) * self.history.sigmoid().tanh()


@_case("batch normalization", 8, 3, 8, 8)
class _ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 6, 3, padding=1),
            nn.BatchNorm2d(6),
            nn.SiLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 6, 3),
            nn.BatchNorm2d(6),
            nn.AdaptiveAvgPool2d(1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


@_case("attention", 2, 8, 16)
class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(2, 8, 2, 8).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(2, 8, 16))


@_case("attention with dropout", 2, 8, 16)
class _AttentionDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.view(2, 8, 2, 8).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.3).exp()


@_case("embedding with tied weights", inputs=_tokens(32, 4, 8))
class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(32, 16), nn.Linear(16, 16)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(self.mix(self.embed(tokens)).tanh(), self.embed.weight)


@_case("frozen parameters", 4, 16)
class _Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.trained = nn.Linear(16, 16).requires_grad_(False), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.trained(self.frozen(x).tanh()).sin()


@_case("recurrent cells", 4, 5, 8)
class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(4, 8), x.new_zeros(4, 8)
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        return state[0]


@_case("encoder layer", 2, 8, 16)
class _Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@_case("two calls of one layer", 4, 16)
class _Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.linear(x).sin()).exp()


@_case("GPT-2", inputs=_tokens(32, 2, 8))
class _Gpt2(zoo.GPT2):
    def __init__(self) -> None:
        super().__init__(layers=2, width=16, heads=2, vocabulary=32, context=8, dropout=0.1)
