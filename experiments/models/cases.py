"""Lists small models, each for one thing that models do: what a partitioner must get right.

Here are those that apply one function after a linear layer: operators, views, writes, checkpoints, randomness.
`experiments.models.module_cases` has the others.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from experiments.models import zoo
from experiments.models.model_case import ModelCase, case_in
from experiments.models.module_cases import MODULE_CASES

CASES: dict[str, ModelCase] = {}
_case = functools.partial(case_in, CASES)


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
    return F.cross_entropy(x, torch.arange(4, device=x.device)) + x.softmax(-1).log().sum() * 1e-3


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


CASES |= MODULE_CASES
