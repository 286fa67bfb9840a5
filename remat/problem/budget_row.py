"""Describes a byte budget for some of the values of a problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from remat.errors import InvalidProblem
from remat.facts.columns import BoolArray, FrozenColumns, bool_column, is_whole


@dataclass(frozen=True, eq=False)
class BudgetRow(FrozenColumns):
    """Limits how many bytes of some of n values may be saved; raises `InvalidProblem` if a field is not as below.

    Attributes:
        name: what the values are, for messages.
        values: a mask (n,) of the limited values.
        bytes: the most bytes of these values that may be saved on the device.
    """

    name: str
    values: BoolArray
    bytes: int

    def __post_init__(self) -> None:
        label, limit = f"the budget of {self.name!r}", self.bytes
        if not isinstance(self.name, str) or not isinstance(self.values, list | np.ndarray):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidProblem(f"{label} must have a text as its name, and a mask of values, got {self.values!r}")
        if not is_whole(limit) or limit < 0:
            raise InvalidProblem(f"{label} must be a non-negative integer, got {limit!r}")
        object.__setattr__(self, "bytes", int(limit))
        object.__setattr__(self, "values", bool_column(label, self.values, len(self.values), InvalidProblem))


def checked_rows(label: str, rows: tuple[Any, ...], length: int) -> tuple[BudgetRow, ...]:
    """Returns rows over `length` values, each checked again; raises an `InvalidProblem` that begins with `label`."""
    if type(rows) is not tuple or any(type(row) is not BudgetRow or len(row.values) != length for row in rows):
        raise InvalidProblem(f"{label} must be a tuple of remat.plugin.BudgetRow of {length} values, got {rows!r}")
    return tuple(BudgetRow(row.name, row.values, row.bytes) for row in rows)
