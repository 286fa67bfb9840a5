"""Runs the Triton code that TorchInductor wrote on tensors of the CPU, in Triton's interpreter.

Everything here needs TRITON_INTERPRET=1 in the environment before triton is first imported, and changes modules of
torch and of triton for good: it is for a process of its own.

The emitted kernels are run as they are. Replaced is what they stand on: the allocation of tensors, libdevice, which
the interpreter does not have (numpy does), and fused attention and LSTM cells, which are calls of libraries.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.special
import torch
from torch import Tensor
from torch._inductor.codecache import PyCodeCache
from triton import language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

from remat.pytorch.inductor.triton_code import PassCode

_LIBDEVICE: dict[str, Callable[..., Any]] = {
    "erf": scipy.special.erf,
    "expm1": np.expm1,
    "log1p": np.log1p,
    "pow": np.power,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "nearbyint": np.rint,
    "trunc": np.trunc,
    "floor": np.floor,
    "ceil": np.ceil,
    "sin": np.sin,
    "cos": np.cos,
    "exp": np.exp,
    "log": np.log,
}
"""What libdevice computes, in numpy."""


def prepare() -> None:
    """Gives this process what the emitted code stands on."""
    for name, function in _LIBDEVICE.items():
        setattr(tl.extra.libdevice, name, _elementwise(function, boolean=name.startswith("is")))
    interpreter._convert_float = _rounded(interpreter._convert_float)
    interpreter._interpreter = _contiguous_atomics(interpreter._interpreter)
    torch._C._cuda_getCurrentRawStream = _answering(0)
    torch.cuda._DeviceGuard = _answering(contextlib.nullcontext())
    torch.cuda.set_device = _answering(None)
    library = torch.library.Library("aten", "IMPL")
    library.impl("_scaled_dot_product_efficient_attention", _attention, "CPU")
    library.impl("_scaled_dot_product_efficient_attention_backward", _attention_backward, "CPU")
    library.impl("_thnn_fused_lstm_cell", _lstm_cell, "CPU")
    library.impl("_thnn_fused_lstm_cell_backward_impl", _lstm_cell_backward, "CPU")
    _kept.append(library)


_kept: list[Any] = []
"""A library takes back what it has registered when it is collected."""


def _answering(value: Any) -> Callable[..., Any]:
    def answer(*args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        return value

    return answer


def _rounded(own: Callable[..., Any]) -> Callable[..., Any]:
    """Mends the interpreter's casts from float32 to bfloat16: they cut bits off where a GPU rounds to even (3.7.1).

    A value that is cut off is too small by half a unit in the last of 8 bits on average, and sums of them are, too.
    """

    def convert(data: Any, source: Any, target: Any, mode: Any) -> Any:
        if (source, target) == (tl.float32, tl.bfloat16):
            return torch.from_numpy(np.array(data)).bfloat16().view(torch.uint16).numpy()
        return own(data, source, target, mode)

    return convert


def _contiguous_atomics(own: Any) -> SimpleNamespace:
    """Mends the interpreter's atomics: of a mask that is broadcast from one element they read past the end (3.7.1)."""

    def atomic_rmw(operation: Any, pointers: Any, values: Any, mask: Any, order: Any) -> Any:
        return own.atomic_rmw(operation, *map(np.ascontiguousarray, (pointers, values, mask)), order)

    names = {name: getattr(own, name) for name in dir(own) if not name.startswith("__")}
    return SimpleNamespace(**names | {"atomic_rmw": atomic_rmw})


def _elementwise(function: Callable[..., Any], *, boolean: bool) -> Callable[..., Any]:
    def call(*args: Any, **_: Any) -> Any:
        first = next(a for a in args if isinstance(a, tl.core.tensor))
        data = function(*(a.handle.data if isinstance(a, tl.core.tensor) else a for a in args))
        scalar = tl.int32 if boolean else first.type.scalar
        kind = tl.block_type(scalar, first.type.shape) if first.type.is_block() else scalar
        return tl.core.tensor(TensorHandle(data.astype(np.int32 if boolean else first.handle.data.dtype), scalar), kind)

    return call


def run(code: PassCode, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Runs a pass, each kernel in the configuration with the largest blocks: the interpreter is slow block by block.

    Args:
        code: of the pass.
        values: of all its inputs, by name; those that the pass writes to are changed.

    Returns:
        the outputs, by name.
    """
    module: Any = PyCodeCache.load(code.text)
    module.empty_strided_cuda = module.empty_strided_cpu
    module.device = _answering(torch.device("cpu"))
    for name in code.sources:
        tuner = getattr(module, name)  # which takes its first configuration
        tuner.configs = [max(tuner.configs, key=lambda configuration: math.prod(configuration.kwargs.values()))]
    outputs = module.call([values[name] for name in code.inputs])
    return {name: found for name, found in zip(code.outputs, outputs, strict=True) if name}


def _lstm_cell(
    gates: Tensor, hidden_gates: Tensor, cell: Tensor, bias: Tensor | None = None, hidden_bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes a step of an LSTM, which is one operator on a GPU: output, cell, and the four gates."""
    for other in (hidden_gates, bias, hidden_bias):
        gates = gates if other is None else gates + other
    enter, forget, new, leave = gates.chunk(4, 1)
    enter, forget, new, leave = enter.sigmoid(), forget.sigmoid(), new.tanh(), leave.sigmoid()
    cell = forget * cell + enter * new
    return leave * cell.tanh(), cell, torch.cat((enter, forget, new, leave), 1)


def _lstm_cell_backward(
    of_output: Tensor | None, of_cell: Tensor | None, before: Tensor, after: Tensor, gates: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Computes the gradients of `_lstm_cell`: of the sum of gates, of the cell, and of a bias."""
    enter, forget, new, leave = gates.chunk(4, 1)
    of_output = torch.zeros_like(after) if of_output is None else of_output
    shown = after.tanh()
    inner = of_output * leave * (1 - shown**2) + (0 if of_cell is None else of_cell)
    parts = (
        inner * new * enter * (1 - enter),
        inner * before * forget * (1 - forget),
        inner * enter * (1 - new**2),
        of_output * shown * leave * (1 - leave),
    )
    found = torch.cat(parts, 1)
    return found, inner * forget, found.sum(0) if has_bias else None


def _attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, with_logsumexp: bool,
    dropout: float = 0.0, causal: bool = False, *, scale: float | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Computes fused attention, and lays its results out as on a GPU."""
    like = torch.ops.aten._scaled_dot_product_efficient_attention(
        *(None if x is None else x.to("meta") for x in (q, k, v, bias)), with_logsumexp, dropout, causal, scale=scale
    )
    weights, mask, logsumexp = _weights(q, k, bias, _SEED, dropout, causal, scale or 1 / math.sqrt(q.shape[-1]))
    found = [torch.zeros(x.shape, dtype=x.dtype).as_strided(x.shape, x.stride()) for x in like]
    found[0].copy_((weights * mask) @ v)
    if found[1].numel():
        found[1][..., : q.shape[-2]] = logsumexp
    found[2].fill_(_SEED)
    return tuple(found)


_SEED = 7
"""Of the mask of dropout within attention."""


def _attention_backward(gradient: Tensor, *given: Any, scale: float | None = None) -> tuple[Tensor | None, ...]:
    """Computes the gradients of fused attention, and lays them out as on a GPU."""
    like = torch.ops.aten._scaled_dot_product_efficient_attention_backward(
        *(x.to("meta") if isinstance(x, Tensor) else x for x in (gradient, *given)), scale=scale
    )
    q, k, v, bias, _, _, seed, _, dropout, _, causal = (*given, False)[:11]
    scale = scale or 1 / math.sqrt(q.shape[-1])
    weights, mask, _ = _weights(q, k, bias, int(seed), dropout, causal, scale)
    kept = gradient @ v.transpose(-2, -1) * mask
    scores = weights * (kept - (kept * weights).sum(-1, keepdim=True)) * scale
    found = scores @ k, scores.transpose(-2, -1) @ q, (weights * mask).transpose(-2, -1) @ gradient
    return (*(torch.empty_like(x, device="cpu").copy_(y) for x, y in zip(like, found, strict=False)), None)


def _weights(
    q: Tensor, k: Tensor, bias: Tensor | None, seed: int, dropout: float, causal: bool, scale: float
) -> tuple[Tensor, Tensor | float, Tensor]:
    """Computes the weights of attention before dropout, what dropout multiplies them by, and the log of their sums."""
    scores = q @ k.transpose(-2, -1) * scale
    if bias is not None:
        scores = scores + bias
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    mask: Tensor | float = 1.0
    if dropout:
        drawn = torch.rand(scores.shape, generator=torch.Generator().manual_seed(seed))
        mask = (drawn > dropout) / (1 - dropout)
    return scores.softmax(-1), mask, scores.logsumexp(-1)
