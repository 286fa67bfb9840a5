"""Writes remarks about a plan: on a missed budget, on settings that predictions do not know, and on checkpoints."""

from __future__ import annotations

import math
from fractions import Fraction

from remat.answer.plan import Plan
from remat.facts.graph import Graph
from remat.improve.byte_budgets import default_plan, default_saved_bytes
from remat.predict.device_timeline import timeline
from remat.predict.in_flight import peak_in_flight
from remat.problem.costmodel import CostModel
from remat.pytorch.seam.torch_settings import unpredicted_settings
from remat.words import human_bytes

_WHY = {
    "saved": "every plan saves at least this, because some values must not be computed twice",
    "peak": "no plan with a lower peak was found: outputs, gradients and the running kernel's tensors stay in memory",
}
_CHECKPOINTED = (
    "the model is checkpointed already (torch.utils.checkpoint): the budget, and any share of a default, applies to "
    "the checkpointed model. For a budget of the whole model, switch that off: gradient_checkpointing=False, or "
    "model.gradient_checkpointing_disable()"
)


def remarks_on(graph: Graph, plan: Plan, cost_model: CostModel) -> dict[str, str]:
    """Returns remarks, by subject, about a plan for a graph that shares its budget with no other graph."""
    told: dict[str, str] = {}
    if not cost_model.limits_memory:
        return told
    for share in [limit for limit in cost_model.saved_limits if isinstance(limit, Fraction)]:
        got_bytes = cost_model.pose_without_peak(graph).budget_bytes or 0
        told |= _missed_share("saved", share, got_bytes, default_saved_bytes(graph))
    for share in [limit for limit in cost_model.peak_limits if isinstance(limit, Fraction)]:
        if (default := default_plan(graph)) is not None:
            lines, calls = (timeline(graph, plan), timeline(graph, default)), cost_model.calls_in_flight
            told |= _missed_share("peak", share, *(peak_in_flight(graph, line, calls) for line in lines))
    if names := unpredicted_settings():
        told["settings"] = (
            f"torch._inductor.config.{', '.join(names)}: not the default, which predicted peaks and step times assume. "
            f"A checked peak comes from Inductor's code, with the settings"
        )
    if (graph.must_recompute | graph.prefer_recompute).any():
        told["checkpointed"] = _CHECKPOINTED
    return told


def _missed_share(of: str, share: Fraction, got_bytes: int, all_bytes: int) -> dict[str, str]:
    asked_bytes = math.floor(share * all_bytes)
    if got_bytes <= asked_bytes:
        return {}
    got = f"{human_bytes(got_bytes)}, {got_bytes / max(all_bytes, 1):.0%}"
    what, takes = {
        "saved": ("what PyTorch's default plan saves", "takes"),
        "peak": ("the predicted peak of PyTorch's default plan", "is predicted to take"),
    }[of]
    asked = f"{float(share):.0%} of {what} ({human_bytes(asked_bytes)})"
    return {of: f"{asked} was asked for, but a graph of the model {takes} {got}: {_WHY[of]}"}
