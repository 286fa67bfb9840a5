"""Defines the interface of solvers: `FlowSolver` for a maximum-flow code, `Solver` for all others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
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
from remat.problem.features import Feature, check_features, features_of
from remat.problem.multipliers import BY_COST, Multipliers
from remat.problem.problem import Problem
from remat.words import pip_install


class Solver(ABC):
    """Solves a `Problem`. Implementations are frozen dataclasses, whose fields are the options.

    Attributes:
        name: the name that users type.
        exact: whether the solver finds an optimal plan of every problem with the declared features.
        features: what the solver supports.
        requires: packages that `_solve` imports.
        largest_capacity: the largest sum of prices (and of bytes, where they break ties) that the package behind it can
            represent, after division by their greatest common divisor; None for any.
        max_values: the largest number of values of a problem; None for any.
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
        self,
        graph: Graph,
        problem: Problem,
        limit_bytes: int,
        incumbent: Choice | None,
        *,
        time_limit_s: float | None = None,
    ) -> Solution | None:
        """Finds the cheapest plan of a graph within a limit of its simulated peak, or finds that there is none.

        Args:
            graph: the peak of its plans is that of `remat.predict.memory.Simulator`.
            problem: its costs and bans, without a budget.
            limit_bytes: the limit of the peak.
            incumbent: a plan within the limit, or None. An answer costs no more.
            time_limit_s: wall time in seconds; None sets no limit.

        Returns:
            a solution with a bound; None if the solver has no such search, or cannot state this graph.
        """
        del graph, problem, limit_bytes, incumbent, time_limit_s
        return None

    @classmethod
    def missing(cls) -> tuple[str, ...]:
        """Returns the required packages that are not installed."""
        return tuple(package for package in cls.requires if find_spec(package) is None)

    def check_installed(self) -> None:
        """Raises `NotInstalled` if a required package is missing."""
        missing = self.missing()
        if missing:
            raise NotInstalled(
                f"solver {self.name!r} needs {', '.join(missing)}: {_remedy(missing)} "
                f"(or choose an installed one: `remat plugins solvers` lists them)"
            )

    def accept(self, problem: Problem, *, time_limit_s: float | None = None) -> None:
        """Checks that this solver supports a problem and a time limit.

        Raises:
            NotInstalled: a required package is missing.
            InvalidOption: the time limit is no positive number.
            UnsupportedProblem: the solver lacks a feature, or the problem is too large.
        """
        self.check_installed()
        check_time_limit(time_limit_s)
        limit = [] if time_limit_s is None else [Feature.TIME_LIMIT]
        advice = "; `remat plugins solvers` lists those that do"
        check_features([*features_of(problem), *limit], f"solver {self.name!r}", self.features, advice)
        if self.max_values is not None and len(problem) > self.max_values:
            raise UnsupportedProblem(
                f"solver {self.name!r} takes up to {self.max_values} values, got {len(problem)}; choose another solver"
            )


def check_time_limit(time_limit_s: object) -> None:
    is_number = isinstance(time_limit_s, int | float | np.number) and not isinstance(time_limit_s, bool)
    if time_limit_s is not None and not (is_number and time_limit_s > 0):  # type: ignore[operator]
        raise InvalidOption(f"time_limit_s must be a positive number of seconds, got {time_limit_s!r}")


# An extra of remat if there is one, because it pins versions that work.
def _remedy(packages: tuple[str, ...]) -> str:
    extras = metadata("remat").get_all("Provides-Extra") or []
    return " and ".join(pip_install(each) if each in extras else f"pip install {each}" for each in packages)


@dataclass(frozen=True, eq=False)
class Cut:
    """Holds a minimum cut as a choice.

    Attributes:
        weight: its cost and saved bytes, weighted by the multipliers of the certificate.
        certificate: the flow that proves that no choice weighs less.
    """

    choice: Choice
    weight: int
    certificate: FlowCertificate


@dataclass(frozen=True, eq=False)
class MaxFlow:
    """Holds a maximum flow of a problem's network, which is a lower bound on the weight of every choice."""

    reduction: Reduction
    certificate: FlowCertificate
    network: Network  # that of the reduction, in a unit that the solver can represent
    flow: IntArray  # (k,) in that unit
    sides: Sides  # of all minimum cuts
    weight: int  # of the minimum cuts


class FlowSolver(Solver):
    """Computes a maximum flow; the plan and its proof follow from the flow.

    Of all optimal plans, it returns the one that saves the fewest bytes; among equals, the fewest values; and then the
    one whose cut is closest to the sink. That plan is unique, so every flow solver returns it. Ties are broken exactly,
    by further flows over the set of minimum cuts (`Network.face`), not by small weights in the prices.
    """

    features: ClassVar[frozenset[Feature]] = frozenset({Feature.OFFLOAD})

    @abstractmethod
    def _max_flow(self, network: Network) -> tuple[IntArray, Sides | None]:
        """Computes a maximum flow of a network: an array (k,) of one integer per arc.

        Returns the flow, and its `Sides` if the package behind the solver computes them fast, otherwise None (see
        `residual_sides`).
        """

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        cut = self.minimum_cut(problem)
        ended = Termination(TerminationReason.OPTIMAL, cut.weight)
        return Solution(cut.choice.plan(problem), cut.weight, ended, cut.certificate, self.name)

    def minimum_cut(
        self, problem: Problem, multipliers: Multipliers = BY_COST, rules: ForcedValues | None = None
    ) -> Cut:
        """Returns the choice with the least weight, whatever the budget, with the flow that proves it.

        Args:
            problem: a feasible problem.
            multipliers: the multipliers of cost and of saved bytes; by default bytes are free.
            rules: `forced_values(problem)`, if it has been computed.

        Raises:
            UnsupportedProblem: the weighted prices are too large for this solver, or for any.
        """
        flow = self.max_flow(Arcs.of(problem, rules), multipliers)
        return Cut(self.cut(flow), flow.weight, flow.certificate)

    def max_flow(self, arcs: Arcs, multipliers: Multipliers) -> MaxFlow:
        """Returns the least weight of all choices, with the flow that proves it; `cut` returns such a choice.

        Raises:
            UnsupportedProblem: the weighted prices are too large for this solver, or for any.
        """
        reduction = arcs.with_multipliers(multipliers)
        network, unit = reduction.network.rescaled(self.largest_capacity)
        flow, sides = self._checked_flow(network)
        weight = reduction.base + reduction.unit * unit * flow_value(network, flow)
        certificate = FlowCertificate(flow * unit, multipliers)
        return MaxFlow(reduction, certificate, network, flow, sides or residual_sides(network, flow), weight)

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
        """Returns the choice of the minimum cut that the tiebreaks prefer.

        Raises:
            UnsupportedProblem: the sum of the tiebreaks is too large for this solver.
        """
        return flow.reduction.choice(self._preferred(flow.network, flow.flow, flow.sides))

    def _preferred(self, network: Network, flow: IntArray, sides: Sides) -> BoolArray:
        if not network.tiebreaks or network.is_decided(sides):
            return sides.sink
        face, vertex = network.face(flow, sides)
        if not any_set(face.heads == SINK):  # no undecided vertex has an arc to the sink: there is nothing to decide
            return sides.sink
        what = "bytes or values that break ties between optimal plans"
        network, _ = face.with_tiebreaks(self.largest_capacity).rescaled(self.largest_capacity, what)
        flow, face_sides = self._checked_flow(network)
        return self._preferred(network, flow, face_sides or residual_sides(network, flow))[vertex]


def _pair(answer: object) -> tuple[Any, Any]:
    parts = cast(tuple[Any, ...], answer) if isinstance(answer, tuple) else ()
    return (parts[0], parts[1]) if len(parts) == 2 else (None, None)


def _is_array(part: Any, shape: tuple[int, ...], dtype: type) -> bool:
    return type(part) is np.ndarray and (part.shape, part.dtype) == (shape, dtype)


def flow_value(network: Network, flow: IntArray) -> int:
    return int(flow[network.tails == SOURCE].sum() - flow[network.heads == SOURCE].sum())


def residual_sides(network: Network, flow: IntArray) -> Sides:
    """Computes the sides by a search of the residual graph from both terminals, in linear time."""
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
    reached = [False] * num_vertices
    reached[start] = True
    queue = deque([start])
    while queue:
        vertex = queue.popleft()
        for other in targets[first[vertex] : first[vertex + 1]]:
            if not reached[other]:
                reached[other] = True
                queue.append(other)
    return np.array(reached, np.bool_)
