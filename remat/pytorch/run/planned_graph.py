"""Holds a joint graph with its plan, and computes what a report says about it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.answer.plan_facts import PlanFacts, no_recompute_saved_bytes
from remat.answer.solution import Solution
from remat.facts.graph import Graph
from remat.improve.byte_budgets import default_plan
from remat.improve.one_liners import every_layer_checkpointed
from remat.improve.step_predictor import predictor_on
from remat.predict.buffers import records_calls
from remat.predict.device_timeline import timeline
from remat.pytorch.run.sizes import counted_storages
from remat.words import human_bytes

NO_OWN_BUDGET = ("all graphs together", "price of memory", "least saved", "another rank")
"""The values of `ChosenPlan.by` for a graph that has no budget of its own."""


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
    remarks: tuple[str, ...] = ()  # see `remat.pytorch.run.remarks`
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
