"""What a solver is. Implement `FlowSolver` for a max-flow code, `Solver` for anything else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import metadata
from importlib.util import find_spec
from typing import Any, ClassVar, cast

import numpy as np

from remat.answer.choice import Choice
from remat.answer.network import SINK, SOURCE, Arcs, Network, Reduction, Sides
from remat.answer.solution import FlowCertificate, Solution, Termination, TerminationReason
from remat.errors import CertificateRejected, InvalidOption, NotInstalled, UnsupportedProblem
from remat.facts.columns import BoolArray, IntArray, any_set
from remat.facts.graph import Graph
from remat.problem.feasibility import ForcedValues
from remat.problem.multipliers import BY_COST, Multipliers
from remat.problem.problem import Problem


class Feature(Enum):
    """What a problem, or a caller, may ask of a solver. The value says it in words."""

    BUDGET = "a byte budget"
    OFFLOAD = "offloading"
    TIME_LIMIT = "a time limit"


class Solver(ABC):
    """An algorithm for `Problem`. Implementations are frozen dataclasses: fields are options.

    Attributes:
        name: what users type.
        exact: optimality is claimed for every problem with the declared features.
        features: what the solver can take.
        requires: packages that `_solve` imports.
        largest_capacity: the largest sum of prices (and, where ties are broken, of bytes) that the
            backend can represent, after division by their greatest common divisor; None for any.
        max_values: the most values that it takes; None for any.
    """

    name: ClassVar[str]
    exact: ClassVar[bool] = True
    features: ClassVar[frozenset[Feature]] = frozenset()
    requires: ClassVar[tuple[str, ...]] = ()
    largest_capacity: ClassVar[int | None] = None
    max_values: ClassVar[int | None] = None

    @abstractmethod
    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        """Solves a feasible problem whose features are all supported. Called by `remat.solve`."""

    def within_peak(
        self, graph: Graph, problem: Problem, limit_bytes: int, known: Choice | None, *, time_limit_s: float | None
    ) -> Solution | None:
        """Looks for the cheapest plan within a limit of the simulated peak: for solvers that can, and say so by it.

        Args:
            graph: the joint graph.
            problem: its costs and bans, without a budget.
            limit_bytes: of `remat.timeline(graph, plan).peak_bytes`.
            known: a plan that fits, if one is known.
            time_limit_s: wall time in seconds; none, if left out.

        Returns:
            its plan, or `known`, with a bound on what every plan costs that fits; None, as here, if it cannot.
        """
        del graph, problem, limit_bytes, known, time_limit_s
        return None

    @classmethod
    def missing(cls) -> tuple[str, ...]:
        """The required packages that are not installed."""
        return tuple(package for package in cls.requires if find_spec(package) is None)

    def check_installed(self) -> None:
        """Raises `NotInstalled` if a required package is missing."""
        missing = self.missing()
        if missing:
            raise NotInstalled(
                f"solver {self.name!r} needs {', '.join(missing)}: pip install {_remedy(missing)} "
                f"(or choose an installed one: `remat plugins solvers` lists them)"
            )

    def accept(self, problem: Problem, *, time_limit_s: float | None = None) -> None:
        """Refuses what this solver cannot do, before it starts.

        Raises:
            NotInstalled: a required package is missing.
            InvalidOption: the time limit is no positive number.
            UnsupportedProblem: a feature is missing, or the problem is too large.
        """
        self.check_installed()
        check_time_limit(time_limit_s)
        limit = [] if time_limit_s is None else [Feature.TIME_LIMIT]
        for feature in (*features_of(problem), *limit):
            if feature not in self.features:
                raise UnsupportedProblem(
                    f"solver {self.name!r} does not support {feature.value}; "
                    "`remat plugins solvers` lists those that do"
                )
        if self.max_values is not None and len(problem) > self.max_values:
            raise UnsupportedProblem(
                f"solver {self.name!r} takes up to {self.max_values} values, got {len(problem)}; choose another"
            )


def features_of(problem: Problem) -> tuple[Feature, ...]:
    """Lists what a solver must support to take a problem."""
    asked = {
        Feature.BUDGET: problem.budget_bytes is not None,
        Feature.OFFLOAD: problem.offload is not None,
    }
    return tuple(feature for feature, wanted in asked.items() if wanted)


def check_time_limit(time_limit_s: object) -> None:
    """Raises `InvalidOption` for a time limit that is neither None nor a positive number."""
    is_number = isinstance(time_limit_s, int | float | np.number) and not isinstance(time_limit_s, bool)
    if time_limit_s is not None and not (is_number and time_limit_s > 0):  # type: ignore[operator]
        raise InvalidOption(f"time_limit_s must be a positive number of seconds, got {time_limit_s!r}")


def _remedy(packages: tuple[str, ...]) -> str:
    """What to install: our extra where there is one, for it knows which versions work."""
    extras = metadata("remat").get_all("Provides-Extra") or []
    return " ".join(f"'remat[{package}]'" if package in extras else package for package in packages)


@dataclass(frozen=True, eq=False)
class Cut:
    """A minimum cut, read as a choice.

    Attributes:
        choice: what it saves and recomputes.
        weight: its cost and saved bytes, weighed as in the certificate.
        certificate: the flow that proves that nothing weighs less.
    """

    choice: Choice
    weight: int
    certificate: FlowCertificate


@dataclass(frozen=True, eq=False)
class MaxFlow:
    """A maximum flow of a problem's network, and so what every choice weighs at least.

    Attributes:
        reduction: of the problem, under some weights.
        certificate: the flow, as a proof.
        fitted, flow: the network in a unit in which the solver can count, and its flow in that unit.
        sides: what all minimum cuts agree on.
        weight: of the minimum cuts.
    """

    reduction: Reduction
    certificate: FlowCertificate
    fitted: Network
    flow: IntArray
    sides: Sides
    weight: int


class FlowSolver(Solver):
    """A solver that finds a maximum flow; the plan and its proof follow from the flow.

    Of all optimal plans the one returned saves the fewest bytes, then the fewest values, then
    lies closest to the backward pass. That makes it unique: every flow solver returns the same
    plan. Ties are broken exactly, without scaling weights into the prices, by further flows over
    the set of minimum cuts (`Network.face`).
    """

    features: ClassVar[frozenset[Feature]] = frozenset({Feature.OFFLOAD})

    @abstractmethod
    def _max_flow(self, network: Network) -> tuple[IntArray, Sides | None]:
        """A maximum flow of `network`: (k,) one integer an arc.

        Beside it `Sides`, if the backend computes them fast, else None (see `residual_sides`).
        """

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        cut = self.minimum_cut(problem)
        return Solution(
            cut.choice.plan(problem),
            cut.weight,
            Termination(TerminationReason.OPTIMAL, cut.weight),
            cut.certificate,
            self.name,
        )

    def minimum_cut(
        self, problem: Problem, multipliers: Multipliers = BY_COST, rules: ForcedValues | None = None
    ) -> Cut:
        """The choice that weighs least, whatever the budget, with the flow that proves it.

        Args:
            problem: a feasible problem.
            weights: the price on saved bytes, which are free when left out.
            rules: `forced_values(problem)`, to save time.

        Raises:
            UnsupportedProblem: the weighed prices are too large for this solver, or for any.
        """
        found = self.max_flow(Arcs.of(problem, rules), multipliers)
        return Cut(self.cut(found), found.weight, found.certificate)

    def max_flow(self, arcs: Arcs, multipliers: Multipliers) -> MaxFlow:
        """What every choice weighs at least, with the flow that proves it; `cut` finds a choice that weighs so much.

        Raises:
            UnsupportedProblem: the weighed prices are too large for this solver, or for any.
        """
        reduction = arcs.with_multipliers(multipliers)
        fitted, unit = reduction.network.rescaled(self.largest_capacity)
        flow, sides = self._checked_flow(fitted)
        weight = reduction.base + reduction.unit * unit * flow_value(fitted, flow)
        certificate = FlowCertificate(flow * unit, multipliers)
        return MaxFlow(reduction, certificate, fitted, flow, sides or residual_sides(fitted, flow), weight)

    def _checked_flow(self, network: Network) -> tuple[IntArray, Sides | None]:
        answer = self._max_flow(network)
        flow, sides = _pair(answer)
        shape, vertices = network.tails.shape, (network.num_vertices,)
        if not _is_array(flow, shape, np.int64) or not (
            sides is None or (type(sides) is Sides and all(_is_array(side, vertices, np.bool_) for side in sides))
        ):
            raise CertificateRejected(
                f"{self!r}: what _max_flow() returns must be an int64 array of shape {shape}, and None or Sides of two "
                f"bool arrays of shape {vertices}, got {answer!r}"
            )
        return flow, sides

    def cut(self, flow: MaxFlow) -> Choice:
        """The choice of the minimum cut that the tiebreaks prefer.

        Raises:
            UnsupportedProblem: what breaks ties adds up to more than this solver counts to.
        """
        return flow.reduction.choice(self._preferred(flow.fitted, flow.flow, flow.sides))

    def _preferred(self, network: Network, flow: IntArray, sides: Sides) -> BoolArray:
        """The sink side of the minimum cut that the tiebreaks prefer, given a maximum flow."""
        if not network.tiebreaks or network.is_decided(sides):
            return sides.sink
        face, vertex = network.face(flow, sides)
        if not any_set(face.heads == SINK):  # what is undecided leads nowhere
            return sides.sink
        what = "bytes or values that break ties between optimal plans"
        fitted, _ = face.with_tiebreaks(self.largest_capacity).rescaled(self.largest_capacity, what)
        flow, known = self._checked_flow(fitted)
        return self._preferred(fitted, flow, known or residual_sides(fitted, flow))[vertex]


def _pair(answer: object) -> tuple[Any, Any]:
    parts = cast(tuple[Any, ...], answer) if isinstance(answer, tuple) else ()
    return (parts[0], parts[1]) if len(parts) == 2 else (None, None)


def _is_array(part: Any, shape: tuple[int, ...], dtype: type) -> bool:
    return type(part) is np.ndarray and (part.shape, part.dtype) == (shape, dtype)


def flow_value(network: Network, flow: IntArray) -> int:
    """Net flow out of the source."""
    return int(flow[network.tails == SOURCE].sum() - flow[network.heads == SOURCE].sum())


def residual_sides(network: Network, flow: IntArray) -> Sides:
    """Searches the residual graph of a maximum flow from both terminals, in linear time."""
    slack, carrying = flow < network.capacities, flow > 0
    tails = np.concatenate([network.tails[slack], network.heads[carrying]])
    heads = np.concatenate([network.heads[slack], network.tails[carrying]])
    return Sides(
        source=_reachable(SOURCE, tails, heads, network.num_vertices),
        sink=_reachable(SINK, heads, tails, network.num_vertices),
    )


def _reachable(start: int, tails: IntArray, heads: IntArray, num_vertices: int) -> BoolArray:
    order = np.argsort(tails, kind="stable")
    first = np.searchsorted(tails[order], np.arange(num_vertices + 1)).tolist()
    targets = heads[order].tolist()
    seen = [False] * num_vertices
    seen[start] = True
    queue = deque([start])
    while queue:
        vertex = queue.popleft()
        for other in targets[first[vertex] : first[vertex + 1]]:
            if not seen[other]:
                seen[other] = True
                queue.append(other)
    return np.array(seen, np.bool_)
