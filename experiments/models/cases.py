"""Small models, each for one thing that models do: what a partitioner must get right."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from experiments.models import zoo

Inputs = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Case:
    """A model and its inputs.

    Attributes:
        name: what the case is about.
        build: makes the model; random weights come from the caller's seed.
        inputs: makes a batch.
        dynamic: compile with symbolic sizes.
        tolerance: relative and absolute, against eager; float32 rounding unless there is a reason.
    """

    name: str
    build: Callable[[], nn.Module]
    inputs: Inputs
    dynamic: bool | None = None
    tolerance: float = 1e-4


CASES: dict[str, Case] = {}


def _case(name: str, *shape: int, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Registers a module class, or a function of a linear layer's output, under a name."""

    def register(subject: Callable[..., Any]) -> Callable[..., Any]:
        build = subject if isinstance(subject, type) else functools.partial(_Function, subject, shape[-1])
        inputs = options.pop("inputs", None) or functools.partial(_floats, shape)
        CASES[name] = Case(name, build, inputs, **options)
        return subject

    return register


class _Function(nn.Module):
    """A function after a linear layer, so that there are parameters to train."""

    def __init__(self, function: Callable[[Tensor], Any], width: int) -> None:
        super().__init__()
        self.function, self.linear = function, nn.Linear(width, width)

    def forward(self, x: Tensor) -> Any:
        return self.function(self.linear(x))


def _floats(shape: tuple[int, ...]) -> tuple[Tensor, ...]:
    return (torch.randn(shape),)


def _tokens(high: int, *shape: int) -> Inputs:
    return lambda: (torch.randint(high, shape),)


@_case("pointwise chain", 4, 16)
def _chain(x: Tensor) -> Tensor:
    return zoo.gelu(x.sin().exp().tanh())


@_case("several outputs, some without gradient", 4, 16)
def _outputs(x: Tensor) -> tuple[Tensor, ...]:
    return x.sin(), x.detach() * 2, x.argmax(-1), x.exp()


@_case("dictionary output", 4, 16)
def _dictionary(x: Tensor) -> dict[str, Tensor]:
    return {"a": x.sin(), "b": x.cos()}


@_case("views as outputs", 4, 16)
def _views(x: Tensor) -> tuple[Tensor, ...]:
    y = x.tanh()
    return y.view(2, -1), y.t(), y[1:, ::2], y


@_case("in-place operators", 4, 16)
def _in_place(x: Tensor) -> Tensor:
    return x.mul(2).add_(1).sigmoid_()


@_case("writes into a slice", 4, 16)
def _slice_write(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, :4] = x[:, 4:8].sin()
    return y.exp()


@_case("expand and broadcast", 4, 16)
def _broadcast(x: Tensor) -> Tensor:
    return (x[:, None, :].expand(4, 3, 16) * x.sum(-1, keepdim=True)[:, None]).tanh()


@_case("split, stack and concatenate", 4, 16)
def _split(x: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a.sin() * b, torch.stack([a, b]).sum(0)], dim=-1)


@_case("sort, gather and index", 4, 16)
def _gather(x: Tensor) -> Tensor:
    values, order = x.sort(-1)
    return values.sin() + x.gather(-1, order.flip(-1)) * x[:, torch.tensor([3, 1]).repeat(8)]


@_case("normalizations by hand", 4, 16)
def _normalize(x: Tensor) -> Tensor:
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True) + 1e-5).sqrt()
    return x * x.square().mean(-1, keepdim=True).rsqrt()


@_case("softmax and cross entropy", 4, 16)
def _entropy(x: Tensor) -> Tensor:
    return F.cross_entropy(x, torch.arange(4)) + x.softmax(-1).log().sum() * 1e-3


@_case("double precision", 4, 16)
class _Double(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.double()).sin().exp()


@_case("autocast", 4, 16, tolerance=2e-2)  # bfloat16 has 8 bits
def _autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu" if x.device.type == "cpu" else "cuda", torch.bfloat16):
        return F.gelu(x @ x.t()).float()


@_case("dropout", 4, 16)
def _dropout(x: Tensor) -> Tensor:
    return F.dropout(x.sin(), 0.5).exp() * F.dropout(x, 0.1)


@_case("noise by hand", 4, 16)
def _noise(x: Tensor) -> Tensor:
    return x.sin() * torch.rand_like(x) + torch.randn(16, device=x.device) * x


@_case("graph break", 4, 16)
def _break(x: Tensor) -> Tensor:
    y = x.sin()
    torch._dynamo.graph_break()
    return y.cos() * x


@_case("checkpointed region", 4, 16)
def _checkpointed(x: Tensor) -> Tensor:
    return checkpoint(lambda x: x.sin().exp() @ x.t(), x, use_reentrant=False)


@_case("checkpointed dropout", 4, 16)
def _checkpointed_dropout(x: Tensor) -> Tensor:
    return checkpoint(lambda x: F.dropout(x.sin(), 0.5).exp(), x, use_reentrant=False)


def _keep_products(_: object, op: object, *_args: object, **_kwargs: object) -> CheckpointPolicy:
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    return CheckpointPolicy.MUST_SAVE if op in products else CheckpointPolicy.MUST_RECOMPUTE


_CONTEXTS = functools.partial(create_selective_checkpoint_contexts, _keep_products)


@_case("selective checkpoint", 4, 16)
def _selective(x: Tensor) -> Tensor:
    return checkpoint(lambda x: (x.sin() @ x.t()).exp().tanh(), x, use_reentrant=False, context_fn=_CONTEXTS)


@_case("selective checkpoint of dropout", 4, 16)
def _selective_dropout(x: Tensor) -> Tensor:
    def block(x: Tensor) -> Tensor:
        return F.dropout(F.dropout(x.sin(), 0.5).exp() @ x.t(), 0.3).tanh()

    return checkpoint(block, x, use_reentrant=False, context_fn=_CONTEXTS)


@_case("data-dependent branch as an operator", 4, 16)
def _cond(x: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)).exp()


@_case("vmap and grad inside", 4, 16)
def _functional(x: Tensor) -> Tensor:
    return torch.func.vmap(lambda row: torch.func.grad(lambda r: r.sin().square().sum())(row) * row)(x)


@_case("complex numbers", 4, 16)
def _complex(x: Tensor) -> Tensor:
    return torch.view_as_real(torch.polar(x.exp(), x)).sum(-1)


@torch.library.custom_op("remat_cases::cube", mutates_args=())
def _cube(x: Tensor) -> Tensor:
    return x**3


_cube.register_fake(torch.empty_like)
_cube.register_autograd(
    lambda ctx, gradient: 3 * ctx.saved_tensors[0] ** 2 * gradient,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[0]),  # noqa: ARG005  # by name
)


@_case("custom operator", 4, 16)
def _custom(x: Tensor) -> Tensor:
    return _cube(x.sin()).exp()


@_case("symbolic batch", 6, 16, dynamic=True)
def _symbolic(x: Tensor) -> Tensor:
    return F.layer_norm(zoo.gelu(x), (16,)) * x.shape[0]


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
    """The identity, whose backward pass writes down what it saw."""

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
