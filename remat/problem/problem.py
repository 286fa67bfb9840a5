"""States the optimization problem: what to save and what to recompute, at which cost.

Every value v that the forward pass can compute has two binaries: `b_v`, "v is available in the backward pass", and
`a_v`, "v is recomputed there". A value is saved if `b_v - a_v = 1`.

    minimize    sum save_cost[v] * (b_v - a_v) + recompute_cost[v] * a_v
    subject to  a_v <= b_v            for every value v
                a_v <= b_u            for every use u -> v
                b_v  = 1              for every needed v
                b_v  = a_v            where v cannot be saved
                a_v  = 0              where v cannot be recomputed
                sum save_bytes[v] * (b_v - a_v) <= budget_bytes     (only with a budget)

With offloading, a third binary `h_v` means "v is saved on the host" (`remat.problem.offload`):

    minimize    ... + sum (offload.cost[v] - save_cost[v]) * h_v
    subject to  ...
                h_v <= b_v - a_v      for every value v
                h_v  = 0              where v cannot be offloaded
                sum save_bytes[v] * (b_v - a_v - h_v) <= budget_bytes

With tied values, a binary `x_g` for each group g of them means "what the backward pass reads of g is recomputed":

    subject to  ...
                a_v <= x_g  and  b_v - a_v <= 1 - x_g      for every value v of g

With rows, each row r limits the bytes of its own values V_r, such as those that some modules compute; rows may share
values (`remat.problem.budget_row`):

    subject to  ...
                sum save_bytes[v] * (b_v - a_v - h_v) <= bytes_r, over the values v of V_r      for every row r
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from remat.errors import InvalidProblem
from remat.facts.argument_checks import checked_list, checked_path
from remat.facts.bans import Bans
from remat.facts.columns import (
    LARGEST_TOTAL,
    BoolArray,
    FrozenColumns,
    IntArray,
    any_set,
    bool_column,
    int_column,
    is_whole,
    name_column,
)
from remat.facts.json_file import write_document
from remat.facts.lazy_field import LazyField, is_deferred
from remat.facts.uses import check_uses, operands_of
from remat.problem.budget_row import BudgetRow, checked_rows
from remat.problem.features import ONE_BUDGET, Feature, check_features, features_of
from remat.problem.offload import Offload, checked_budget
from remat.problem.problem_file import problem_document, read_columns

_COSTS = ("save_cost", "recompute_cost", "save_bytes")


@dataclass(frozen=True, eq=False)
class Problem(FrozenColumns):
    """Holds n values and m uses with their prices. This constructor takes columns; `Problem.of` takes plain lists.

    Attributes:
        names: the unique name of each value.
        save_cost, recompute_cost: (n,) non-negative integer prices, in the cost model's unit.
        save_bytes: (n,) memory of the saved value, in bytes, whatever else is saved.
        producers, consumers: (m,) the two ends of each use; producer < consumer.
        needed: (n,) values that must be available in the backward pass.
        cannot_save, cannot_recompute: bans with reasons.
        budget_bytes: the most bytes that may be saved on the device, or None.
        offload: the cost of offloading; None if nothing can be offloaded.
        tied: (n,) the number of a group for each value, from 0, or -1 for none: of one group, no value is saved, or no
            value is recomputed. None if no values are tied.
        rows: budgets of some of the values, besides `budget_bytes`; none by default.
        signature: the signature of the problem's graph, which its plans carry; empty without a graph.
        places: the line of the model that computes each value, for messages (`remat.Graph.places`); "" by default.

    Raises:
        InvalidProblem: lengths differ, a price is negative or not an integer, sums reach 2**62, or uses are not in
            topological order.
    """

    names: tuple[str, ...]
    save_cost: IntArray
    recompute_cost: IntArray
    save_bytes: IntArray
    producers: IntArray
    consumers: IntArray
    needed: BoolArray
    cannot_save: Bans
    cannot_recompute: Bans
    budget_bytes: int | None = None
    signature: LazyField[tuple[str, ...]] = field(default=LazyField(()))
    places: LazyField[tuple[str, ...]] = field(default=LazyField(()))
    offload: Offload | None = None
    tied: IntArray | None = None
    rows: tuple[BudgetRow, ...] = ()

    def __post_init__(self) -> None:
        for name in ("names", "signature", "places"):
            if not is_deferred(self, name):
                object.__setattr__(self, name, name_column(f"Problem.{name}", getattr(self, name), InvalidProblem))
        n, m = len(self.names), len(self.producers)
        for name in _COSTS:
            object.__setattr__(self, name, int_column(f"Problem.{name}", getattr(self, name), n, InvalidProblem))
        for name in ("producers", "consumers"):
            object.__setattr__(self, name, int_column(f"Problem.{name}", getattr(self, name), m, InvalidProblem))
        object.__setattr__(self, "needed", bool_column("Problem.needed", self.needed, n, InvalidProblem))
        if not is_deferred(self, "places"):
            object.__setattr__(self, "places", self.places or ("",) * n)
            if len(self.places) != n:
                raise InvalidProblem(f"Problem.places must have one entry a value ({n}), got {len(self.places)}")
        if len(self.index) != n:
            name = next(name for i, name in enumerate(self.names) if self.index[name] != i)
            raise InvalidProblem(f"Problem.names must be unique, got {name!r} twice")
        check_uses(self.names, self.producers, self.consumers, "Problem", InvalidProblem)
        if self.tied is not None:
            object.__setattr__(self, "tied", int_column("Problem.tied", self.tied, n, InvalidProblem))
        _check_terms(self)

    def priced(
        self,
        *,
        save_cost: IntArray,
        recompute_cost: IntArray,
        cannot_save: Bans,
        cannot_recompute: Bans,
        budget_bytes: int | None,
        offload: Offload | None = None,
        rows: tuple[BudgetRow, ...] = (),
    ) -> Problem:
        """Returns the problem with other terms, in half the time of the constructor: only the terms are checked.

        Raises `InvalidProblem` for wrong terms.
        """
        n = len(self)
        terms: dict[str, Any] = {
            "save_cost": int_column("Problem.save_cost", save_cost, n, InvalidProblem),
            "recompute_cost": int_column("Problem.recompute_cost", recompute_cost, n, InvalidProblem),
            "cannot_save": cannot_save,
            "cannot_recompute": cannot_recompute,
            "budget_bytes": budget_bytes,
            "offload": offload,
            "rows": rows,
        }
        problem = object.__new__(type(self))  # `copy.copy` would take as long as the checks
        vars(problem).update(vars(self) | terms)
        _check_terms(problem)
        return problem

    @classmethod
    def of(
        cls,
        save_cost: Sequence[float],
        *,
        edges: Iterable[tuple[int, int]] = (),
        needed: Iterable[int] = (),
        recompute_cost: Sequence[float] | None = None,
        save_bytes: ArrayLike | None = None,
        names: Sequence[str] | None = None,
        cannot_save: Mapping[int, str] | None = None,
        cannot_recompute: Mapping[int, str] | None = None,
        budget_bytes: int | None = None,
        offload_cost: Sequence[float] | None = None,
    ) -> Problem:
        """Makes a problem from plain lists, in which a value is its position.

        Args:
            save_cost: the price of saving each value; `math.inf` forbids it.
            edges: pairs (producer, consumer).
            needed: positions of the values that the backward pass needs.
            recompute_cost: the price of recomputing each value, `inf` forbids it; free by default.
            save_bytes: memory of each saved value; by default `save_cost` (0 where infinite).
            names: "v0", "v1", ... by default.
            cannot_save, cannot_recompute: position -> reason.
            budget_bytes: the most bytes that may be saved.
            offload_cost: the price of offloading each saved value, `inf` forbids it. By default nothing can be
                offloaded.

        Raises:
            InvalidProblem: as for the class, or a position is out of range.

        >>> chain = Problem.of([4, 2, 9], edges=[(0, 1), (1, 2)], needed=[2], cannot_recompute={0: "input"})
        >>> chain
        <Problem: 3 values, 2 uses, 1 needed>
        """
        save_cost = checked_list("save_cost", save_cost, InvalidProblem)
        n = len(save_cost)
        names = None if names is None else checked_list("names", names, InvalidProblem)
        if names is not None and len(names) != n:
            raise InvalidProblem(f"names must have one entry a value ({n}), got {len(names)}")
        save, no_save = _split_infinite(save_cost, "save_cost", cannot_save)
        prices = [0] * n if recompute_cost is None else checked_list("recompute_cost", recompute_cost, InvalidProblem)
        recompute, no_recompute = _split_infinite(prices, "recompute_cost", cannot_recompute)
        offload = None
        if offload_cost is not None:
            copies = checked_list("offload_cost", offload_cost, InvalidProblem)
            offload = Offload(*_split_infinite(copies, "offload_cost", None))
        ends = _pairs(checked_list("edges", edges, InvalidProblem))
        need = np.zeros(n, np.bool_)
        for v in checked_list("needed", needed, InvalidProblem):
            _position("needed", v, n)
            need[v] = True
        return cls(
            names=tuple(names) if names is not None else tuple(f"v{i}" for i in range(n)),
            save_cost=save,
            recompute_cost=recompute,
            save_bytes=save if save_bytes is None else int_column("save_bytes", save_bytes, n, InvalidProblem),
            producers=ends[:, 0],
            consumers=ends[:, 1],
            needed=need,
            cannot_save=no_save,
            cannot_recompute=no_recompute,
            budget_bytes=budget_bytes,
            offload=offload,
        )

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        budget = "" if self.budget_bytes is None else f", budget {self.budget_bytes} bytes"
        budget += "".join(f", {row.bytes} in {row.name!r}" for row in self.rows)
        host = "" if self.offload is None else f", {len(self) - int(self.offload.banned.mask.sum())} can be offloaded"
        facts = f"{len(self)} values, {len(self.producers)} uses, {int(self.needed.sum())} needed"
        return f"<Problem: {facts}{host}{budget}>"

    @property
    def budgets(self) -> tuple[tuple[str, IntArray, int], ...]:
        """Returns every budget: its name ("" for that of all values), the bytes (n,) that count, and their limit."""
        whole = () if self.budget_bytes is None else (("", self.save_bytes, self.budget_bytes),)
        return (*whole, *((row.name, np.where(row.values, self.save_bytes, 0), row.bytes) for row in self.rows))

    def with_one_budget(self, position: int) -> Problem:
        """Returns the problem with only one of its `budgets`, as the budget of all values; so more plans are legal."""
        _, sizes, limit = self.budgets[position]
        return replace(self, save_bytes=sizes, budget_bytes=limit, rows=())

    @cached_property
    def tied_groups(self) -> tuple[IntArray, ...]:
        """Returns the positions of the values of each tied group."""
        if self.tied is None:
            return ()
        return tuple(np.flatnonzero(self.tied == group) for group in np.unique(self.tied[self.tied >= 0]))

    @cached_property
    def index(self) -> dict[str, int]:
        """Returns the position of each name."""
        return dict(zip(self.names, range(len(self)), strict=True))

    @cached_property
    def operands(self) -> tuple[tuple[int, ...], ...]:
        """Returns, for each value, the positions of its operands, in the order of its uses."""
        return operands_of(len(self), self.producers, self.consumers)

    def save(self, path: str | Path) -> None:
        """Writes the problem as JSON, gzipped if the name ends in ".gz" (see `remat.problem.problem_file`).

        Signature and places are left out: only messages use them.

        Raises:
            UnsupportedProblem: values are tied; the format has no place for that.
        """
        check_features(features_of(self), "the file of a problem", ONE_BUDGET | {Feature.ROWS})
        write_document(problem_document(self), checked_path(path))

    @classmethod
    def load(cls, path: str | Path, budget: str | None = None) -> Problem:
        """Reads and checks a file that `save` wrote, or an instance of the benchmark.

        Args:
            path: the file, gzipped or not.
            budget: the name of one of the file's budgets, or "none"; required only if the file has several.

        Raises:
            InvalidProblem: the file is truncated, not JSON, of a newer version, or breaks a rule.
            InvalidOption: no budget has this name, or there are several and `budget` is None.
            UnsupportedProblem: the budget limits the peak.
        """
        columns = read_columns(checked_path(path), budget)
        try:
            return cls(**columns)
        except InvalidProblem as error:
            raise InvalidProblem(f"{path}: {error}") from None


def _split_infinite(prices: Sequence[float], label: str, reasons: Mapping[int, str] | None) -> tuple[IntArray, Bans]:
    infinite = {i: "its price is infinite" for i, price in enumerate(prices) if price == math.inf}
    for i in checked_list(f"cannot_{label.removesuffix('_cost')}", {} if reasons is None else reasons, InvalidProblem):
        _position(f"cannot_{label.removesuffix('_cost')}", i, len(prices))
    finite = [0 if price == math.inf else price for price in prices]
    bans = Bans.of(len(prices), infinite | dict(reasons or {}))
    return int_column(f"Problem.{label}", finite, len(prices), InvalidProblem), bans


def _pairs(edges: list[tuple[int, int]]) -> IntArray:
    odd = [edge for edge in edges if len(checked_list("each of edges", edge, InvalidProblem)) != 2]
    if odd:
        raise InvalidProblem(f"edges must hold pairs (producer, consumer), got {odd[0]!r}")
    flat = int_column("edges", [end for edge in edges for end in edge], 2 * len(edges), InvalidProblem)
    return flat.reshape(-1, 2)


def _position(label: str, index: int, length: int) -> None:
    if not is_whole(index):
        raise InvalidProblem(f"{label} must hold positions of values, got {index!r}")
    if not 0 <= index < length:
        raise InvalidProblem(f"{label} names value {index}, but there are only {length} (0 to {length - 1})")


def _check_terms(problem: Problem) -> None:
    n = len(problem)
    for label in ("cannot_save", "cannot_recompute"):
        if type(getattr(problem, label)) is not Bans:
            raise InvalidProblem(f"Problem.{label} must be remat.plugin.Bans, got {getattr(problem, label)!r}")
        if len(getattr(problem, label)) != n:
            raise InvalidProblem(f"Problem.{label} must have length {n}, got {len(getattr(problem, label))}")
    for label in _COSTS:
        column: IntArray = getattr(problem, label)
        if any_set(column < 0):
            i = int(column.argmin())
            raise InvalidProblem(
                f"Problem.{label}[{problem.names[i]!r}] must be a non-negative integer, got {int(column[i])}"
            )
    total = sum(float(getattr(problem, label).sum(dtype=np.float64)) for label in ("save_cost", "recompute_cost"))
    offload = problem.offload
    if offload is not None:
        if type(offload) is not Offload or len(offload) != n:
            raise InvalidProblem(f"Problem.offload must be remat.plugin.Offload of {n} values or None, got {offload!r}")
        total += float(offload.cost.sum(dtype=np.float64))
    total = max(total, float(problem.save_bytes.sum(dtype=np.float64)))
    if total >= LARGEST_TOTAL:
        raise InvalidProblem(
            f"Problem: the prices must add up to less than 2**62, got about {total:.2e}; use a coarser unit"
        )
    object.__setattr__(problem, "budget_bytes", checked_budget("Problem.budget_bytes", problem.budget_bytes))
    object.__setattr__(problem, "rows", checked_rows("Problem.rows", problem.rows, n))
