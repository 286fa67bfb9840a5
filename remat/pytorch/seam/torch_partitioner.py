"""Runs torch's own partitioner of joint graphs, with our choice of saved values or with its own.

Everything else stays torch's (common subexpressions, random numbers, effects, symbolic sizes, the extraction of the two
graphs): only `choose_saved_values_set` is replaced while the partitioner runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

from torch import fx

from remat.facts.module_paths import Marked
from remat.pytorch.seam.internals import internals
from remat.pytorch.seam.thread_patch import thread_local_patch, torchs_own
from remat.pytorch.seam.torch_names import CustomPartitionerFn
from remat.pytorch.seam.torch_settings import partitioner_settings

Chooser: TypeAlias = Callable[[fx.Graph, Any, int], list[fx.Node]]
"""Returns the values to save, given the joint graph, torch's `NodeInfo` and the number of forward outputs."""

_Budgets: TypeAlias = tuple[float, dict[Marked, float]]
_budgets: ContextVar[_Budgets] = ContextVar("_budgets", default=(1.0, {}))

_KEY = "_region_activation_memory_budget"
_PARTITIONERS = "torch._functorch.partitioners"
_CHOOSER = "choose_saved_values_set"


def partition(
    joint_module: fx.GraphModule,
    joint_inputs: Sequence[object],
    chooser: Chooser,
    *,
    num_fwd_outputs: int,
    **kwargs: Any,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Splits a joint graph into its forward and backward graphs, with our choice of saved values.

    Partitions in other threads are not affected.
    """

    def choose(joint_graph: fx.Graph, node_info: Any, memory_budget: float = 1) -> list[fx.Node]:
        token = _budgets.set(_resolved(joint_graph, node_info, float(memory_budget)))
        try:
            return chooser(joint_graph, node_info, num_fwd_outputs)
        finally:
            _budgets.reset(token)

    hide_marks(joint_module)
    # All random operators get their seeds from one operator, which has no mark of selective checkpointing up to torch
    # 2.13. In 2.15 it has the mark of the first random operator; recomputed, it would return other seeds.
    seeds_operator = internals("torch._inductor.inductor_prims").seeds
    for seeds in joint_module.graph.find_nodes(op="call_function", target=seeds_operator):
        seeds.meta.pop("recompute", None)
    with thread_local_patch(internals(_PARTITIONERS), _CHOOSER, choose):
        return torchs_partition(joint_module, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs)


@dataclass(frozen=True, eq=False)
class SplitBy(CustomPartitionerFn):
    """Splits joint graphs by a function, for `torch._inductor.config.custom_partitioner_fn`.

    Two with the same key are equal: `torch.compile` compares options to find what it has compiled.
    """

    function: Callable[..., tuple[fx.GraphModule, fx.GraphModule]]
    key: str | None = None  # for torch's caches

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        return self.function(gm, joint_inputs, **kwargs)

    def uuid(self) -> str | None:
        return self.key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SplitBy) and (self.key or self.function) == (other.key or other.function)

    def __hash__(self) -> int:
        return hash(self.key or self.function)


def region_budgets(graph_module: fx.GraphModule) -> dict[fx.Node, float]:
    """Returns the nodes that `region_activation_memory_budget` marks, in all graphs of a module, with their budgets."""
    graphs = [module.graph for module in graph_module.modules() if isinstance(module, fx.GraphModule)]
    notes: dict[fx.Node, dict[str, Any]] = {node: node.meta.get("custom") or {} for one in graphs for node in one.nodes}
    return {node: of_node[_KEY] for node, of_node in notes.items() if _KEY in of_node}


def hide_marks(joint_module: fx.GraphModule) -> None:
    """Moves budgets of regions out of "custom", where torch looks for them: it refuses budgets that differ."""
    for node, budget in region_budgets(joint_module).items():
        others = {name: note for name, note in node.meta["custom"].items() if name != _KEY}
        node.meta.update({"custom": others, _KEY: budget})


def _resolved(joint_graph: fx.Graph, node_info: Any, budget: float) -> _Budgets:
    computed = [node for node in joint_graph.nodes if node.op == "call_function"]
    of_forward = {node.meta.get(_KEY, budget) for node in computed if node_info.is_required_fw(node)}
    if len(of_forward) < 2:
        return next(iter(of_forward), budget), {}
    of_node = {node.name: node.meta.get(_KEY, budget) for node in computed if _KEY in node.meta or budget != 1}
    regions = [Marked(one, frozenset(name for name in of_node if of_node[name] == one)) for one in {*of_node.values()}]
    return 1.0, {region: region.budget for region in sorted(regions, key=lambda region: region.budget)}


def torchs_budget() -> _Budgets:
    """Returns torch's own memory budget of the joint graph that is being partitioned, and those of its regions.

    The first is `torch._functorch.config.activation_memory_budget`, 1 by default, or the graph's budget by
    `torch.autograd.graph.region_activation_memory_budget`. It is 1 if regions differ; otherwise the second is empty.
    """
    return _budgets.get()


def torchs_budget_setting() -> float:
    return float(internals("torch._functorch.config").activation_memory_budget)


def torchs_partition(
    joint_module: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    return internals(_PARTITIONERS).min_cut_rematerialization_partition(joint_module, joint_inputs, **kwargs)


def default_partition(
    joint_module: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Splits a joint graph so that every operator of the forward pass runs once.

    It may save values together with views of them: see `remat.pytorch.seam.torch_settings.nothing_donated`.
    """
    kwargs.pop("compiler", None)  # only torch's other partitioner takes it
    return internals(_PARTITIONERS).default_partition(joint_module, joint_inputs, **kwargs)


def torchs_choice(joint_graph: fx.Graph, node_info: Any, budget: float = 1.0) -> list[fx.Node]:
    """Returns the values that torch's own partitioner would save at a memory budget, with its default solver."""
    with partitioner_settings(
        activation_memory_budget=budget,
        activation_memory_budget_solver="dp",
        activation_memory_budget_runtime_estimator="flops",
    ):
        return torchs_own(internals(_PARTITIONERS), _CHOOSER)(joint_graph, node_info, budget)


@cache
def op_types() -> Any:
    """Returns torch's lists of fusible, compute-intensive, random and view operators."""
    return internals(_PARTITIONERS).get_default_op_list()
