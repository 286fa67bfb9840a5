"""Warns if a budget of saved memory raises the peak, because recomputed values are alive for a while, too.

At a tenth of what PyTorch's default plan saves, the predicted peak of the VGG-16 in the corpus rises from 3.0 to 3.6
GiB. The plan keeps the budget of saved memory, but a user who needs less memory in total should know this.
"""

from __future__ import annotations

from collections.abc import Sequence

from remat.answer.choice import Choice
from remat.improve.byte_budgets import default_plan
from remat.improve.joint_peak import JointPeak
from remat.improve.subproblem import Subproblem
from remat.words import human_bytes


def peak_rise(parts: Sequence[Subproblem], choices: Sequence[Choice]) -> str | None:
    """Returns a warning if choices within a budget have a higher peak than PyTorch's default plans; else None.

    Peaks are those of `remat.timeline`: of the compiled step, if a graph records its calls, with copies to a host
    between its kernels.

    Args:
        parts: subproblems whose saved values are alive at the same time; often one.
        choices: the choice for each of them, over the values of its problem.
    """
    plans = [default_plan(part.graph) for part in parts]
    default = [Choice.from_plan(part.problem, plan) for part, plan in zip(parts, plans, strict=True) if plan]
    if len(default) < len(parts):
        return None
    peaks = JointPeak(parts)
    peak, default_peak = peaks.of(choices), peaks.of(default)
    if peak <= default_peak:
        return None
    before, after = human_bytes(default_peak), human_bytes(peak)
    if before == after:
        before, after = f"{default_peak} bytes", f"{peak} bytes"
    return (
        f"this budget of saved memory raises the predicted peak from {before}, that of PyTorch's default plan, to "
        f'{after}: what is recomputed takes memory, too. To limit total memory, say of="peak"'
    )
