"""Says where a budget of saved memory makes the peak higher: what is recomputed is alive for a while, too.

At a tenth of what PyTorch's default plan saves, the predicted peak of the VGG-16 in the corpus rises from 3.0 to 3.6
GiB. Less saved memory is what was asked for, and what is given; whoever means all memory should know.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from remat.answer.choice import Choice
from remat.answer.solver import Solver
from remat.improve.byte_budgets import default_plan, evenly_spaced
from remat.improve.joint_budget import JointPeak, Subproblem, split, union_problem
from remat.proof.budget import flow_solver
from remat.proof.hull import Hull, Vertex
from remat.proof.solve import solve
from remat.words import human_bytes

_LOOKED_AT = 6
"""Budgets to try first."""


@dataclass(frozen=True)
class PeakRise:
    """A peak above that of PyTorch's default plan, in bytes.

    Attributes:
        peak_bytes: of the plan within the budget.
        default_saved_bytes, default_peak_bytes: of PyTorch's default plan.
        other_bytes: the smallest budget found whose plan, without a host, has no higher peak; None if none was.
        has_host: values could be offloaded.
    """

    peak_bytes: int
    default_saved_bytes: int
    default_peak_bytes: int
    other_bytes: int | None
    has_host: bool

    def __str__(self) -> str:
        """For the warning."""
        budget = self.other_bytes
        alone = " without a host" if self.has_host else ""
        other = f"No budget{alone} was found that does not"
        if budget is not None:
            share = f"{budget / max(self.default_saved_bytes, 1):.0%} of what the default saves"
            other = f"The smallest budget{alone} found that does not is {budget} bytes, {share}"
        return (
            f"this budget of saved memory raises the predicted peak from {human_bytes(self.default_peak_bytes)}, that "
            f"of PyTorch's default plan, to {human_bytes(self.peak_bytes)}: what is recomputed takes memory, too. "
            f'{other}. For a budget of all memory, say of="peak"'
        )


def peak_rise(
    parts: Sequence[Subproblem], choices: Sequence[Choice], solver: str | Solver | None = None
) -> PeakRise | None:
    """Compares choices within a budget with PyTorch's default plans; None if the peak is no higher.

    Peaks are those of `remat.timeline`: of the compiled step, if a graph knows its calls, with copies to a host between
    its kernels. Other budgets are those of vertices of the frontier, which offload nothing; of plans that cost as much
    the solver may return another one, so that its own plan has to fit, too.

    Args:
        parts: graphs whose saved values are alive at the same time; often one.
        choices: for each of them, over the values of its problem.
        solver: that finds the plans for budgets; when left out, that of `remat.solve`.
    """
    plans = [default_plan(part.graph) for part in parts]
    default = [Choice.from_plan(part.problem, plan) for part, plan in zip(parts, plans, strict=True) if plan]
    if len(default) < len(parts):
        return None
    peaks = JointPeak(parts)
    now, before = peaks.of(choices), peaks.of(default)
    if now <= before:
        return None
    union = union_problem(parts)
    alone = replace(union, offload=None)
    hull = Hull(alone, flow_solver())

    def fits(choice: Choice) -> bool:
        return peaks.of([mine for _, mine in split(parts, choice)]) <= before

    found, other = _first([hull.smallest, *(edge.right for edge in hull.edges())], lambda one: fits(one.choice)), None
    if found is not None:
        plan = solve(replace(alone, budget_bytes=found.saved_bytes), solver, throw=False).plan
        other = found.saved_bytes if plan is not None and fits(Choice.from_plan(alone, plan)) else None
    return PeakRise(now, peaks.saved_bytes(default), before, other, union.offload is not None)


def _first(vertices: Sequence[Vertex], fits: Callable[[Vertex], bool]) -> Vertex | None:
    """Finds the first vertex of some, evenly spaced, and then one before it, by halves. Each peak takes its time."""
    before = -1
    for at in dict.fromkeys(evenly_spaced(0, len(vertices) - 1, _LOOKED_AT)):
        if fits(vertices[at]):
            return vertices[bisect_left(range(before + 1, at), True, key=lambda i: fits(vertices[i])) + before + 1]
        before = at
    return None
