"""Defines the array types of the package and the names of a graph's columns, and checks arrays that users pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, TypeGuard, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from remat.errors import RematError

IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]

_Scalar = TypeVar("_Scalar", bound=np.generic)

_INT, _BOOL = np.dtype(np.int64), np.dtype(np.bool_)

INTS = ("bytes", "storage", "flops", "region")
"""The integer columns of `remat.Graph`."""

FLAGS = (
    "input",
    "parameter",
    "output",
    "gradient",
    "fusible",
    "random",
    "view",
    "compute_bound",
    "must_save",
    "must_recompute",
    "prefer_save",
    "prefer_recompute",
)
"""The boolean columns of `remat.Graph`."""

LATER_FLAGS = ("noncontiguous",)
"""The boolean columns that a file may leave out."""

TEXTS = ("arguments", "modules", "sources")
"""The text columns of `remat.Graph` that may be left out."""

LARGEST_TOTAL = 2**62
"""Costs and sizes must add up to less than this, so that no int64 sum of them can overflow."""


def int_column(label: str, values: ArrayLike, length: int | None, error: type[RematError]) -> IntArray:
    """Checks and freezes a column of integers; a `length` of None allows any. Raises `error`."""
    if _is_settled(values, _INT, length):
        return values
    array = _array(label, values, error)
    if array.ndim != 1 or (length is not None and len(array) != length):
        expected = "one-dimensional" if length is None else f"of shape ({length},)"
        raise error(f"{label} must be {expected}, got shape {array.shape}")
    if array.size and array.dtype.kind not in "iu":
        raise error(f"{label} must hold whole numbers below 2**62, got {array.tolist()[:5]} of dtype {array.dtype}")
    if array.dtype.kind == "u" and array.size and int(array.max()) >= LARGEST_TOTAL:
        raise error(f"{label} must be below 2**62, got {int(array.max())}")
    return frozen(array.astype(np.int64, copy=False))


def checked_prices(label: str, prices: object, length: int, error: type[RematError]) -> IntArray:
    """Checks that a plug-in's prices (length,) are non-negative integers whose sum is below 2**62; raises `error`."""
    if not isinstance(prices, np.ndarray) or isinstance(prices, np.ma.MaskedArray):
        raise error(f"{label} must be an array of {length} integers, none negative, got {prices!r}")
    prices = cast(NDArray[Any], prices)
    if prices.shape != (length,) or prices.dtype.kind not in "iu":
        wrong = f"{prices.dtype} of shape {prices.shape}: {prices!r}"
    elif prices.size and int(prices.min()) < 0:
        wrong = f"{int(prices.min())} among them"
    elif (total := float(prices.sum(dtype=np.float64))) >= LARGEST_TOTAL:
        raise error(f"{label} must add up to less than 2**62, got about {total:.2e}")
    else:
        return prices
    raise error(f"{label} must be an array of {length} integers, none negative, got {wrong}")


def bool_column(label: str, values: ArrayLike, length: int, error: type[RematError]) -> BoolArray:
    """Checks and freezes a column of flags; accepts booleans and the integers 0 and 1; raises `error`."""
    if _is_settled(values, _BOOL, length):
        return values
    array = _array(label, values, error)
    if array.shape != (length,):
        raise error(f"{label} must be of shape ({length},), got shape {array.shape}")
    is_flags = array.dtype == np.bool_ or not array.size
    if not is_flags and (array.dtype.kind not in "iu" or bool(((array != 0) & (array != 1)).any())):
        raise error(f"{label} must hold only true and false, got {array.tolist()[:5]} of dtype {array.dtype}")
    return frozen(array.astype(np.bool_, copy=False))


def _array(label: str, values: ArrayLike, error: type[RematError]) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except ValueError:
        raise error(f"{label} must be one-dimensional, got rows of different lengths") from None


# Whether a column was checked before, as one of another graph or problem: a frozen column cannot have changed.
def _is_settled(values: ArrayLike, dtype: np.dtype[Any], length: int | None) -> TypeGuard[NDArray[Any]]:
    if not is_frozen(values) or values.dtype != dtype or values.ndim != 1:
        return False
    return length is None or length == values.size


def frozen(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    """Copies a column into memory that is not writable.

    NumPy's flag `writeable` is not enough, because the owner of an array can set it again.
    """
    return np.frombuffer(array.tobytes(), array.dtype)


def is_frozen(array: object) -> TypeGuard[NDArray[Any]]:
    """Returns whether an array is not writable: `frozen` made it, and its class is plain `ndarray`."""
    return type(array) is np.ndarray and type(cast(Any, array).base) is bytes


def separate_view(column: NDArray[_Scalar]) -> NDArray[_Scalar]:
    """Returns a new array over the memory of a frozen one, so that reshaping one does not change the other."""
    return np.frombuffer(cast(bytes, column.base), column.dtype)


class FrozenColumns:
    """Freezes the columns of a subclass again after unpickling or a deep copy, which numpy does not do."""

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))  # a copy: another thread may compute a lazy field meanwhile (`remat.facts.lazy_field`)

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({name: _frozen_again(value) for name, value in state.items()})


def _frozen_again(value: Any) -> Any:
    return frozen(value) if type(value) is np.ndarray and value.dtype.kind in "biu" else value


def mask_of(positions: IntArray | list[int], length: int) -> BoolArray:
    """Returns a mask (length,) that is set at these positions; no tuple, which numpy reads as one position."""
    mask = np.zeros(length, np.bool_)
    mask[positions] = True
    return mask


def any_set(mask: BoolArray) -> bool:
    """Returns whether any flag is set: three times as fast as `mask.any()` on the short columns of small models."""
    return bool(np.count_nonzero(mask))


def common_divisor(column: IntArray) -> int:
    return max(int(np.gcd.reduce(column)), 1)


def is_whole(number: object) -> bool:
    """Returns whether an object is an integer of Python or of numpy, but not True or False."""
    return type(number) is int or (isinstance(number, int | np.integer) and not isinstance(number, bool))


def name_column(label: str, names: Sequence[str], error: type[RematError]) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Sequence):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise error(f"{label} must be a sequence of names, got {names!r}")
    column = tuple(names)
    odd = set(map(type, column)) - {str}
    if odd:
        raise error(f"{label} must hold names of type str, got a {odd.pop().__name__}")
    return column
