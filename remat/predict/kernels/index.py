"""Represents where in a buffer an iteration reads: index maps with mixed-radix digits.

An index map sends a multi-index over some shape to a position in memory. Each dimension of the shape has a row of
digits `(size, stride)`, the outermost first: position `i` in a dimension with the digits (4, 100), (8, 3) reads at `(i
// 8) * 100 + (i % 8) * 3`. One digit is a plain stride, no digit is a dimension of size one, and stride zero is a
broadcast. Permute, expand, slice and reshape turn one map into another. So does the composition of two maps, which
inlines a chain of views and pointwise operators. TorchInductor has symbolic expressions for this (`FloorDiv`,
`ModularIndexing`).

An *opaque* digit represents what digits cannot express, such as a lookup by index or a reshape across sizes that do not
divide. Its stride is a negative hash of what it represents, so that equal accesses stay equal and others differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from math import prod
from zlib import crc32

Shape = tuple[int, ...]
Digits = tuple[tuple[int, int], ...]
Dims = tuple[Digits, ...]
"""Digits of each dimension."""

Access = tuple[Dims, int]
"""An index map: the digits of each dimension, and the position of the first element, or a `runtime_position`."""

# A mark before a digit that repeats, of which only one round is read: Inductor keeps `ModularIndexing` there.
_WRAPS = (1, 0)
_NOWHERE = -(1 << 48)

STEPS = 1 << 40
"""An upper bound of all steps. An opaque digit with a known first step has a stride below `-STEPS`."""


def runtime_position(*what: object) -> int:
    """Returns a number for a position that only the running program knows; equal arguments give equal numbers."""
    return _NOWHERE - crc32(repr(what).encode())


def is_runtime_position(start: int) -> bool:
    return start <= _NOWHERE


@lru_cache(maxsize=1 << 14)
def contiguous_strides(shape: Shape) -> Shape:
    """Returns row-major strides.

    >>> contiguous_strides((4, 3, 5))
    (15, 5, 1)
    """
    return strides_in(reversed(range(len(shape))), shape)


def strides_in(order: Iterable[int], shape: Shape) -> Shape:
    """Returns the strides of a dense tensor from the order of its dimensions in memory, the innermost first.

    >>> strides_in((0, 2, 1), (4, 3, 5))
    (1, 20, 4)
    """
    strides, step = [0] * len(shape), 1
    for dim in order:
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def coordinate(shape: Shape, dim: int) -> Dims:
    """Returns the index map that tells the place in one dimension.

    >>> coordinate((4, 3), 1)
    (((4, 0),), ((3, 1),))
    """
    return strided(shape, tuple(int(i == dim) for i in range(len(shape))))


def broadcasts(shape: Shape, target: Shape) -> bool:
    """Returns whether a shape broadcasts to another one, which a graph written by hand does not guarantee.

    >>> broadcasts((3, 1), (2, 3, 4)), broadcasts((3,), (2, 3, 4))
    (True, False)
    """
    sizes = zip(reversed(shape), reversed(target), strict=False)
    return len(shape) <= len(target) and all(n in (1, m) for n, m in sizes)


@lru_cache(maxsize=1 << 14)
def strided(shape: Shape, strides: Shape) -> Dims:
    return tuple(((n, s),) if n != 1 else () for n, s in zip(shape, strides, strict=True))


@lru_cache(maxsize=1 << 14)
def identity(shape: Shape) -> Dims:
    """Returns the index map of a contiguous tensor.

    >>> identity((4, 1, 5))
    (((4, 5),), (), ((5, 1),))
    """
    return strided(shape, contiguous_strides(shape))


def strides_of(dims: Dims, shape: Shape) -> Shape | None:
    """Returns the strides of a tensor that reads memory where an index map reads it, or None if no strides do.

    A dimension of size one gets its row-major stride, which has no effect.
    """
    if any(len(digits) > 1 or any(s < 0 for _, s in digits) for digits in dims):
        return None
    row = contiguous_strides(shape)
    return tuple(digits[0][1] if digits else row[i] for i, digits in enumerate(dims))


def opaque(size: int, *what: object) -> Digits:
    """Returns the digits of a dimension with unknown steps; equal arguments give equal digits."""
    return ((size, -1 - crc32(repr(what).encode())),) if size != 1 else ()


def moves(digits: Digits) -> bool:
    """Returns whether the position that is read depends on a dimension."""
    return any(s for _, s in digits)


def uneven(size: int, step: int, *what: object) -> Digits:
    """Returns the digits of a dimension of which only the first step is known; equal arguments give equal digits."""
    return ((size, -STEPS * (1 + crc32(repr(what).encode())) - step),)


def led_to(dims: Dims, index: int) -> int:
    """Returns the position to which an index map sends a row-major index.

    >>> led_to(strided((3, 4), (1, 3)), 5)
    4
    """
    position = 0
    for n, s in reversed([digit for digits in dims for digit in digits]):
        position += index % n * (s if s > -STEPS else -s % STEPS)
        index //= n
    return position


def flat(dims: Dims) -> Digits:
    """Returns all digits, the outermost first; two neighbours that are one plain stride together become one digit."""
    row: list[tuple[int, int]] = []
    for digits in dims:
        for n, s in digits:
            if n == 1:
                continue
            if row and row[-1][1] == s * n and (s > 0 or row[-1][1] == s == 0):
                row[-1] = (row[-1][0] * n, s)
            else:
                row.append((n, s))
    return tuple(row)


@lru_cache(maxsize=1 << 16)
def reshaped(dims: Dims, shape: Shape) -> Dims:
    """Returns the index map of the same elements in another shape.

    >>> reshaped((((6, 1),), ((4, 6),)), (3, 8))
    (((3, 2),), ((2, 1), (4, 6)))
    """
    if 0 in shape:  # nothing is read
        return identity(shape)
    left = list(flat(dims))
    found: list[Digits] = []
    for size in reversed(shape):
        digits: list[tuple[int, int]] = []
        missing = size
        while missing > 1 and left:
            n, s = left.pop()
            if n > missing:
                if n % missing or s < 0:
                    return _unknown(dims, shape)
                left.append((n // missing, s * missing))
                n = missing
            elif missing % n:
                return _unknown(dims, shape)
            digits.append((n, s))
            missing //= n
        found.append(tuple(reversed(digits)))
    return tuple(reversed(found))


def _unknown(dims: Dims, shape: Shape) -> Dims:
    return tuple(opaque(n, dims, shape, i) for i, n in enumerate(shape))


@lru_cache(maxsize=1 << 16)
def composed(outer: Access, inner: Access) -> Access:
    """Returns the composition: the map that reads `inner` at the row-major positions of `outer`.

    >>> column = ((((3, 4),), ()), 1)  # the second column of a 3 x 4 tensor
    >>> composed(column, (strided((3, 4), (1, 3)), 0))  # of one that is stored column by column
    ((((3, 1),), ()), 3)
    """
    dims, start = outer
    row = tuple(digit for digits in inner[0] for digit in digits if digit != _WRAPS)
    nowhere = any(n == 0 for n, _ in row)  # there is nothing to read
    if nowhere or (start < 0 and not is_runtime_position(start)):
        return _opaque_access(outer, inner)
    if start < 0:
        found = composed((dims, 0), inner)
        return found[0], runtime_position(start, found[1])
    weights = contiguous_strides(tuple(n for n, _ in row))
    digit_of = [start // w % n for (n, _), w in zip(row, weights, strict=True)]
    room = list(digit_of)
    repeats = [ahead[1] == 0 for digits in inner[0] for ahead, digit in pairwise(((1, 1), *digits)) if digit != _WRAPS]
    wraps = {((n, w),) for (n, _), w, again in zip(row, weights, repeats, strict=True) if again}
    maps: list[Digits] = []
    for digits in dims:
        pieces: list[tuple[int, int]] = []
        for n, s in reversed(digits):
            piece = [_beyond(n, s, inner)] if s < 0 else _piece(n, s, row, weights, room)
            if piece is None:
                return _opaque_access(outer, inner)
            pieces += piece
        maps.append(((_WRAPS,) if digits in wraps else ()) + flat((tuple(reversed(pieces)),)))
    if any(used >= max(n, 1) for used, (n, _) in zip(room, row, strict=True)):
        return _opaque_access(outer, inner)  # a slice that runs over the end of a digit carries
    if is_runtime_position(inner[1]):
        return tuple(maps), runtime_position(inner[1], tuple(digit_of))
    return tuple(maps), inner[1] + sum(d * s for d, (_, s) in zip(digit_of, row, strict=True))


def unmarked(dims: Dims) -> Dims:
    """Removes the marks of repeating digits: in an access over loops, no digit repeats."""
    return tuple(digits[1:] if digits[:1] == (_WRAPS,) else digits for digits in dims)


def part_of(outer: Dims, inner: Access, dim: int, start: int) -> Access:
    """Returns the map that reads a part of one dimension of `inner`, from `start` on.

    TorchInductor drops `ModularIndexing` where its modulus divides the index, so a repeating dimension is read as if
    the part began at 0.

    Args:
        outer: the map to the part; of dimension `dim`, only the size counts.
        inner: the map that is read.
    """
    digits, size = unmarked(inner[0])[dim], prod(n for n, _ in outer[dim])
    if digits == inner[0][dim] or size % digits[0][0] or start % digits[0][0]:
        return composed((outer, 0), inner)
    return (*inner[0][:dim], ((size // digits[0][0], 0), *digits), *inner[0][dim + 1 :]), inner[1]


def shifted_map(inner: Access, dim: int, size: int, start: int) -> Access | None:
    """Returns `inner` shifted by `start` in one dimension, also beyond its ends, where a mask hides the elements.

    TorchInductor keeps the plain index `index - start` if the dimension has a single stride; otherwise the result is
    None. With a plain index, Inductor can see that a kernel reads exactly where it writes.

    >>> shifted_map((strided((3, 4), (4, 1)), 8), 0, 5, 2)
    ((((5, 4),), ((4, 1),)), 0)
    """
    (dims, first), digits = inner, inner[0][dim]
    if len(digits) != 1 or digits[0][1] < 0 or is_runtime_position(first):
        return None
    stride = digits[0][1]
    return (*dims[:dim], ((size, stride),), *dims[dim + 1 :]), first - start * stride


def _beyond(n: int, s: int, inner: Access) -> tuple[int, int]:
    return (uneven(n, abs(led_to(inner[0], -s % STEPS)), n, s, inner) if s <= -STEPS else opaque(n, n, s, inner))[0]


# Returns digits, the innermost first; None if the inner map's digits cannot express the piece.
def _piece(n: int, s: int, row: Digits, weights: Shape, room: list[int]) -> list[tuple[int, int]] | None:
    if s == 0:
        return [(n, 0)]
    k = len(row) - 1
    while k >= 0 and s >= weights[k] * row[k][0]:
        k -= 1
    pieces: list[tuple[int, int]] = []
    while n > 1:
        if k < 0 or s % weights[k]:
            return None
        size, stride = row[k]
        step = s // weights[k]
        if n * step <= size or (n - 1) * step < size:
            pieces.append((n, stride * step))
            room[k] += (n - 1) * step
            return pieces
        if size % step or n % (size // step) or (stride < 0 and step > 1):
            return None
        here = size // step
        pieces.append((here, stride * step))
        room[k] += (here - 1) * step
        n //= here
        s = weights[k] * size
        k -= 1
    return pieces


# Where only the first position is beyond what the digits can express, as in padded windows, the steps are known.
def _opaque_access(outer: Access, inner: Access) -> Access:
    dims, start = outer
    steps = composed((dims, 0), inner)[0] if start and not is_runtime_position(start) else ((),) * len(dims)
    maps: list[Digits] = []
    has_positions = not any(map(is_runtime_position, (start, inner[1]))) and all(n for row in inner[0] for n, _ in row)
    for i, (digits, step) in enumerate(zip(dims, steps, strict=True)):
        size = prod(n for n, _ in digits)
        if len(step) == 1 and step[0][1] >= 0:
            first = step[0][1]
        elif len(digits) == 1 and digits[0][1] > 0 and has_positions:  # rows with gaps that the digits do not divide
            first = abs(led_to(inner[0], digits[0][1]))
        else:
            first = -1
        unknown = uneven(size, first, outer, inner, i) if first >= 0 else opaque(size, outer, inner, i)
        maps.append(unknown if digits else ())
    return tuple(maps), 0
