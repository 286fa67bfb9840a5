"""Describes the plan that a joint graph needs: under which cost model, for which sizes, within which budget.

A shared budget is told of each graph that is compiled, and of each call that saves values."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, fx

from remat.answer.plan import Plan
from remat.answer.solver import Solver
from remat.facts.graph import Graph
from remat.improve.choose import choose, search
from remat.improve.subproblem import subproblem_of
from remat.problem.costmodel import CostModel
from remat.problem.features import ONE_BUDGET, check_features, features_of
from remat.pytorch.run.on_device import check_device, plan_on_device
from remat.pytorch.run.planned_graph import ChosenPlan
from remat.pytorch.run.shared_budget import CompiledGraph, SharedBudget
from remat.pytorch.run.shared_storages import Boundary, activations_of
from remat.pytorch.run.sizes import counted_storages, keep_within, limits_of, saved_sizes, sizes_to_plan_for
from remat.pytorch.seam.compilations import covers_whole_call
from remat.pytorch.seam.fakes import owned
from remat.pytorch.seam.reachable import reachable_tensors
from remat.pytorch.seam.symbols import assumed
from remat.pytorch.seam.torch_names import storage_of, tree_leaves


@dataclass
class ModelCall:
    """Describes a call of a model by its user."""

    budget: SharedBudget  # the one that the model's graphs share
    model: Callable[..., Any]
    arguments: Any = ()
    graphs: int = 0  # how many compiled graphs have run in this call so far

    def from_other_graphs(self, inputs: Sequence[Any]) -> dict[int, int]:
        """Finds the inputs of a graph that other graphs of the model computed and that need no gradient, such as masks.

        Inputs that need a gradient are known already when the graph is compiled.

        Returns:
            for each of their storages, its bytes.
        """
        tensors = [value for value in inputs if isinstance(value, Tensor) and not value.requires_grad]
        known = _storages(owned(self.model, self.arguments)) if tensors else {}
        return {storage: size for storage, size in _storages(tensors).items() if storage not in known}


@dataclass
class Compilation:
    """Holds what the plan of a graph depends on, while Dynamo compiles the graph within a budget."""

    budget: SharedBudget
    others: bool  # whether other graphs may follow in the same step
    inputs: Sequence[Tensor]  # of the graph
    # parameters, buffers and arguments of the model; empty if the memory of no device is limited.
    owned: Sequence[Tensor]
    activation_inputs: frozenset[int]  # positions of the inputs that earlier graphs computed, and that need gradients
    compiled_graph: CompiledGraph | None = None  # the compiled graph; None as long as there is no plan


# A tensor without a storage of its own, such as a sparse one, is left out.
def _storages(tensors: Sequence[Tensor]) -> dict[int, int]:
    found: dict[int, int] = {}
    for tensor in tensors:
        with suppress(NotImplementedError):
            found[storage_of(tensor)] = tensor.untyped_storage().nbytes()
    return found


_call: ContextVar[ModelCall | None] = ContextVar("_call", default=None)
_compilation: ContextVar[Compilation | None] = ContextVar("_compilation", default=None)


def current_compilation() -> Compilation | None:
    """Returns the compilation that is running in this thread; None if its graph shares no budget."""
    return _compilation.get()


@contextmanager
def counting_call(budget: SharedBudget, model: Callable[..., Any], arguments: Any) -> Generator[None]:
    """Makes all graphs that run in the block belong to one call of a model."""
    token = _call.set(ModelCall(budget, model, arguments))
    try:
        yield
    finally:
        _call.reset(token)


@contextmanager
def sharing_budget(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Generator[Compilation | None]:
    """Makes a graph that is compiled in the block share the budget of the running call; yields None without a call."""
    call = _call.get()
    if call is None:
        yield None
        return
    others = not (call.budget.is_alone and not call.graphs and covers_whole_call(graph_module, call.model))
    tensors = [(i, value) for i, value in enumerate(inputs) if isinstance(value, Tensor)]
    made = frozenset(i for i, tensor in tensors if others and tensor.requires_grad and not tensor.is_leaf)
    # The arguments are alive even if the graph does not read them.
    limited = call.budget.cost_model.device_limits
    alive = [*reachable_tensors(call.model, call.arguments), *owned(call.model, call.arguments)] if limited else []
    token = _compilation.set(Compilation(call.budget, others, [tensor for _, tensor in tensors], alive, made))
    try:
        yield _compilation.get()
    finally:
        _compilation.reset(token)


def with_counted_calls(compiled: Callable[..., Any], compiled_graph: CompiledGraph) -> Callable[..., Any]:
    """Wraps a compiled graph, so that the budget counts each call from its forward pass to its backward pass."""

    def run(*args: Any) -> Any:
        call = _call.get()
        is_new = call is not None and call.budget.is_alone and compiled_graph.is_careful
        elsewhere = call.from_other_graphs(args) if call is not None and is_new else {}
        results = compiled(*args)
        if call is not None:
            call.graphs += 1
            node = compiled_node([leaf.grad_fn for leaf in tree_leaves(results) if isinstance(leaf, Tensor)])
            if node is not None:
                activations = activations_of(
                    compiled_graph.boundary, compiled_graph.activation_inputs, elsewhere, args, results
                )
                call.budget.begin_call(compiled_graph, elsewhere, activations, node)
        return results

    return run


def compiled_node(nodes: Sequence[Any], ends: AbstractSet[Any] = frozenset()) -> Any:
    """Finds the nearest compiled node among some nodes of autograd, and what these read; None if there is none.

    Args:
        nodes: nodes of autograd; None for a tensor without one.
        ends: nodes behind which it does not search.
    """
    stack = [node for node in nodes if node is not None]
    seen = {*stack, *ends, None}
    for node in stack:
        if is_compiled(node):
            return node
        following = [source for source, _ in node.next_functions if source not in seen]
        seen.update(following)
        stack.extend(following)
    return None


def is_compiled(node: Any) -> bool:
    """Tells whether a node of autograd is the backward pass of a compiled graph."""
    return node.name() == "CompiledFunctionBackward"  # the name that AOTAutograd gives, whatever compiler it calls


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
