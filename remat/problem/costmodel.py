"""Defines cost models: the prices and bans that, together with the facts of a graph, make a problem."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import Any, ClassVar

import numpy as np

from remat.errors import InvalidOption, InvalidProblem, UnsupportedProblem
from remat.facts.bans import Bans
from remat.facts.columns import LARGEST_TOTAL, IntArray, checked_prices, frozen
from remat.facts.graph import Graph, checked_graph
from remat.problem.budget_row import BudgetRow, checked_rows
from remat.problem.constraints import base_problem
from remat.problem.offload import Offload, checked_budget
from remat.problem.problem import Problem

GRAPHS_OWN = "graph's own"
"""Means the kind of device on which a graph was captured (`CostModel.step_device`)."""


@dataclass(frozen=True, eq=False)
class Terms:
    """Holds the contribution of a cost model to a problem, one entry for each of the n values of the graph.

    Terms can be added: prices are summed, bans united, and the smaller budget applies.

    Attributes:
        save_cost, recompute_cost: (n,) non-negative integer prices in one unit.
        cannot_save, cannot_recompute: bans with reasons.
        budget_bytes: the most bytes that may be saved, or None.
        offload: the cost of offloading, and its bans; None if nothing can be offloaded.
        rows: budgets of some of the values; none by default. In a sum, the rows of both sides apply.
    """

    save_cost: IntArray
    recompute_cost: IntArray
    cannot_save: Bans
    cannot_recompute: Bans
    budget_bytes: int | None = None
    offload: Offload | None = None
    rows: tuple[BudgetRow, ...] = ()

    @classmethod
    def nothing(cls, graph: Graph) -> Terms:
        """Returns terms without prices and bans; make others from them with `dataclasses.replace`."""
        n = len(graph)
        zeros = np.zeros(n, np.int64)
        return cls(zeros, zeros, Bans.none(n), Bans.none(n))

    def __add__(self, other: Terms) -> Terms:
        for side in (self, other):
            _checked(side, np.size(self.save_cost), "what is added to Terms")
        for label in ("save_cost", "recompute_cost"):
            total = float(getattr(self, label).sum(dtype=np.float64) + getattr(other, label).sum(dtype=np.float64))
            if total >= LARGEST_TOTAL:
                raise InvalidProblem(f"Terms.{label} must add up to less than 2**62, got about {total:.2e}")
        budgets = [budget for budget in (self.budget_bytes, other.budget_bytes) if budget is not None]
        hosts = [offload for offload in (self.offload, other.offload) if offload is not None]
        return Terms(
            self.save_cost + other.save_cost,
            self.recompute_cost + other.recompute_cost,
            self.cannot_save | other.cannot_save,
            self.cannot_recompute | other.cannot_recompute,
            min(budgets, default=None),
            hosts[0] + hosts[1] if len(hosts) > 1 else next(iter(hosts), None),
            self.rows + other.rows,
        )


def _checked(terms: Terms, length: int, source: str) -> Terms:
    if not isinstance(terms, Terms):  # pyright: ignore[reportUnnecessaryIsInstance]  # plug-ins may be untyped
        raise InvalidProblem(f"{source} must be remat.plugin.Terms, got {terms!r}")
    for label in ("save_cost", "recompute_cost"):
        checked_prices(f"{source}: {label}", getattr(terms, label), length, InvalidProblem)
    checked_budget(f"{source}: budget_bytes", terms.budget_bytes)
    for label in ("cannot_save", "cannot_recompute"):
        bans: Any = getattr(terms, label)
        if type(bans) is not Bans or len(bans) != length:
            raise InvalidProblem(f"{source} must have Bans of {length} values as {label}, got {bans!r}")
    offload: Any = terms.offload
    if offload is not None and (type(offload) is not Offload or len(offload) != length):
        raise InvalidProblem(f"{source} must have Offload of {length} values or None as offload, got {offload!r}")
    checked_rows(f"{source}: rows", terms.rows, length)
    return terms


@dataclass(frozen=True)
class DeviceLimit:
    """Limits all memory of training: parameters, gradients, the optimizer's state, activations.

    Attributes:
        bytes: memory of the device.
        optimizer: the optimizer whose state counts: its name with options, or a callable that makes one of parameters.
    """

    bytes: int
    optimizer: object


class CostModel(ABC):
    """Sets prices for the values of a graph, and bans some choices. Implementations are frozen dataclasses.

    `a + b` is a cost model, too: it adds the terms of both.

    Attributes:
        name: the name that users type.
        unit: the unit of the prices: "bytes", "ns".
    """

    name: ClassVar[str]
    unit: ClassVar[str]

    @abstractmethod
    def terms(self, graph: Graph) -> Terms:
        """Returns prices and bans for all n values of `graph`, including those of the tangents' closure."""

    def checked_terms(self, graph: Graph) -> Terms:
        """Returns the checked result of `terms`.

        Raises:
            InvalidProblem: the result is no `Terms` for the values of the graph.
        """
        return _checked(self.terms(graph), len(graph), f"{self!r}: what terms() returns")

    def data(self) -> str:
        """Returns a text of everything besides options and graph on which the terms depend, such as a measured file.

        The text is part of torch's cache key (`remat.pytorch.Partitioner.uuid`), so a plan is chosen again if it
        changes. Estimators and cost models in a field are part of the key even without this method.
        """
        return ""

    @property
    def saved_limits(self) -> tuple[int | Fraction, ...]:
        """Returns the limits on saved bytes, if the model has any; `terms` converts them to bytes of one graph.

        An `int` is a number of bytes for all graphs of a run together, of whatever sizes (see
        `remat.improve.joint_budget`). A `Fraction` is a share of what each graph saves by default.
        """
        return ()

    @property
    def peak_limits(self) -> tuple[int | Fraction, ...]:
        """Returns the limits on the peak of live bytes (see `remat.predict.memory`), if the model has any.

        An `int` is a number of bytes. A `Fraction` is a share of the peak of PyTorch's default plan, but at least the
        smallest peak that the search reaches.
        """
        return ()

    @property
    def device_limits(self) -> tuple[DeviceLimit, ...]:
        """Returns the limits on all live memory, if the model has any.

        A graph does not contain all of it: see `remat.pytorch.run.on_device`.
        """
        return ()

    @property
    def calls_in_flight(self) -> int:
        """Returns how many calls of a graph hold what they save at the same time; limits in bytes are for all of them.

        The budget in `terms` is that of one call: the limit divided by this number. A share is the same for each call.
        """
        return 1

    @property
    def step_device(self) -> object:
        """Returns the device on which plans within a limit are ranked by step time; None ranks them by price alone.

        It is a name, a file or a profile, as for `remat.predict.time.Roofline`; or `GRAPHS_OWN` for that of the graph.
        """
        return None

    def on_device(self, device: str) -> CostModel:  # noqa: ARG002  # for models whose prices depend on it
        """Returns this model with the prices of `device`, unless its options already name that device.

        Raises:
            InvalidOption: the options name another device.
        """
        return self

    @property
    def offload_device(self) -> object:
        """Returns the device whose copies to its host run concurrently with its kernels; None if nothing is offloaded.

        The prices of `terms` ignore that kernels hide copies. `remat.improve.offload_search` simulates the cost of a
        plan with hidden copies.
        """
        return None

    @property
    def limits_peak(self) -> bool:
        """Returns whether there are any `peak_limits` or `device_limits`."""
        return bool(self.peak_limits or self.device_limits)

    @property
    def limits_memory(self) -> bool:
        """Returns whether there are any limits of memory."""
        return bool(self.saved_limits or self.limits_peak)

    @property
    def row_limits(self) -> tuple[int | Fraction, ...]:
        """Returns the limits of `Terms.rows`: bytes, or shares of what PyTorch's default plan saves of these values."""
        return ()

    def pose(self, graph: Graph) -> Problem:
        """Returns the problem over the values that the forward pass can compute.

        Raises:
            UnsupportedProblem: the model limits peak memory, which no `Problem` can state.
            InvalidProblem: the result of `terms` is wrong.
        """
        if self.limits_peak:
            raise UnsupportedProblem(
                f"{self!r} limits peak memory. A peak is not a sum over saved values, so a Problem cannot hold this "
                f"limit: call remat.choose(graph, cost_model) for a plan"
            )
        return self.pose_without_peak(graph)

    def pose_without_peak(self, graph: Graph) -> Problem:
        """Returns the problem without a limit on peak memory.

        The first of four sources that has a rule about a value decides: the graph's facts (an input is never
        recomputed, a tuple never saved); strict annotations of the user (MUST); other annotations (PREFER), unless
        facts or strict annotations contradict; and the cost model.
        """
        facts = base_problem(checked_graph(graph))
        terms = self.checked_terms(graph)
        plannable = graph.plannable
        user_saves = (graph.must_save | graph.prefer_save)[plannable]
        user_recomputes = (graph.must_recompute | graph.prefer_recompute)[plannable]
        return facts.priced(
            save_cost=frozen(terms.save_cost[plannable]),
            recompute_cost=frozen(terms.recompute_cost[plannable]),
            cannot_save=facts.cannot_save | terms.cannot_save.take(plannable).without(user_saves),
            cannot_recompute=facts.cannot_recompute | terms.cannot_recompute.take(plannable).without(user_recomputes),
            budget_bytes=terms.budget_bytes,
            offload=None if terms.offload is None else terms.offload.take(plannable),
            rows=tuple(BudgetRow(row.name, row.values[plannable], row.bytes) for row in terms.rows),
        )

    def __add__(self, other: CostModel) -> CostModel:
        return Sum((self, other))


@dataclass(frozen=True)
class Sum(CostModel):
    """Adds cost models; write `a + b`."""

    parts: tuple[CostModel, ...]
    name: ClassVar[str] = "sum"

    def __post_init__(self) -> None:
        odd = [part for part in self.parts if not isinstance(part, CostModel)]  # pyright: ignore[reportUnnecessaryIsInstance]
        if odd:
            raise InvalidOption(f"only another cost model can be added to a cost model, got {odd[0]!r}")
        units = {part.unit for part in self.parts}
        if len(units) > 1:
            raise InvalidProblem(f"cost models must have the same unit to be added, got {' and '.join(sorted(units))}")

    @property
    def unit(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # known per instance only
        return self.parts[0].unit

    def data(self) -> str:
        return "\n".join(part.data() for part in self.parts)

    @property
    def saved_limits(self) -> tuple[int | Fraction, ...]:
        return tuple(limit for part in self.parts for limit in part.saved_limits)

    @property
    def row_limits(self) -> tuple[int | Fraction, ...]:
        return tuple(limit for part in self.parts for limit in part.row_limits)

    @property
    def peak_limits(self) -> tuple[int | Fraction, ...]:
        return tuple(limit for part in self.parts for limit in part.peak_limits)

    @property
    def device_limits(self) -> tuple[DeviceLimit, ...]:
        return tuple(limit for part in self.parts for limit in part.device_limits)

    @property
    def calls_in_flight(self) -> int:
        return max(part.calls_in_flight for part in self.parts)

    @property
    def step_device(self) -> object:
        return next((part.step_device for part in self.parts if part.step_device is not None), None)

    def on_device(self, device: str) -> CostModel:
        return Sum(tuple(part.on_device(device) for part in self.parts))

    @property
    def offload_device(self) -> object:
        return next((part.offload_device for part in self.parts if part.offload_device is not None), None)

    def terms(self, graph: Graph) -> Terms:
        first, *others = (part.checked_terms(graph) for part in self.parts)
        return reduce(operator.add, others, first)
