"""Decides whether any plan fits the byte budget: by a minimum cut, whose flow proves the answer."""

from __future__ import annotations

import numpy as np

from remat.answer import registry
from remat.answer.solver import Cut, FlowSolver, Solver
from remat.errors import Infeasible, InvalidOption
from remat.facts.bans import cannot_be
from remat.problem.feasibility import ForcedValues
from remat.problem.multipliers import BY_BYTES
from remat.problem.problem import Problem
from remat.proof.certify import proven_bound
from remat.words import human_bytes, placed

_SHOWN = 5


def flow_solver(solver: str | Solver | None = None) -> FlowSolver:
    """Returns a minimum-cut solver: the named one, otherwise the default one, or NetworkX's if that is not installed.

    Raises `InvalidOption` for a solver that computes no flows, `UnknownName` and `NotInstalled`.
    """
    if solver is None:
        solver = registry.FALLBACK_SOLVER if registry.default_is_missing() else registry.DEFAULT_SOLVER
    instance = registry.find_solver(solver)
    if not isinstance(instance, FlowSolver):
        names = [name for name in registry.usable_solvers() if issubclass(registry.solver_class(name), FlowSolver)]
        raise InvalidOption(f"a minimum cut needs a flow solver ({', '.join(names)}), got {instance.name!r}")
    instance.check_installed()
    return instance


def least_bytes(problem: Problem, rules: ForcedValues | None = None) -> Cut:
    """Returns the cheapest one of the choices that save the fewest bytes, with a proof of the bytes."""
    return flow_solver().minimum_cut(problem, BY_BYTES, rules)


def check_budget(problem: Problem, rules: ForcedValues | None = None) -> None:
    """Raises `Infeasible` if a flow proves that no plan fits one of the budgets; the message lists what must be saved.

    Each budget is checked alone. Only a solver can find that no plan keeps several budgets together.
    """
    for position, (name, sizes, limit) in enumerate(problem.budgets):
        if int(sizes.sum()) > limit:
            alone = problem.with_one_budget(position)
            least = least_bytes(alone, rules)
            if proven_bound(alone, least.certificate) is None:
                raise Infeasible(_explained(alone, least, name and f" of {name!r}"))


def _explained(problem: Problem, least: Cut, of: str) -> str:
    saved = np.flatnonzero(least.choice.on_device & (problem.save_bytes > 0))
    largest = saved[np.argsort(-problem.save_bytes[saved], kind="stable")]
    shown: list[int] = largest[:_SHOWN].tolist()
    lines = [
        f"  {placed(problem.names[v], problem.places[v])}: {human_bytes(int(problem.save_bytes[v]))}"
        + (f", {cannot_be('recomputed', reason)}" if (reason := problem.cannot_recompute.reason(v)) else "")
        for v in shown
    ]
    if len(largest) > _SHOWN:
        lines.append(f"  ... and {len(largest) - _SHOWN} more")
    listed = "\n".join(lines)
    return (
        f"no plan fits the budget of {problem.budget_bytes} bytes{of}: every plan saves at least {least.weight} "
        f"({human_bytes(least.weight)}), proven by a minimum cut. The plan that saves the fewest keeps:\n{listed}\n"
        f"Raise the budget, or lift a ban on recomputing."
    )
