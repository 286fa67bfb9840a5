"""Decides whether any plan exists, before a solver is called; if none does, explains why.

A value is *unavailable* if the backward pass cannot get it: it cannot be saved, and it cannot be recomputed, because
that is forbidden or because an operand is unavailable. A problem without a budget is infeasible if and only if a needed
value is unavailable; the chain of unavailable values that leads to it is the explanation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat.errors import Infeasible
from remat.facts.bans import cannot_be
from remat.facts.columns import BoolArray, any_set
from remat.problem.problem import Problem
from remat.words import placed

REMEDY = "Relax one of them."
"""The end of the error message of an infeasible problem."""


@dataclass(frozen=True)
class ForcedValues:
    """Holds the consequences of the bans alone.

    Attributes:
        unavailable: (n,) values that can be neither saved nor recomputed.
        not_recomputable: (n,) values that cannot be recomputed, because of a ban or an unavailable operand.
    """

    unavailable: BoolArray
    not_recomputable: BoolArray


def forced_values(problem: Problem) -> ForcedValues:
    """Propagates the bans along the uses, in time linear in the graph."""
    unsaveable = problem.cannot_save.mask
    not_recomputable = problem.cannot_recompute.mask.copy()
    unavailable = unsaveable & not_recomputable
    if not any_set(unavailable):
        return ForcedValues(unavailable, not_recomputable)
    # Only values that cannot be saved can be unavailable, and they are few: loop over their uses only.
    from_unsaveable = np.flatnonzero(unsaveable[problem.producers])
    order = from_unsaveable[np.argsort(problem.consumers[from_unsaveable], kind="stable")]
    producers, consumers = problem.producers[order].tolist(), problem.consumers[order].tolist()
    for u, v in zip(producers, consumers, strict=True):
        if unavailable[u]:
            not_recomputable[v] = True
            unavailable[v] = unsaveable[v]
    return ForcedValues(unavailable, not_recomputable)


def check_feasible(problem: Problem, rules: ForcedValues | None = None) -> None:
    """Raises `Infeasible`, with the path of contradicting rules, if the bans allow no plan."""
    unavailable = (rules or forced_values(problem)).unavailable
    victims = np.flatnonzero(unavailable & problem.needed)
    if not len(victims):
        return
    path = _trace(problem, unavailable, int(victims[0]))
    lines = "\n".join(f"  {placed(name, problem.places[problem.index[name]])}: {'; '.join(why)}" for name, why in path)
    raise Infeasible(
        f"no plan can make {problem.names[victims[0]]!r} available in the backward pass. "
        f"These rules contradict each other:\n{lines}\n{REMEDY}",
        path,
    )


def _trace(problem: Problem, unavailable: BoolArray, victim: int) -> list[tuple[str, tuple[str, ...]]]:
    chain = [victim]
    while not problem.cannot_recompute.mask[chain[-1]]:
        arguments = problem.producers[problem.consumers == chain[-1]]
        chain.append(int(arguments[unavailable[arguments]][0]))
    chain.reverse()
    path: list[tuple[str, tuple[str, ...]]] = []
    for position, v in enumerate(chain):
        banned = problem.cannot_recompute.reason(v) or f"uses {problem.names[chain[position - 1]]!r}"
        why = [cannot_be("saved", str(problem.cannot_save.reason(v))), cannot_be("recomputed", banned)]
        if v == victim:
            why.append("needed by the backward pass")
        path.append((problem.names[v], tuple(why)))
    return path
