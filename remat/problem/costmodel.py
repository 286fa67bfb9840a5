"""What a cost model is: opinions about a graph, added to its facts to make a problem."""

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
from remat.problem.constraints import base_problem
from remat.problem.offload import Offload, checked_budget
from remat.problem.problem import Problem


@dataclass(frozen=True, eq=False)
class Terms:
    """What a cost model contributes to a problem, one entry a value of the graph.

    Terms add up: prices are summed, bans united, the tighter budget kept.

    Attributes:
        save_cost, recompute_cost: (n,) non-negative integer prices in one unit.
        cannot_save, cannot_recompute: bans with reasons.
        budget_bytes: the most bytes that may be saved, or None.
        offload: what offloading costs, and what cannot be offloaded; None if nothing can.
    """

    save_cost: IntArray
    recompute_cost: IntArray
    cannot_save: Bans
    cannot_recompute: Bans
    budget_bytes: int | None = None
    offload: Offload | None = None

    @classmethod
    def nothing(cls, graph: Graph) -> Terms:
        """Everything allowed, everything free: a start to `dataclasses.replace` from."""
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
    return terms


@dataclass(frozen=True)
class DeviceLimit:
    """A limit on all that training holds: parameters, gradients, the optimizer's state, activations.

    Attributes:
        bytes: of the device.
        optimizer: whose state counts: its name with options, or a callable from parameters to an optimizer.
    """

    bytes: int
    optimizer: object


class CostModel(ABC):
    """Prices and bans for the values of a graph. Implementations are frozen dataclasses.

    `a + b` is a cost model, too: it adds the terms of both.

    Attributes:
        name: what users type.
        unit: of the prices: "bytes", "ns".
    """

    name: ClassVar[str]
    unit: ClassVar[str]

    @abstractmethod
    def terms(self, graph: Graph) -> Terms:
        """The prices and bans for every value of `graph`, those of the tangents' closure included."""

    def checked_terms(self, graph: Graph) -> Terms:
        """What `terms` answers, checked.

        Raises:
            InvalidProblem: it is something else than Terms of the values of the graph.
        """
        return _checked(self.terms(graph), len(graph), f"{self!r}: what terms() returns")

    def data(self) -> str:
        """What its terms depend on beside its options and the graph: what its estimator depends on, for one.

        It is part of torch's cache key (`remat.pytorch.Partitioner.uuid`), so a plan is chosen again where it
        differs. Estimators and cost models in a field are found there without this.
        """
        return ""

    @property
    def saved_limits(self) -> tuple[int | Fraction, ...]:
        """The most bytes that may be saved, if the model limits that; `terms` has them in bytes of one graph.

        An `int` is a number of bytes: one for all graphs of a run together, of whatever sizes (see
        `remat.improve.joint_budget`). A `Fraction` is one of what each graph saves by default.
        """
        return ()

    @property
    def peak_limits(self) -> tuple[int | Fraction, ...]:
        """The most bytes that may be alive at once (see `remat.predict.memory`), if the model limits that.

        An `int` is a number of bytes. A `Fraction` is one of the peak of the plan that costs least, and means at
        least the smallest peak that is found.
        """
        return ()

    @property
    def device_limits(self) -> tuple[DeviceLimit, ...]:
        """The most that may be alive at once of everything, if the model limits that.

        A graph alone does not know all of it: see `remat.pytorch.run.on_device`.
        """
        return ()

    @property
    def offload_device(self) -> object:
        """The device whose copies to its host run beside its kernels; None if nothing is offloaded.

        `terms` has the price of copies that nothing hides. What a plan costs, where they do, is simulated: see
        `remat.improve.offload_search`.
        """
        return None

    @property
    def limits_peak(self) -> bool:
        """Whether there are any `peak_limits` or `device_limits`."""
        return bool(self.peak_limits or self.device_limits)

    def pose(self, graph: Graph) -> Problem:
        """The problem over the values that the forward pass can compute.

        Raises:
            UnsupportedProblem: the model limits peak memory, which no `Problem` can state.
        """
        if self.limits_peak:
            raise UnsupportedProblem(
                f"{self!r} limits peak memory, which is no sum over saved values, so that no Problem can state it; "
                f"call remat.choose(graph, cost_model) for a plan"
            )
        return self.pose_without_peak(graph)

    def pose_without_peak(self, graph: Graph) -> Problem:
        """The problem, but for a limit on peak memory.

        Four voices, the first that speaks is heard: the graph's facts (an input is never recomputed, a
        tuple never saved); what the user demands of a value (MUST); what the user asks for (PREFER),
        unless facts or demands make that impossible; and the cost model.
        """
        facts = base_problem(checked_graph(graph))
        terms = self.checked_terms(graph)
        ours = graph.plannable
        keep = (graph.must_save | graph.prefer_save)[ours]
        redo = (graph.must_recompute | graph.prefer_recompute)[ours]
        return facts.priced(
            save_cost=frozen(terms.save_cost[ours]),
            recompute_cost=frozen(terms.recompute_cost[ours]),
            cannot_save=facts.cannot_save | terms.cannot_save.take(ours).without(keep),
            cannot_recompute=facts.cannot_recompute | terms.cannot_recompute.take(ours).without(redo),
            budget_bytes=terms.budget_bytes,
            offload=None if terms.offload is None else terms.offload.take(ours),
        )

    def __add__(self, other: CostModel) -> CostModel:
        return Sum((self, other))


@dataclass(frozen=True)
class Sum(CostModel):
    """The sum of cost models; write `a + b`."""

    parts: tuple[CostModel, ...]
    name: ClassVar[str] = "sum"

    def __post_init__(self) -> None:
        odd = [part for part in self.parts if not isinstance(part, CostModel)]  # pyright: ignore[reportUnnecessaryIsInstance]
        if odd:
            raise InvalidOption(f"a cost model adds up with another one, got {odd[0]!r}")
        units = {part.unit for part in self.parts}
        if len(units) > 1:
            raise InvalidProblem(f"cost models add up only in one unit, got {' and '.join(sorted(units))}")

    @property
    def unit(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # known per instance only
        """The unit of every part."""
        return self.parts[0].unit

    def data(self) -> str:
        """What its parts depend on, one after the other."""
        return "\n".join(part.data() for part in self.parts)

    @property
    def saved_limits(self) -> tuple[int | Fraction, ...]:
        """Those of all parts; the tightest counts."""
        return tuple(limit for part in self.parts for limit in part.saved_limits)

    @property
    def peak_limits(self) -> tuple[int | Fraction, ...]:
        """Those of all parts; the tightest counts."""
        return tuple(limit for part in self.parts for limit in part.peak_limits)

    @property
    def device_limits(self) -> tuple[DeviceLimit, ...]:
        """Those of all parts; the tightest counts."""
        return tuple(limit for part in self.parts for limit in part.device_limits)

    @property
    def offload_device(self) -> object:
        """That of the first part that has one."""
        return next((part.offload_device for part in self.parts if part.offload_device is not None), None)

    def terms(self, graph: Graph) -> Terms:
        """The terms of all parts, added."""
        first, *others = (part.checked_terms(graph) for part in self.parts)
        return reduce(operator.add, others, first)
