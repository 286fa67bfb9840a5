"""Describes budgets of saved bytes: one for all values of a problem, and rows, each for some of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from remat.errors import InvalidProblem
from remat.facts.columns import BoolArray, FrozenColumns, IntArray, bool_column, is_whole


@dataclass(frozen=True, eq=False)
class BudgetRow(FrozenColumns):
    """Limits the bytes that are saved of some of n values.

    Attributes:
        name: what the values are, for messages: the modules that compute them.
        values: (n,) the values.
        bytes: the most of their bytes that may be saved on the device.

    Raises:
        InvalidProblem: the name is no text, the values are no flags, or the bytes are no non-negative integer.
    """

    name: str
    values: BoolArray
    bytes: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidProblem(f"BudgetRow.name must be text, got {self.name!r}")
        label = f"the budget of {self.name!r}"
        if type(limit := checked_budget(label, self.bytes)) is not int:
            raise InvalidProblem(f"{label} must be a number of bytes, got None")
        object.__setattr__(self, "bytes", limit)
        object.__setattr__(
            self, "values", bool_column(f"{label}: values", self.values, len(self.values), InvalidProblem)
        )

    def take(self, positions: IntArray) -> BudgetRow:
        """Returns the row over the values at k positions."""
        return replace(self, values=self.values[positions])


def checked_rows(label: str, rows: object, length: int) -> tuple[BudgetRow, ...]:
    """Returns rows over `length` values, each checked again; raises an `InvalidProblem` that begins with `label`."""
    if not isinstance(rows, tuple) or any(type(row) is not BudgetRow or len(row.values) != length for row in rows):
        raise InvalidProblem(f"{label} must be a tuple of remat.plugin.BudgetRow of {length} values, got {rows!r}")
    return tuple(BudgetRow(row.name, row.values, row.bytes) for row in rows)


def checked_budget(label: str, budget: int | None) -> int | None:
    """Returns a budget as a Python integer, because NumPy's overflow silently.

    Raises an `InvalidProblem` that begins with `label` for anything but a non-negative integer.
    """
    budget = int(budget) if budget is not None and is_whole(budget) else budget
    if budget is not None and (type(budget) is not int or budget < 0):
        raise InvalidProblem(f"{label} must be a non-negative integer or None, got {budget!r}")
    return budget
