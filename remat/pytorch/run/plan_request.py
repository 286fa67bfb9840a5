"""Describes the plan that a joint graph needs: under which cost model, for which sizes, within which budget."""

from __future__ import annotations

from contextlib import AbstractContextManager

import numpy as np
from torch import fx

from remat.answer.plan import Plan
from remat.answer.solver import Solver
from remat.facts.graph import Graph
from remat.improve.choose import choose, search
from remat.improve.subproblem import subproblem_of
from remat.problem.costmodel import CostModel
from remat.problem.features import ONE_BUDGET, check_features, features_of
from remat.pytorch.run.calls import Compilation, current_compilation
from remat.pytorch.run.on_device import check_device, plan_on_device
from remat.pytorch.run.planned_graph import ChosenPlan
from remat.pytorch.run.shared_storages import Boundary
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
        *,
        is_region: bool,
        copy_stream: bool,
    ) -> None:
        self.cost_model, self.solver, self.joint_graph = cost_model, solver, joint_graph
        self.is_region, self.copy_stream = is_region, copy_stream
        self._compilation = None if is_region else current_compilation()
        self._seen: dict[str, int] = {}  # the sizes for which the same graph was planned before
        if self._compilation is not None:
            structure = hash(tuple((node.name, str(node.target)) for node in joint_graph.nodes))
            self._seen = self._compilation.budget.largest.setdefault(structure, self._seen)
        self._tried = sizes_to_plan_for(joint_graph, cost_model, self._seen)

    @property
    def others_may_follow(self) -> bool:
        """Returns whether other graphs that share the budget may run in the same step."""
        return self._compilation is not None and self._compilation.others

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
        if self._compilation is not None:
            return self._within(self._compilation, graph)
        if self.is_region:
            check_device(self.cost_model, is_alone=False)
            around = current_compilation()
            if around is not None and around.budget.limit_bytes is not None:
                who = "a nested_compile_region within a budget in bytes"
                part = subproblem_of(graph, self.cost_model)
                check_features(features_of(part.problem), who, ONE_BUDGET)
                return ChosenPlan(part.smallest_choice.plan(part.problem), "least saved")
        if self.cost_model.offload_device is not None and not self.copy_stream:
            problem = self.cost_model.pose(graph)
            return ChosenPlan.of(search(graph, problem, self.cost_model, self.solver, hides_copies=False))
        return ChosenPlan.of(choose(graph, self.cost_model, self.solver))

    def _within(self, compilation: Compilation, graph: Graph) -> ChosenPlan:
        budget, model = compilation.budget, compilation.budget.cost_model
        if model.device_limits:
            check_device(model, is_alone=not compilation.others)
            planned = graph.bytes[graph.input & (np.array(graph.dtypes) != "")].sum()
            larger = max(int(planned) - sum(tensor.nbytes for tensor in compilation.inputs), 0)
            alive = [*compilation.owned, *compilation.inputs]
            return ChosenPlan.of(plan_on_device(graph, model, self.solver, alive, larger_bytes=larger))
        others, copy_stream = compilation.others, self.copy_stream
        return budget.plan_for(graph, self.solver, self.activation_inputs, others=others, copy_stream=copy_stream)

    @property
    def activation_inputs(self) -> list[str]:
        """Returns the names of the inputs that earlier graphs of the run computed, and that need gradients."""
        made = frozenset[int]() if self._compilation is None else self._compilation.activation_inputs
        inputs = self.joint_graph.find_nodes(op="placeholder")
        return [node.name for node in inputs if getattr(node.meta.get("desc"), "idx", None) in made]

    def record_plan(self, graph: Graph, plan: Plan) -> None:
        """Records the plan, and makes Dynamo compile another graph for sizes at which the plan exceeds the budget."""
        saved_limit, peak_limit = limits_of(self.cost_model)
        owners = counted_storages(graph, plan, self.activation_inputs)
        self._seen.update(self._tried[0])
        if (compilation := self._compilation) is not None:
            boundary, inputs = Boundary.of(graph, self.joint_graph), self.activation_inputs
            compiled_graph = compilation.budget.add_compiled(graph, plan, inputs, boundary, others=compilation.others)
            compilation.compiled_graph = compiled_graph
            if not compiled_graph.may_take_all and saved_limit is not None:
                saved_limit = sum(int(graph.bytes[owner]) for owner in owners)
        sizes = saved_sizes(self.joint_graph, graph, owners)
        keep_within(self.joint_graph, sizes, self._tried[0], saved_limit, peak_limit)
