"""Holds a joint graph with its plan, and computes what a report says about it, with remarks for the user."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.answer.plan_facts import PlanFacts, no_recompute_saved_bytes
from remat.answer.solution import Solution
from remat.facts.graph import Graph
from remat.improve.byte_budgets import default_plan, default_saved_bytes
from remat.improve.one_liners import every_layer_checkpointed
from remat.improve.step_predictor import predictor_on
from remat.predict.buffers import records_calls
from remat.predict.device_timeline import timeline
from remat.predict.in_flight import peak_in_flight
from remat.problem.costmodel import CostModel
from remat.pytorch.run.sizes import counted_storages
from remat.pytorch.seam.torch_settings import unpredicted_settings
from remat.words import human_bytes

NO_OWN_BUDGET = ("all graphs together", "price of memory", "least saved", "another rank")
"""The values of `ChosenPlan.by` for a graph that has no budget of its own."""

# Why a plan takes more than the share that was asked for.
_WHY = {
    "saved": "every plan saves at least this, because some values must not be computed twice",
    "peak": "no plan with a lower peak was found: outputs, gradients and the running kernel's tensors stay in memory",
}
_CHECKPOINTED = (
    "the model is checkpointed already (torch.utils.checkpoint): the budget, and any share of a default, applies to "
    "the checkpointed model. For a budget of the whole model, switch that off: gradient_checkpointing=False, or "
    "model.gradient_checkpointing_disable()"
)


@dataclass(frozen=True)
class ChosenPlan:
    """Holds a plan, and how the plan was chosen.

    Attributes:
        plan: what to save and recompute.
        by: the name of the solver, or how the plan was found, in words.
        gap: the most that it costs above the best plan, as a fraction of its cost; None if unknown.
        is_proven: whether it is optimal, with a verified proof.
        checked_peak_bytes: its peak by the code that Inductor writes for it; None if that was not checked.
        check: the result of the check in a sentence; "" without a check.
        together: the result for all graphs that are alive at the same time, in a sentence; or "".
    """

    plan: Plan
    by: str
    gap: float | None = None
    is_proven: bool = False
    checked_peak_bytes: int | None = None
    check: str = ""
    together: str = ""

    @classmethod
    def of(cls, solution: Solution) -> ChosenPlan:
        """Takes the plan of a solution, with its gap and its proof."""
        assert solution.plan is not None  # callers raise an error if there is no plan
        return cls(solution.plan, solution.solver, solution.gap, solution.is_proven)


@dataclass(frozen=True, eq=False)
class PlannedGraph:
    """Holds a joint graph, and the plan with which it runs."""

    graph: Graph  # with the sizes for which it was planned
    chosen: ChosenPlan
    cost_model: str
    seconds: float  # how long it took to read the graph, and to choose and check the plan, perhaps in an earlier run
    from_cache: bool = False  # whether the plan is that of an earlier run, from torch's cache on disk
    copy_stream: bool = False
    remarks: tuple[str, ...] = ()  # see `remarks_on`
    # names of inputs that earlier graphs of the run computed, as far as this is known when the graph is compiled.
    activation_inputs: tuple[str, ...] = ()
    limits_memory: bool = False  # whether the cost model has a budget

    @property
    def plan(self) -> Plan:
        return self.chosen.plan

    @property
    def messages(self) -> tuple[str, ...]:
        return self.chosen.check, self.chosen.together, *self.remarks

    @cached_property
    def facts(self) -> PlanFacts:
        return PlanFacts.of(self.graph, self.plan)

    @cached_property
    def row(self) -> dict[str, Any]:
        """Returns the columns of `Report.as_frame` about this graph, except those of `steps`."""
        default = default_plan(self.graph)
        plans = {"": self.plan, "default_": default}
        # A graph that records no calls has no kernels to copy beside.
        beside = self.copy_stream and records_calls(self.graph)
        lines = {
            who: timeline(self.graph, plan, copy_stream=beside, torchs_order=who == "default_") if plan else None
            for who, plan in plans.items()
        }
        return {
            "values": len(self.graph),
            "saved_bytes": self.facts.saved_bytes,
            "handed_bytes": self._handed_bytes(self.plan),
            "default_handed_bytes": default and self._handed_bytes(default),
            "offloaded_bytes": self.facts.offloaded_bytes,
            "default_saved_bytes": default and PlanFacts.of(self.graph, default).saved_bytes,
            "no_recompute_saved_bytes": no_recompute_saved_bytes(self.graph),
            "copied_bytes": max(lines[""].saved_bytes - self.facts.saved_bytes, 0) if lines[""] else 0,
            **{f"{who}peak_bytes": None if line is None else line.peak_bytes for who, line in lines.items()},
            "checked_peak_bytes": self.chosen.checked_peak_bytes,
            "recomputed_ops": len(self.facts.recomputed_ops),
            "cost_model": self.cost_model,
            "chosen_by": self.chosen.by,
            "gap": self.chosen.gap,
            "is_proven": self.chosen.is_proven,
            "seconds": self.seconds,
            "from_cache": self.from_cache,
        }

    @cached_property
    def steps(self) -> dict[str, Any]:
        """Returns the columns of `Report.as_frame` with modelled times of the step, on the graph's own device."""
        default, predictor = default_plan(self.graph), None if self.plan.offloaded else predictor_on(self.graph)
        saved = {"": self.plan, "default_": default, "checkpointed_": None}
        masks = {who: plan and Choice.from_plan(self.graph, plan, offload=True).saved for who, plan in saved.items()}
        masks["checkpointed_"] = every_layer_checkpointed(self.graph) if default else None
        ns = {who: None if mask is None or predictor is None else predictor.ns(mask) for who, mask in masks.items()}
        return {f"{who}step_ns": time for who, time in ns.items()}

    def _handed_bytes(self, plan: Plan) -> int:
        owners = counted_storages(self.graph, plan, self.activation_inputs)
        return sum(int(self.graph.bytes[owner]) for owner in owners if self.graph.input[owner])

    def __str__(self) -> str:
        hosted = f" and offloads {human_bytes(self.facts.offloaded_bytes)}" if self.plan.offloaded else ""
        when = "from torch's cache" if self.from_cache else f"{self.seconds:.2f} s"
        return (
            f"a graph of {len(self.graph)} values saves {human_bytes(self.facts.saved_bytes)}{hosted}, recomputes "
            f"{len(self.facts.recomputed_ops)} operators ({self.cost_model}, {self.chosen.by}, {when})"
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
