"""The prices of all budgets, those of the host included, under which a minimum cut bounds a problem best.

Where only saved bytes have a budget, the convex hull tells its price (`remat.proof.hull`). Each budget of what is
offloaded has a price of its own, and under any prices a minimum cut bounds all plans (`remat.problem.weights`). At the
best ones, a mixture of plans that keeps all budgets on average costs as much as the bound: that is a linear program
with a row for each budget, and a column for each plan. The simplex method looks for the column that is cheapest under
the present prices, and that is a minimum cut (column generation; Dantzig and Wolfe 1960). It counts in doubles, but
only proposes prices: what is proven is proven by a flow in integers.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from remat.answer.choice import Choice
from remat.answer.network import Arcs
from remat.answer.solution import FlowCertificate
from remat.answer.solver import FlowSolver, MaxFlow
from remat.errors import UnsupportedProblem
from remat.facts.columns import LARGEST_TOTAL
from remat.problem.problem import Problem
from remat.problem.weights import BY_COST, Weights
from remat.proof.certify import proven_bound

_CUTS = 100
_PIVOTS = 1000
_SMALL = 1e-9
"""Of all costs, or of all bytes: what is less counts as none."""

_FINES = (1.0, 1e3, 1e6, 1e9)
"""What breaking a budget by all there is costs, as a multiple of all costs: more, until that does not pay."""

_Reals = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Priced:
    """What the best prices that were found tell.

    Attributes:
        bound: no plan within all budgets costs less; None if none keeps them.
        certificate: the flow that proves it, with the prices.
        choices: all that were cut, whether they keep the budgets or not.
        mixture: of these, with their parts: within the budgets on average, if any mixture is.
    """

    bound: int | None
    certificate: FlowCertificate
    choices: tuple[Choice, ...]
    mixture: tuple[tuple[float, Choice], ...]


def best_prices(problem: Problem, solver: FlowSolver) -> Priced:
    """Looks for the prices under which a minimum cut proves most.

    Args:
        problem: has a plan, but for its budgets.
        solver: for the cuts.
    """
    cuts = _Cuts(problem, solver)
    program = _Program(cuts.most, *cuts.at(np.zeros(len(cuts.labels))))
    fines = iter(_FINES[1:])
    with suppress(np.linalg.LinAlgError):  # rounding may end the search early; what was proven holds
        for _ in range(_PIVOTS):
            if program.pivots():
                continue
            if program.add(*cuts.at(program.prices)) and len(cuts.choices) < _CUTS:
                continue
            fine = next(fines, None) if program.pays_fines else None
            if fine is None:
                break
            program.raise_fines(fine)
    if program.pays_fines:
        cuts.at(program.prices, 0)  # perhaps no plan keeps the budgets
    mixture = tuple((part, cuts.choices[i]) for i, part in program.parts.items())
    return Priced(cuts.bound, cuts.certificate, tuple(cuts.choices), mixture)


class _Program:
    """The linear program over the plans so far, with what is left of each budget, and fines for what exceeds it.

    Args:
        most: (k + 1,) the budgets, and 1: the parts of a mixture add up to that.
        column: (k + 1,) what the first plan takes of each, and 1.
        cost: of the first plan.
    """

    def __init__(self, most: _Reals, column: _Reals, cost: float) -> None:
        self.most, self.rows = most, len(most) - 1
        unit = np.eye(self.rows + 1)[: self.rows]
        self.columns = [*unit, *-unit, column]
        self.costs = [0.0] * self.rows + [_FINES[0]] * self.rows + [cost]
        self.basis = [*(row + self.rows * bool(column[row] > most[row]) for row in range(self.rows)), 2 * self.rows]
        self._solve()

    def _solve(self) -> None:
        self.matrix: _Reals = np.column_stack([self.columns[i] for i in self.basis])
        self.shares: _Reals = np.linalg.solve(self.matrix, self.most)
        self.duals: _Reals = np.linalg.solve(self.matrix.T, np.array([self.costs[i] for i in self.basis]))

    @property
    def prices(self) -> _Reals:
        """(k,) of the budgets."""
        return np.maximum(-self.duals[:-1], 0)

    @property
    def parts(self) -> dict[int, float]:
        """The mixture: plans, in the order in which they were added, and their parts."""
        first = 2 * self.rows
        return {i - first: float(part) for i, part in zip(self.basis, self.shares, strict=True) if i >= first}

    @property
    def pays_fines(self) -> bool:
        """Whether the mixture breaks a budget."""
        fined = range(self.rows, 2 * self.rows)
        return any(i in fined and part > _SMALL for i, part in zip(self.basis, self.shares, strict=True))

    def pivots(self) -> bool:
        """Takes the column in that gains most; returns whether any does."""
        gains = np.array(self.columns) @ self.duals - self.costs
        enters = int(np.argmax(gains))
        if gains[enters] <= _SMALL:
            return False
        ahead: _Reals = np.linalg.solve(self.matrix, self.columns[enters])
        steps = np.where(ahead > _SMALL, self.shares / np.where(ahead > _SMALL, ahead, 1), np.inf)
        self.basis[int(np.argmin(steps))] = enters
        self._solve()
        return True

    def add(self, column: _Reals, cost: float) -> bool:
        """Adds a plan; returns whether it gains anything."""
        self.columns.append(column)
        self.costs.append(cost)
        return bool(column @ self.duals - cost > _SMALL)

    def raise_fines(self, fine: float) -> None:
        """Makes it dearer to exceed a budget."""
        self.costs[self.rows : 2 * self.rows] = [fine] * self.rows
        self._solve()


class _Cuts:
    """The cuts so far, and the best bound. Costs and bytes count as parts of all there are."""

    def __init__(self, problem: Problem, solver: FlowSolver) -> None:
        self.problem, self.solver, self.arcs = problem, solver, Arcs.of(problem)
        budgets = [] if problem.budget_bytes is None else [("byte", problem.save_bytes, problem.budget_bytes)]
        budgets += [(f"host_{what.removesuffix('s')}", amounts, most) for what, amounts, most in problem.host_budgets]
        self.labels = [label for label, _, _ in budgets]
        self.amounts = [amounts for _, amounts, _ in budgets]
        self.wholes = np.array([max(int(amounts.sum()), 1) for amounts in self.amounts], np.float64)
        self.most: _Reals = np.array([*([most for _, _, most in budgets] / self.wholes), 1.0])
        copies = 0 if problem.offload is None else int(problem.offload.cost.sum())
        self.all_costs = max(int(problem.save_cost.sum() + problem.recompute_cost.sum()) + copies, 1)
        self.choices: list[Choice] = []
        self.bound: int | None = 0
        self.certificate = FlowCertificate(np.zeros(0, np.int64))

    def at(self, prices: _Reals, cost: int = 1) -> tuple[_Reals, float]:
        """The plan that is cheapest under prices, as a column, with its cost; its flow may raise the bound."""
        flow = self._flow(prices, cost)
        choice = self.solver.cut(flow)
        bound = proven_bound(self.problem, flow.certificate)
        if not self.choices or bound is None or (self.bound is not None and bound > self.bound):
            self.bound, self.certificate = bound, flow.certificate
        self.choices.append(choice)
        masks = [choice.on_device if label == "byte" else choice.offloaded for label in self.labels]
        used = [int(amounts[mask].sum()) for amounts, mask in zip(self.amounts, masks, strict=True)]
        return np.array([*(used / self.wholes), 1.0]), choice.cost(self.problem) / self.all_costs

    def _flow(self, prices: _Reals, cost: int) -> MaxFlow:
        """The flow under prices in whole numbers, as fine as the solver can count."""
        scale = LARGEST_TOTAL / 4 / (self.all_costs * (cost + float(prices.sum())))
        while scale >= 1:
            whole = [int(scale * price * self.all_costs / of) for price, of in zip(prices, self.wholes, strict=True)]
            weights = dict(zip(self.labels, whole, strict=True))
            if any(whole):
                with suppress(UnsupportedProblem):
                    return self.solver.max_flow(self.arcs, Weights(cost=cost * int(scale), **weights))
            scale /= 256
        return self.solver.max_flow(self.arcs, BY_COST)
