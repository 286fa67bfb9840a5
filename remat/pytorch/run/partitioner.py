"""Chooses a plan for each joint graph, and splits the graph by it with torch's own partitioner."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, get_args
from uuid import uuid4

from torch import fx

from remat.answer import registry
from remat.answer.handover import handed_over
from remat.answer.option_text import label
from remat.answer.plan import Plan
from remat.answer.solver import Solver, check_time_limit
from remat.errors import Infeasible, InvalidOption, InvalidPlan, LimitReached, RematError
from remat.facts.annotations import recompute_parameter_copies
from remat.facts.argument_checks import checked_flag
from remat.facts.bans import cannot_be
from remat.facts.graph import Graph
from remat.improve.peak_search import measuring_with
from remat.improve.progress import ending_within
from remat.problem.constraints import base_problem
from remat.problem.costmodel import CostModel
from remat.proof.certify import check_plan
from remat.pytorch.read.extract import extract
from remat.pytorch.read.mutated_inputs import keep_old_values, split_joint_graph
from remat.pytorch.read.operators import Operator, is_dropout_free
from remat.pytorch.run import ranks
from remat.pytorch.run.cache_key import key_of
from remat.pytorch.run.cached_plans import store_plans
from remat.pytorch.run.calls import current_compilation
from remat.pytorch.run.offload_copies import add_copies
from remat.pytorch.run.peak_check import PeakCheck
from remat.pytorch.run.plan_log import Log
from remat.pytorch.run.plan_request import PlanRequest
from remat.pytorch.run.planned_graph import NO_OWN_BUDGET, ChosenPlan, PlannedGraph, remarks_on
from remat.pytorch.run.replay import Plans, plan_for, plans_of
from remat.pytorch.seam.compilations import own_errors
from remat.pytorch.seam.kernel_order import meta_of_order
from remat.pytorch.seam.torch_names import CustomPartitionerFn
from remat.pytorch.seam.torch_partitioner import hide_marks, torchs_budget, torchs_budget_setting, torchs_partition

OnError = Literal["raise", "fallback"]

_PLANNED_AGAIN = ". If other graphs run in the same step, all graphs are planned again together after the first steps"


@dataclass(frozen=True)
class Partitioner(CustomPartitionerFn):
    """Splits joint graphs for `torch._inductor.config.custom_partitioner_fn`.

    It poses the problem of a joint graph under the cost model, solves it, and certifies the plan; or it replays a plan,
    with the same checks. A plan that fails a check never runs. Under `torch.distributed`, all ranks with the same graph
    use one plan; a rank that finds no plan uses that of another rank.

    Attributes:
        cost_model: sets prices and bans. Without one, `of` takes the default; a graph for which PyTorch has a memory
            budget then gets `MemoryBudget` of that budget (see `remat.compile`).
        solver: solves the problem; None for the default solver of `remat.solve`.
        plans: plans to replay instead of solving, each for the graph for which it was made.
        recompute_parameter_copies: whether no copy of a parameter is saved (see `remat.recompute_parameter_copies`).
        on_error: what to do if there is no plan that passes the checks: "raise", or "fallback" to PyTorch's own
            partitioner, with a warning.
        time_limit_s: wall time in seconds for the search for each plan; None makes a short search (see `remat.choose`).
        follows_torch: whether a memory budget of PyTorch replaces the cost model.
        copy_stream: whether offloaded values are copied in a separate stream (see `remat.compile`).
        noted: modules and marks of the nodes of Dynamo's graph, on which a plan may depend, but torch's key does not.
        log: collects the plans for the report.
        check: collects the peaks that Inductor's code has under the plans.
    """

    cost_model: CostModel
    solver: Solver | None = None
    plans: tuple[Plan, ...] = ()
    recompute_parameter_copies: bool = False
    on_error: OnError = "raise"
    time_limit_s: float | None = None
    follows_torch: bool = False
    copy_stream: bool = False
    noted: tuple[object, ...] = ()
    log: Log = field(default_factory=Log, compare=False, repr=False)
    check: PeakCheck = field(default_factory=PeakCheck, compare=False, repr=False)

    def __post_init__(self) -> None:
        checked_on_error(self.on_error)
        check_time_limit(self.time_limit_s)
        checked_flag("recompute_parameter_copies", self.recompute_parameter_copies)
        checked_flag("copy_stream", self.copy_stream)

    @classmethod
    def of(
        cls,
        cost_model: str | CostModel | None = None,
        solver: str | Solver | None = None,
        *,
        plan: Plans | None = None,
        recompute_parameter_copies: bool = False,
        on_error: OnError = "raise",
        time_limit_s: float | None = None,
        copy_stream: bool = False,
        codegen: bool = True,
    ) -> Partitioner:
        """Makes a partitioner from names or instances."""
        plans = () if plan is None else plans_of(plan)
        if plans and (cost_model is not None or solver is not None):
            warnings.warn("a plan is given, so the cost model and the solver are ignored: leave out one", stacklevel=3)
        return cls(
            registry.find_costmodel(registry.DEFAULT_STEP_MODEL if cost_model is None else cost_model),
            None if solver is None else registry.find_solver(solver),
            plans,
            recompute_parameter_copies,
            on_error,
            time_limit_s,
            follows_torch=cost_model is None,
            copy_stream=copy_stream,
            check=PeakCheck(codegen=codegen),
        )

    @own_errors()
    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Splits a joint graph in two; torch calls this."""
        if self.on_error == "raise":
            return self._split(gm, joint_inputs, **kwargs)
        untouched = fx.GraphModule(gm, copy.deepcopy(gm.graph))
        try:
            return self._split(gm, joint_inputs, **kwargs)
        except Exception as error:  # any error: the step shall run with PyTorch's plan
            told = str(error) if isinstance(error, RematError) else f"{type(error).__name__}: {error}"
            why = told.splitlines()[0].rstrip(":")
            self.log.note(f"a graph of {len(untouched.graph.nodes) - 1} values runs PyTorch's own plan: {why}")
            warnings.warn(f"remat falls back to PyTorch's partitioner: {told}", stacklevel=2)
            if (under_way := current_compilation()) is not None:
                under_way.compiled_graph = None
            with suppress(Exception):  # PyTorch's gradients may be wrong without it, but it may be what failed
                keep_old_values(untouched)
            hide_marks(untouched)  # torch would refuse budgets of regions that differ
            return torchs_partition(untouched, joint_inputs, **kwargs)

    def _split(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        planned: list[PlannedGraph] = []

        def saved_nodes(joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int) -> list[fx.Node]:
            start = time.perf_counter()
            request, graph, chosen = self._agreed(joint_graph, node_info, num_fwd_outputs, is_region=not joint_inputs)
            handed = handed_over(graph, chosen.plan)
            request.record_plan(graph, chosen.plan)
            planned.append(
                PlannedGraph(
                    graph,
                    chosen,
                    "a plan that was given" if self.plans else label(request.cost_model),
                    seconds=time.perf_counter() - start,
                    copy_stream=self.copy_stream,
                    remarks=self._remarks(request, graph, chosen),
                    activation_inputs=tuple(request.activation_inputs),
                    limits_memory=request.cost_model.limits_memory and not self.plans,
                )
            )
            return [node for node in joint_graph.nodes if node.name in handed]

        forward, backward = split_joint_graph(gm, joint_inputs, saved_nodes, **kwargs)
        for mine in planned:  # none, where torch found nothing to save
            check_nothing_runs_twice(mine.graph, forward, backward)
            add_copies(
                mine.graph, mine.plan, forward, backward, kwargs["num_fwd_outputs"], copy_stream=self.copy_stream
            )
            self.log.add(mine)
        store_plans(planned, backward if joint_inputs else None)
        return forward, backward

    def _agreed(
        self, joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int, *, is_region: bool
    ) -> tuple[PlanRequest, Graph, ChosenPlan]:
        """Chooses a plan, or takes that of another rank."""
        try:
            cost_model, copy_stream = self._cost_model(), self.copy_stream
            request = PlanRequest(cost_model, self.solver, joint_graph, is_region=is_region, copy_stream=copy_stream)
            graph, mine = self._planned(request, node_info, num_fwd_outputs)
        except Exception as error:
            ranks.agreed_plan(error, None)  # the other ranks wait for this rank
            raise
        plan = ranks.agreed_plan(mine if isinstance(mine, Exception) else mine.plan, graph)
        if isinstance(plan, Exception):
            raise plan
        if isinstance(mine, Exception) or plan is not mine.plan:  # it must be legal for the graph of this rank, too
            check_plan(base_problem(graph, offload=True), plan)
            mine = ChosenPlan(plan, "another rank")
        if plan.offloaded and is_region:
            raise InvalidPlan(
                f"the plan offloads {plan.offloaded[0]!r} in the body of a nested_compile_region, where "
                f"nothing can be offloaded: take a plan that offloads nothing there"
            )
        return request, graph, mine

    def _remarks(self, request: PlanRequest, graph: Graph, chosen: ChosenPlan) -> tuple[str, ...]:
        """Warns of what a user should know of the plan, and returns these remarks."""
        if self.plans or chosen.by in NO_OWN_BUDGET:
            return ()
        remarks = remarks_on(graph, chosen.plan, request.cost_model)
        for about, remark in remarks.items():
            later = request.others_may_follow and about in ("saved", "peak")
            ranks.warn(f"remat: {remark}{_PLANNED_AGAIN if later else ''}", about)
        return tuple(remarks.values())

    # A memory budget of PyTorch counts if the user has asked for no other.
    def _cost_model(self) -> CostModel:
        budget, of_regions = torchs_budget()
        if budget == 1 and not of_regions:
            return self.cost_model
        if self.follows_torch and not self.plans:
            memory_budget: Any = registry.costmodel_class(registry.DEFAULT_BUDGET_MODEL)
            return memory_budget(budget, regions=of_regions or None)
        asked = " and ".join(map(str, of_regions.values())) or budget
        instead = "MemoryBudget(regions=...)" if of_regions else f"MemoryBudget({budget})"
        ranks.warn(
            f"PyTorch's memory budget of {asked} (activation_memory_budget, or that of a region) is ignored, "
            f"because a cost model or a plan is given: leave these out to use it, or take {instead}"
        )
        return self.cost_model

    def _planned(
        self, request: PlanRequest, node_info: Any, num_fwd_outputs: int
    ) -> tuple[Graph, ChosenPlan | Exception]:
        while True:
            with request.sizes():
                graph = extract(request.joint_graph, node_info, num_fwd_outputs, meta_of_order())
            if self.recompute_parameter_copies:
                graph = recompute_parameter_copies(graph)
            self.log.begin(graph)
            try:
                with measuring_with(self.check), ending_within(self.time_limit_s):
                    chosen = ChosenPlan(plan_for(graph, self.plans), "replayed") if self.plans else request.plan(graph)
                chosen = self.check.with_check(graph, chosen)
                check_plan(base_problem(graph, offload=True), chosen.plan)
            except Exception as error:  # any error, because the other ranks wait for this rank
                if isinstance(error, Infeasible | LimitReached) and request.take_smaller_sizes():
                    continue
                return graph, error
            return graph, chosen

    def uuid(self) -> str:
        """Returns a key for torch's cache that depends on everything that can change a plan: see `cache_key`.

        In three cases the key is a new one each time, so that nothing is found in the cache. With several ranks, a rank
        that finds its graph would leave the others waiting for its plan. With a fallback, and if a memory budget of
        PyTorch is ignored, a graph from the cache would run without the warning.
        """
        ignores = torchs_budget_setting() != 1 and (bool(self.plans) or not self.follows_torch)
        if ranks.several_ranks() or self.on_error == "fallback" or ignores:
            return uuid4().hex
        plans = [(plan.digest, plan.graph) for plan in self.plans]
        defaults = (registry.DEFAULT_SOLVER, registry.DEFAULT_BUDGET_SOLVER, registry.QUICK_BUDGET_SOLVER)
        solvers = [self.solver] if self.solver else [registry.find_solver(name) for name in defaults]
        settings = (
            self.recompute_parameter_copies,
            self.on_error,
            self.time_limit_s,
            self.follows_torch,
            self.copy_stream,
            self.check.codegen,
            self.noted,
        )
        return key_of(self.cost_model, solvers, plans, *settings)


def checked_on_error(on_error: Any) -> OnError:
    """Returns the same option; raises `InvalidOption` if it is neither "raise" nor "fallback"."""
    if on_error not in get_args(OnError):
        raise InvalidOption(f"on_error must be one of {', '.join(get_args(OnError))}, got {on_error!r}")
    return on_error


def check_nothing_runs_twice(graph: Graph, forward: fx.GraphModule, backward: fx.GraphModule) -> None:
    """Checks that no value that must not be computed twice is computed in both graphs."""
    both = {node.name for node in forward.graph.nodes if node.op == "call_function"}
    again = {node.name: node for node in backward.graph.nodes if node.op == "call_function" and node.name in both}
    for name in sorted(again.keys() & graph.index.keys()):
        reason = graph.cannot_recompute.reason(graph.index[name])
        if reason is None and Operator.of(again[name]).seeded and not is_dropout_free(again[name]):
            reason = "draws from the random number generator, and torch did not keep the state for it"
        if reason is not None:
            raise InvalidPlan(f"{name!r} would run in both passes, but {cannot_be('recomputed', reason)}")
