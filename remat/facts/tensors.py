"""Checks the tensors of a graph: element types, shapes, sizes in bytes, and storages."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from remat.errors import InvalidGraph
from remat.facts.columns import BoolArray, IntArray, any_set, is_whole

ELEMENT_BYTES = {
    **dict.fromkeys(("float64", "int64", "uint64", "complex64", "symint"), 8),
    **dict.fromkeys(("float32", "int32", "uint32", "complex32", "bcomplex32", "qint32"), 4),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16", "bits16"), 2),
    **dict.fromkeys(("bool", "int8", "uint8", "qint8", "quint8", "quint4x2", "quint2x4"), 1),
    **dict.fromkeys(("bits8", "bits1x8", "bits2x4", "bits4x2", "float4_e2m1fn_x2", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"), 1),
    **dict.fromkeys((f"{kind}{bits}" for kind in ("int", "uint") for bits in range(1, 8)), 1),
    "complex128": 16,
}
"""Bytes per element of torch's dtypes, and of "symint" for a symbolic size."""

LARGEST_TENSOR = 2**50
"""An upper bound on the bytes of a tensor: a thousand times the memory of the largest machines."""


def check_tensors(
    names: Sequence[str], dtypes: Sequence[str], shapes: Sequence[tuple[int, ...]], sizes: IntArray
) -> None:
    """Checks dtypes, shapes and bytes; without a dtype or a shape, the bytes cannot be checked.

    Raises `InvalidGraph` for a negative size, an unknown dtype, too many bytes, or bytes that contradict the shape.
    """
    # `remat.capture` makes one object for all equal shapes, so this checks one value of each kind.
    kinds = zip(map(id, shapes), dtypes, sizes.tolist(), strict=True)
    for i in dict(zip(kinds, range(len(names)), strict=True)).values():
        _check(names[i], dtypes[i], shapes[i], int(sizes[i]))


def _check(name: str, dtype: str, shape: tuple[int, ...], size: int) -> None:
    if not all(is_whole(extent) and extent >= 0 for extent in shape):
        raise InvalidGraph(f"Graph.shapes[{name!r}] must hold whole numbers, none of them negative, got {list(shape)}")
    if dtype and dtype not in ELEMENT_BYTES:
        raise InvalidGraph(f"Graph.dtypes[{name!r}] must be a type of torch such as 'float32', or '', got {dtype!r}")
    if not (dtype and shape):
        return
    if size >= LARGEST_TENSOR:
        raise InvalidGraph(f"Graph.bytes[{name!r}] must be less than 2**50, more than any machine has, got {size}")
    if size != (needed := prod(shape) * ELEMENT_BYTES[dtype]):
        raise InvalidGraph(
            f"Graph.bytes[{name!r}] must be {needed}, as {dtype}{list(shape)} has, got {size}; leave out the shape if "
            f"it is not known"
        )


def check_storages(  # columns of a graph
    names: Sequence[str],
    storage: IntArray,
    base: IntArray,
    view: BoolArray,
    leaf: BoolArray,
    producers: IntArray,
    consumers: IntArray,
) -> None:
    """Checks that a value which shares a storage with an earlier value has an operand in that storage.

    Leaves, which no operator computes, may share storages with leaves, for example one parameter with another. Raises
    `InvalidGraph`.
    """
    if any_set(storage < 0):
        i = int(storage.argmin())
        raise InvalidGraph(f"Graph.storage[{names[i]!r}] must not be negative, got {int(storage[i])}")
    shares = (base != np.arange(len(names))) & ~(leaf & leaf[base])
    unexplained = view | shares
    unexplained[consumers[storage[producers] == storage[consumers]]] = False
    if any_set(unexplained):
        i = int(unexplained.argmax())
        why = "it is a view" if view[i] else f"it shares the storage of {names[int(base[i])]!r}"
        raise InvalidGraph(
            f"Graph.storage[{names[i]!r}] must be the storage of a value that {names[i]!r} uses, because {why}, "
            f"got {int(storage[i])}"
        )
