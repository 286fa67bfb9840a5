"""Describes the plan that a joint graph needs: under which cost model, for which sizes, within which budget."""

from __future__ import annotations

from contextlib import AbstractContextManager

from torch import fx

from remat.answer.plan import Plan
from remat.answer.solver import Solver
from remat.facts.graph import Graph
from remat.improve.choose import choose, search
from remat.improve.subproblem import subproblem_of
from remat.problem.costmodel import CostModel
from remat.problem.features import ONE_BUDGET, check_features, features_of
from remat.pytorch.run.calls import Compilation
from remat.pytorch.run.on_device import check_device
from remat.pytorch.run.planned_graph import ChosenPlan
from remat.pytorch.run.sizes import counted_storages, keep_within, limits_of, saved_sizes, sizes_to_plan_for
from remat.pytorch.seam.symbols import assumed


class PlanRequest:
    """Describes a joint graph that needs a plan.

    Args:
        is_region: whether the graph is the body of a `nested_compile_region`, whose values the graph around it saves.
    """

    def __init__(
        self,
        cost_model: CostModel,
        solver: Solver | None,
        joint_graph: fx.Graph,
        compilation: Compilation | None,
        *,
        is_region: bool,
        copy_stream: bool,
    ) -> None:
        self.cost_model, self.solver, self.joint_graph = cost_model, solver, joint_graph
        self.compilation, self.is_region, self.copy_stream = compilation, is_region, copy_stream
        seen = {} if compilation is None else compilation.sizes_seen(joint_graph)
        self._tried = sizes_to_plan_for(joint_graph, cost_model, seen)

    @property
    def others_may_follow(self) -> bool:
        """Returns whether other graphs that share the budget may run in the same step."""
        return self.compilation is not None and self.compilation.others and not self.is_region

    def sizes(self) -> AbstractContextManager[None]:
        """Returns a context in which the graph is read with the sizes for which it is planned."""
        return assumed(self._tried[0])

    def take_smaller_sizes(self) -> bool:
        """Takes the next smaller sizes to plan for; returns False if there are none."""
        if len(self._tried) > 1:
            self._tried.pop(0)
            return True
        return False

    def plan(self, graph: Graph) -> ChosenPlan:
        """Chooses a plan for the graph, which was read with the present sizes."""
        if self.is_region:
            check_device(self.cost_model, is_alone=False)
        if self.compilation is not None and not self.is_region:
            return self.compilation.plan(graph, self.joint_graph, self.solver, copy_stream=self.copy_stream)
        if self.compilation is not None and self.compilation.budget.limit_bytes is not None:
            part = subproblem_of(graph, self.cost_model)
            check_features(features_of(part.problem), "a nested_compile_region within a budget in bytes", ONE_BUDGET)
            return ChosenPlan(part.smallest_choice.plan(part.problem), "least saved")
        if self.cost_model.offload_device is not None and not self.copy_stream:
            problem = self.cost_model.pose(graph)
            return ChosenPlan.of(search(graph, problem, self.cost_model, self.solver, hides_copies=False))
        return ChosenPlan.of(choose(graph, self.cost_model, self.solver))

    @property
    def activation_inputs(self) -> list[str]:
        """Returns the names of the inputs that earlier graphs of the run computed, and that need gradients."""
        known = None if self.is_region else self.compilation
        return [] if known is None else known.activation_inputs_of(self.joint_graph)

    def record_plan(self, graph: Graph, plan: Plan) -> None:
        """Records the plan, and makes Dynamo compile another graph for sizes at which the plan exceeds the budget."""
        saved_limit, peak_limit = limits_of(self.cost_model)
        compilation = None if self.is_region else self.compilation
        owners = counted_storages(graph, plan, self.activation_inputs)
        if compilation is not None:
            compilation.sizes_seen(self.joint_graph).update(self._tried[0])
            if not compilation.record_plan(graph, plan, self.joint_graph) and saved_limit is not None:
                saved_limit = sum(int(graph.bytes[owner]) for owner in owners)
        sizes = saved_sizes(self.joint_graph, graph, owners)
        keep_within(self.joint_graph, sizes, self._tried[0], saved_limit, peak_limit)
