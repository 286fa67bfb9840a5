"""Applies view operators to index maps."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, cast

from remat.predict.kernels.index import Access, Digits, Dims, Shape, opaque, reshaped
from remat.predict.kernels.recorded_calls import Call

SPLITS = frozenset({"aten.split", "aten.split_with_sizes", "aten.unbind"})
"""Operators whose elements are views of their argument."""


def positive(dim: int, rank: int) -> int:
    return dim + rank if dim < 0 else dim


def view_access(call: Call, shape: Shape, access: Access) -> Access | None:
    """Returns the index map of a view of a value that is itself seen through `access`; None if there is no rule."""
    rule = VIEWS.get(call.op)
    if rule is None:
        return None
    dims, start = rule(call, shape, access[0])
    return dims, access[1] + start


def _reshape(call: Call, shape: Shape, dims: Dims) -> Access:
    return (dims if call.shape == shape else reshaped(dims, call.shape)), 0


def _permute(call: Call, shape: Shape, dims: Dims) -> Access:
    order = [positive(dim, len(shape)) for dim in call.args[1]]
    return tuple(dims[i] for i in order), 0


def _transpose(call: Call, shape: Shape, dims: Dims) -> Access:
    a, b = (positive(call.args[i], len(shape)) for i in (1, 2))
    order = list(range(len(shape)))
    order[a], order[b] = b, a
    return tuple(dims[i] for i in order), 0


def _t(_call: Call, _shape: Shape, dims: Dims) -> Access:
    return dims[::-1], 0


def expanded(dims: Dims, shape: Shape, target: Shape) -> Dims:
    missing = len(target) - len(shape)
    return tuple(
        digits if m in (n, 1) else ((m, 0),)
        for digits, n, m in zip(((),) * missing + dims, (1,) * missing + shape, target, strict=True)
    )


def _expand(call: Call, shape: Shape, dims: Dims) -> Access:
    return expanded(dims, shape, call.shape), 0


def _unsqueeze(call: Call, shape: Shape, dims: Dims) -> Access:
    at = positive(call.args[1], len(shape) + 1)
    return (*dims[:at], (), *dims[at:]), 0


def _squeeze(call: Call, shape: Shape, dims: Dims) -> Access:
    which: Any = call.arg(1, "dim")
    rank = len(shape)
    if which is None:
        gone = set(range(rank))
    else:
        listed = cast(list[int], which if isinstance(which, list) else [which])
        gone = {positive(d, rank) for d in listed}
    return tuple(digits for i, digits in enumerate(dims) if i not in gone or shape[i] != 1), 0


def _select(call: Call, shape: Shape, dims: Dims) -> Access:
    dim = positive(call.args[1], len(shape))
    return dims[:dim] + dims[dim + 1 :], at(dims[dim], positive(call.args[2], shape[dim]))


def at(digits: Digits, index: int) -> int:
    start = 0
    for n, s in reversed(digits):
        start += index % max(n, 1) * s
        index //= max(n, 1)
    return start


def _slice(call: Call, shape: Shape, dims: Dims) -> Access:
    dim = positive(call.arg(1, "dim", 0), len(shape))
    start, step = call.arg(2, "start", 0) or 0, call.arg(4, "step", 1)
    return sliced(dims, dim, shape[dim], min(max(positive(start, shape[dim]), 0), shape[dim]), call.shape[dim], step)


def sliced(dims: Dims, dim: int, size: int, start: int, length: int, step: int = 1) -> Access:
    digits = dims[dim]
    if length == size and step == 1:
        return dims, 0
    new: Digits
    if length == 1:
        new = ()
    elif len(digits) == 1:
        new = ((length, digits[0][1] * step),)
    else:
        new = _run(digits, start, length, step)
    return (*dims[:dim], new, *dims[dim + 1 :]), at(digits, start)


def _run(digits: Digits, start: int, length: int, step: int) -> Digits:
    inner = prod(n for n, _ in digits[1:])
    if step == 1 and start % inner == 0 and length % inner == 0:
        outer = length // inner
        return (((outer, digits[0][1]),) if outer > 1 else ()) + digits[1:]
    return opaque(length, digits, start, step)


def _same(_call: Call, _shape: Shape, dims: Dims) -> Access:
    return dims, 0


VIEWS: dict[str, Callable[[Call, Shape, Dims], Access]] = {
    **dict.fromkeys(("aten.view", "aten.reshape", "aten._unsafe_view", "aten._reshape_alias"), _reshape),
    "aten.permute": _permute,
    "aten.transpose": _transpose,
    "aten.t": _t,
    "aten.expand": _expand,
    "aten.unsqueeze": _unsqueeze,
    "aten.squeeze": _squeeze,
    "aten.select": _select,
    "aten.slice": _slice,
    **dict.fromkeys(("aten.alias", "aten.detach", "aten.lift_fresh_copy"), _same),
}
"""Operators that are index arithmetic: no kernel, no bytes."""


def element(call: Call, of: Call, shape: Shape, dims: Dims) -> Access:
    """Returns the index map of one part of a split."""
    k: int = call.args[1]
    if of.op == "aten.unbind":
        dim = positive(of.arg(1, "dim", 0), len(shape))
        return dims[:dim] + dims[dim + 1 :], at(dims[dim], k)
    dim = positive(of.arg(2, "dim", 0), len(shape))
    pieces: Any = of.args[1]
    start = k * pieces if isinstance(pieces, int) else sum(pieces[:k])
    return sliced(dims, dim, shape[dim], start, call.shape[dim])
