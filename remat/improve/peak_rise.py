"""Warns if a budget of saved memory raises the peak, because recomputed values are alive for a while, too.

At a tenth of what PyTorch's default plan saves, the predicted peak of the VGG-16 in the corpus rises from 3.0 to 3.6
GiB. The plan keeps the budget of saved memory, but a user who needs less memory in total should know this.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace

from remat.answer.choice import Choice
from remat.answer.solver import Solver
from remat.improve.byte_budgets import default_plan, evenly_spaced
from remat.improve.joint_budget import split_choice, union_problem
from remat.improve.joint_peak import JointPeak
from remat.improve.subproblem import Subproblem
from remat.proof.budget import flow_solver
from remat.proof.hull import Hull, Vertex
from remat.proof.solve import solve
from remat.words import human_bytes

# This many vertices are tried before the bisection.
_LOOKED_AT = 6


def peak_rise(parts: Sequence[Subproblem], choices: Sequence[Choice], solver: str | Solver | None = None) -> str | None:
    """Returns a warning if choices within a budget have a higher peak than PyTorch's default plans; else None.

    Peaks are those of `remat.timeline`: of the compiled step, if a graph records its calls, with copies to a host
    between its kernels. The warning names the smallest budget found whose peak is not higher. The budgets tried are
    those of the vertices of the convex hull, which offload nothing. At such a budget the solver may find another plan
    of equal cost; so the peak of the solver's plan is checked, too.

    Args:
        parts: subproblems whose saved values are alive at the same time; often one.
        choices: the choice for each of them, over the values of its problem.
        solver: finds the plans for budgets; None takes the default of `remat.solve`.
    """
    plans = [default_plan(part.graph) for part in parts]
    default = [Choice.from_plan(part.problem, plan) for part, plan in zip(parts, plans, strict=True) if plan]
    if len(default) < len(parts):
        return None
    peaks = JointPeak(parts)
    peak, default_peak = peaks.of(choices), peaks.of(default)
    if peak <= default_peak:
        return None
    union = union_problem(parts)
    without_host = replace(union, offload=None)
    hull = Hull(without_host, flow_solver())

    def fits(choice: Choice) -> bool:
        return peaks.of([part_choice for _, part_choice in split_choice(parts, choice)]) <= default_peak

    vertices = [hull.smallest, *(edge.right for edge in hull.edges())]
    vertex, other_bytes = _first(vertices, lambda one: fits(one.choice)), None
    if vertex is not None:
        plan = solve(replace(without_host, budget_bytes=vertex.saved_bytes), solver, throw=False).plan
        other_bytes = vertex.saved_bytes if plan is not None and fits(Choice.from_plan(without_host, plan)) else None
    alone = " without a host" if union.offload is not None else ""
    other = f"No budget{alone} was found that does not"
    if other_bytes is not None:
        default_bytes = sum(
            part.times * one.saved_bytes(part.problem) for part, one in zip(parts, default, strict=True)
        )
        share = f"{other_bytes / max(default_bytes, 1):.0%} of what the default saves"
        other = f"The smallest budget{alone} found that does not is {other_bytes} bytes, {share}"
    before, after = human_bytes(default_peak), human_bytes(peak)
    if before == after:
        before, after = f"{default_peak} bytes", f"{peak} bytes"
    return (
        f"this budget of saved memory raises the predicted peak from {before}, that of PyTorch's default plan, to "
        f"{after}: what is recomputed takes memory, too. {other}. To limit "
        f'total memory, say of="peak"'
    )


def _first(vertices: Sequence[Vertex], fits: Callable[[Vertex], bool]) -> Vertex | None:
    """Finds the first vertex that fits: first among evenly spaced ones, then by bisection before it.

    To compute a peak takes long, so that few vertices are tried.
    """
    last_above = -1
    for at in dict.fromkeys(evenly_spaced(0, len(vertices) - 1, _LOOKED_AT)):
        if fits(vertices[at]):
            return vertices[bisect_left(range(at), True, last_above + 1, key=lambda i: fits(vertices[i]))]
        last_above = at
    return None
