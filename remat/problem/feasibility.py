"""Does any plan exist? Decided before a solver is called, and explained once for all of them.

A value is *lost* if the backward pass can have it in no way: it cannot be saved, and it cannot be
recomputed, either because that is forbidden or because one of its arguments is lost. Without a
budget a problem is infeasible exactly if a needed value is lost, and the chain of lost values
that leads to it is the explanation.
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
"""How the message ends where a plan was asked for, and there is none."""


@dataclass(frozen=True)
class ForcedValues:
    """What follows from the bans alone.

    Attributes:
        lost: (n,) values that can be neither saved nor recomputed.
        stuck: (n,) values that cannot be recomputed: forbidden, or an argument is lost.
    """

    unavailable: BoolArray
    not_recomputable: BoolArray


def forced_values(problem: Problem) -> ForcedValues:
    """Propagates the bans along the uses, in time linear in the graph."""
    unsaveable = problem.cannot_save.mask
    stuck = problem.cannot_recompute.mask.copy()
    lost = unsaveable & stuck
    if not any_set(lost):
        return ForcedValues(lost, stuck)
    # Only values that cannot be saved pass a loss on, and they are few: loop over their uses only.
    from_unsaveable = np.flatnonzero(unsaveable[problem.producers])
    order = from_unsaveable[np.argsort(problem.consumers[from_unsaveable], kind="stable")]
    producers, consumers = problem.producers[order].tolist(), problem.consumers[order].tolist()
    for u, v in zip(producers, consumers, strict=True):
        if lost[u]:
            stuck[v] = True
            lost[v] = unsaveable[v]
    return ForcedValues(lost, stuck)


def check_feasible(problem: Problem, rules: ForcedValues | None = None) -> None:
    """Raises `Infeasible`, naming the path of conflicting rules, if the bans leave no plan."""
    lost = (rules or forced_values(problem)).unavailable
    victims = np.flatnonzero(lost & problem.needed)
    if not len(victims):
        return
    path = _trace(problem, lost, int(victims[0]))
    lines = "\n".join(f"  {placed(name, problem.places[problem.index[name]])}: {'; '.join(why)}" for name, why in path)
    raise Infeasible(
        f"no plan can make {problem.names[victims[0]]!r} available in the backward pass. "
        f"These rules contradict each other:\n{lines}\n{REMEDY}",
        path,
    )


def _trace(problem: Problem, lost: BoolArray, victim: int) -> list[tuple[str, tuple[str, ...]]]:
    chain = [victim]
    while not problem.cannot_recompute.mask[chain[-1]]:
        arguments = problem.producers[problem.consumers == chain[-1]]
        chain.append(int(arguments[lost[arguments]][0]))
    chain.reverse()
    path: list[tuple[str, tuple[str, ...]]] = []
    for position, v in enumerate(chain):
        banned = problem.cannot_recompute.reason(v) or f"uses {problem.names[chain[position - 1]]!r}"
        why = [cannot_be("saved", str(problem.cannot_save.reason(v))), cannot_be("recomputed", banned)]
        if v == victim:
            why.append("needed by the backward pass")
        path.append((problem.names[v], tuple(why)))
    return path
