"""The optimization problem: what to save and what to recompute, at which price.

For every value v that the forward pass can compute there are two binaries: `b_v`, "v is available
in the backward pass", and `a_v`, "v is recomputed there". A value is saved where `b_v - a_v = 1`.

    minimize    sum save_cost[v] * (b_v - a_v) + recompute_cost[v] * a_v
    subject to  a_v <= b_v            for every value v
                a_v <= b_u            for every use u -> v
                b_v  = 1              for every needed v
                b_v  = a_v            where v cannot be saved
                a_v  = 0              where v cannot be recomputed
                sum save_bytes[v] * (b_v - a_v) <= budget_bytes     (only with a budget)

Where there is a host to offload to, a third binary `h_v` says "v is saved, and waits there" (`remat.problem.offload`):

    minimize    ... + sum (offload.cost[v] - save_cost[v]) * h_v
    subject to  ...
                h_v <= b_v - a_v      for every value v
                h_v  = 0              where v cannot be offloaded
                sum save_bytes[v] * (b_v - a_v - h_v) <= budget_bytes
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from remat.errors import InvalidProblem, UnsupportedProblem
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
from remat.problem.offload import Offload, checked_budget
from remat.problem.problem_file import problem_document, read_columns

_COSTS = ("save_cost", "recompute_cost", "save_bytes")


@dataclass(frozen=True, eq=False)
class Problem(FrozenColumns):
    """n values and m uses with their prices. `Problem.of` takes plain lists; this takes columns.

    Attributes:
        names: unique name of each value.
        save_cost, recompute_cost: (n,) non-negative integer prices, in the cost model's unit.
        save_bytes: (n,) memory that saving the value takes, in bytes, whatever else is saved.
        producers, consumers: (m,) the two ends of each use; producer < consumer.
        needed: (n,) values that must be available in the backward pass.
        cannot_save, cannot_recompute: what is forbidden, with reasons.
        budget_bytes: the most bytes that may be saved, or None. What is offloaded does not count.
        offload: what offloading costs; None if nothing can be offloaded.
        signature: that of the graph which the problem is about, for its plans to carry; empty if there is none.
        places: where each value comes from, for messages (`remat.Graph.places`). Left out: "" everywhere.

    Raises:
        InvalidProblem: lengths differ, a price is negative or not an integer, sums reach 2**62,
            uses are not in topological order.
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
            twice = next(name for i, name in enumerate(self.names) if self.index[name] != i)
            raise InvalidProblem(f"Problem.names must be unique, got {twice!r} twice")
        check_uses(self.names, self.producers, self.consumers, "Problem", InvalidProblem)
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
    ) -> Problem:
        """The same values and uses under other terms. Only those are checked: it takes half as long as a new one."""
        n = len(self)
        terms: dict[str, Any] = {
            "save_cost": int_column("Problem.save_cost", save_cost, n, InvalidProblem),
            "recompute_cost": int_column("Problem.recompute_cost", recompute_cost, n, InvalidProblem),
            "cannot_save": cannot_save,
            "cannot_recompute": cannot_recompute,
            "budget_bytes": budget_bytes,
            "offload": offload,
        }
        problem = object.__new__(type(self))  # `copy.copy` takes as long as the checks
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
        """A problem from plain lists, with values known by position.

        Args:
            save_cost: price of saving each value; `math.inf` forbids it.
            edges: pairs (producer, consumer).
            needed: positions of the values that the backward pass needs.
            recompute_cost: price of recomputing each value; free when left out, `inf` forbids.
            save_bytes: memory of each saved value; `save_cost` (0 where infinite) when left out.
            names: "v0", "v1", ... when left out.
            cannot_save, cannot_recompute: position -> reason.
            budget_bytes: the most bytes that may be saved.
            offload_cost: price of offloading each saved value; `inf` forbids. Nothing can be offloaded when left out.

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
        redo = [0] * n if recompute_cost is None else checked_list("recompute_cost", recompute_cost, InvalidProblem)
        recompute, no_recompute = _split_infinite(redo, "recompute_cost", cannot_recompute)
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
        host = "" if self.offload is None else f", {len(self) - int(self.offload.banned.mask.sum())} can be offloaded"
        facts = f"{len(self)} values, {len(self.producers)} uses, {int(self.needed.sum())} needed"
        return f"<Problem: {facts}{host}{budget}>"

    def require_two_choices(self, caller: str) -> None:
        """Raises `UnsupportedProblem`, which begins with `what`, if values can be offloaded."""
        if self.offload is not None:
            raise UnsupportedProblem(
                f"{caller} states two choices, save or recompute, but here values can be offloaded"
            )

    @cached_property
    def index(self) -> dict[str, int]:
        """Position of each name."""
        return dict(zip(self.names, range(len(self)), strict=True))

    @cached_property
    def operands(self) -> tuple[tuple[int, ...], ...]:
        """Of each value, the positions of what it uses, in the order of its uses."""
        return operands_of(len(self), self.producers, self.consumers)

    def save(self, path: str | Path) -> None:
        """Writes the problem as JSON, gzipped if the name ends in ".gz" (see `remat.problem.problem_file`).

        The signature and the places are left out: they are for messages, and no answer depends on them.
        """
        write_document(problem_document(self), checked_path(path))

    @classmethod
    def load(cls, path: str | Path, budget: str | None = None) -> Problem:
        """Reads a file that `save` wrote, or an instance of the benchmark, checking everything.

        Args:
            path: the file, gzipped or not.
            budget: the name of one of its budgets, or "none"; may be left out where it has one at most.

        Raises:
            InvalidProblem: the file is truncated, not JSON, of a newer version, or breaks a rule.
            InvalidOption: there is no budget of that name; or there are several, and none is named.
            UnsupportedProblem: the budget is one of the peak.
        """
        columns = read_columns(checked_path(path), budget)
        try:
            return cls(**columns)
        except InvalidProblem as error:
            raise InvalidProblem(f"{path}: {error}") from None


def _split_infinite(prices: Sequence[float], label: str, reasons: Mapping[int, str] | None) -> tuple[IntArray, Bans]:
    """Separates a list of prices into finite integers and bans where the price is infinite."""
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
