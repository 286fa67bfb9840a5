"""Writes a plan into the graph of a whole training step, as tags that a trainer's own pass follows.

Graph-based trainers, such as torchtitan's GraphTrainer, trace forward pass, loss and backward pass as one graph, and
never call AOTAutograd's partitioner. A *memory policy* tags the nodes of the forward pass in `node.meta["recompute"]`.
A later pass (torchtitan's `selective_activation_remat_pass`, torch's `remat_using_tags_for_fwd_loss_bwd_graph`)
computes a node that is tagged for recomputation again, right before the first node of the backward pass that needs it.
It follows tags through operands, up to nodes without such a tag, and these stay in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from remat.answer.plan import Plan
from remat.answer.registry import find_costmodel
from remat.answer.solver import Solver
from remat.errors import InvalidOption
from remat.facts.annotations import recompute_parameter_copies
from remat.facts.argument_checks import checked_flag
from remat.facts.columns import BoolArray, mask_of
from remat.facts.graph import Graph
from remat.facts.lazy_field import LazyField
from remat.improve.choose import choose
from remat.improve.one_liners import layers_of
from remat.problem.costmodel import CostModel
from remat.proof.validate import legal_choice
from remat.pytorch.read.capture import read_step, seed_of
from remat.pytorch.read.extract import OVERWRITTEN
from remat.pytorch.read.operators import Operator
from remat.pytorch.seam.kernel_order import meta_of_order
from remat.pytorch.seam.torch_names import updates_statistics, written_arguments

_BACKWARD = "autograd_backward"
"""The key in `node.meta` by which the passes that recompute know the nodes of the backward pass."""
_BACKWARD_OF_TORCH_2_11 = {"remat_pass_tag": "is_backward"}
"""What the pass of torch 2.11 reads in `node.meta["custom"]` instead; without it, that pass recomputes nothing."""


@dataclass(frozen=True)
class MemoryPolicy:
    """Tags a traced training step with a plan: `policy(module, config=...)` returns the module with its tags.

    This is the contract of torchtitan's memory policies: `register_memory_policy("remat")(MemoryPolicy(...))`. The
    trainer's pass refuses to recompute random operators, so no plan does that. Operators that write to a tensor, and
    operators that read what is written, are not recomputed, either.

    Attributes:
        how: a plan for `graph(module)`, or the name or instance of a cost model, with which `remat.choose` finds a plan
            for each traced step.
        solver: as for `remat.choose`.
        across_layers: whether a recomputation may run into another layer. By default, what enters a layer is never
            recomputed: a trainer recomputes one layer at a time, and its other passes (prefetches, overlapped
            communication) expect that. A layer is a module with a number in its path, or, in a graph without module
            paths, a block that repeats. This limits the search, not a plan that you pass.
        compiled: whether Inductor compiles the tagged graph as a whole, so that kernels are fused. Otherwise, every
            operator is a kernel, and every value is in memory.
        kept_modules: modules of which nothing is recomputed, and nothing that their backward passes read. The pass of
            torchtitan recomputes nothing before the backward passes of `lm_head` and `loss` are over.
        recompute_parameter_copies: as for `remat.compile`: gathers sharded parameters again, in the backward pass.

    >>> import torch
    >>> from torch.fx.experimental.proxy_tensor import make_fx
    >>> def step(w, x):
    ...     loss = (x @ w).sin().sum()
    ...     return loss, *torch.autograd.grad(loss, [w])
    >>> module = make_fx(step)(torch.ones(3, 3, requires_grad=True), torch.ones(2, 3))
    >>> policy = MemoryPolicy("memory-budget:budget=0")
    >>> {node.name: node.meta["recompute"].name for node in policy(module).graph.nodes if "recompute" in node.meta}
    {'mm': 'MUST_RECOMPUTE', 'sin': 'MUST_SAVE', 'sum_1': 'MUST_SAVE'}
    """

    how: Plan | CostModel | str
    solver: str | Solver | None = None
    across_layers: bool = False
    compiled: bool = False
    kept_modules: tuple[str, ...] = ("lm_head", "loss")
    recompute_parameter_copies: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.how, Plan):
            find_costmodel(self.how)  # an unknown name raises here, where the user typed it
        for flag in ("across_layers", "compiled", "recompute_parameter_copies"):
            checked_flag(f"MemoryPolicy.{flag}", getattr(self, flag))
        if isinstance(self.kept_modules, str):
            raise InvalidOption(f"MemoryPolicy.kept_modules must be a tuple of paths, got {self.kept_modules!r}")

    def graph(self, module: fx.GraphModule) -> Graph:
        """Returns the graph for which plans are made: a traced step without its tags, with the bans of its trainer.

        Raises:
            CaptureError: as for `remat.pytorch.read_step`.
        """
        return self._as_run(self._with_calls(module))

    def plan(self, module: fx.GraphModule) -> Plan:
        """Returns the plan for a traced step; errors are those of `graph` and `remat.choose`."""
        return self.how if isinstance(self.how, Plan) else self._chosen(self._with_calls(module), self.how)

    def __call__(self, module: fx.GraphModule, *, config: object = None) -> fx.GraphModule:
        """Tags the forward nodes of a traced step, and returns the same module.

        What the plan recomputes is tagged MUST_RECOMPUTE, what it offloads MUST_CPU_OFFLOAD, and all else MUST_SAVE,
        which keeps nothing that the backward pass does not read. Where no node is marked as one of the backward pass
        (`node.meta["autograd_backward"]`), all nodes from the gradient of the loss on are marked.

        Args:
            module: as for `remat.pytorch.read_step`.
            config: the trainer's configuration, which the contract has; it is ignored.

        Raises:
            InvalidPlan: the plan was made for another graph, or is not legal for this one.
            InvalidOption: the plan offloads values, and the installed torch has no tag for that.
            CaptureError, Infeasible, LimitReached: as for `plan`.
        """
        del config
        with_calls = self._with_calls(module)
        graph = self._as_run(with_calls)
        plan = self.how if isinstance(self.how, Plan) else self._chosen(with_calls, self.how)
        choice = legal_choice(graph, plan)
        offload = getattr(CheckpointPolicy, "MUST_CPU_OFFLOAD", None)
        if choice.offloaded.any() and offload is None:
            raise InvalidOption("the plan offloads values, and this torch has no CheckpointPolicy.MUST_CPU_OFFLOAD")
        # Views of what is offloaded would keep it on the device: they are made again of what comes back.
        again = choice.recomputed | (graph.view & choice.offloaded[graph.base])
        backward = _backward_of(module)
        for node in module.graph.nodes:
            i = graph.index.get(node.name)
            if node in backward:
                node.meta[_BACKWARD] = True
                node.meta["custom"] = {**node.meta.get("custom", {}), **_BACKWARD_OF_TORCH_2_11}
            elif node.op == "call_function":
                kept = offload if i is not None and choice.offloaded[i] else CheckpointPolicy.MUST_SAVE
                node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE if i is not None and again[i] else kept
        return module

    def _as_run(self, with_calls: Graph) -> Graph:
        if self.compiled:
            return with_calls
        # Without the calls of its operators, a graph has no kernels but its values.
        return replace(
            with_calls,
            fusible=with_calls.fusible & False,
            fusible_uses=with_calls.fusible_uses & False,
            arguments=LazyField[tuple[str, ...]](()),
        )

    def _chosen(self, with_calls: Graph, cost_model: CostModel | str) -> Plan:
        # Copies to the host are timed beside kernels, which only a graph with calls has.
        hosts = find_costmodel(cost_model).offload_device is not None
        plan = choose(with_calls if hosts else self._as_run(with_calls), cost_model, self.solver).plan
        assert plan is not None  # `choose` raises
        return plan

    def _with_calls(self, module: fx.GraphModule) -> Graph:
        *_, end = module.graph.nodes
        nodes = {node.name: node for node in module.graph.nodes}
        graph = read_step(module, len(end.all_input_nodes) - 1, as_is=True)
        if self.recompute_parameter_copies:
            graph = recompute_parameter_copies(graph)
        backward = _backward_of(module)
        later = np.array([name not in nodes or nodes[name] in backward for name in graph.names], np.bool_)
        seeded = np.array([name in nodes and Operator.of(nodes[name]).seeded for name in graph.names], np.bool_)
        bans = (
            graph.cannot_recompute.also(seeded, "the pass that recomputes does not repeat random numbers")
            .also(_written(graph, nodes), "it is in a tensor that is written in place, or reads one")
            .also(
                self._values_of_kept_modules(graph, later),
                "it is in a module of MemoryPolicy.kept_modules, or read by its backward",
            )
        )
        if not self.across_layers:
            bans = bans.also(_enters_layer(graph) & ~graph.must_recompute, "it enters a layer (across_layers=False)")
        # Here the backward pass reads memory as it finds it there, with or without a plan.
        readable = dict(graph.cannot_save.by_reason(graph.cannot_save.mask)).get(OVERWRITTEN, later)
        return replace(
            graph,
            meta={**graph.meta, **meta_of_order()},
            cannot_recompute=bans.without(later),  # the backward pass is where they run anyway
            cannot_save=graph.cannot_save.without(readable).also(
                later & ~graph.in_tangents, "only the backward pass computes it"
            ),
        )

    def _values_of_kept_modules(self, graph: Graph, later: BoolArray) -> BoolArray:
        within = np.array(
            [f"{path}.".startswith(tuple(f"{name}." for name in self.kept_modules)) for path in graph.modules]
        )
        kept = within & ~later
        kept[graph.producers[(within & later)[graph.consumers]]] = True
        return kept & ~graph.must_recompute


def _backward_of(module: fx.GraphModule) -> set[fx.Node]:
    """Returns the nodes of the backward pass: the marked ones or, without marks, all from the loss's gradient on."""
    *nodes, _ = module.graph.nodes
    seed = seed_of(module.graph)
    marked = {node for node in nodes if node.meta.get(_BACKWARD)}
    return marked | {seed} if marked else set(nodes[nodes.index(seed) :])  # torch does not mark the seed


def _enters_layer(graph: Graph) -> BoolArray:
    """Returns a mask (n,) of the storage owners that a layer reads from another layer, or from outside of layers."""
    layers = layers_of(graph)
    crossing = (layers[graph.consumers] >= 0) & (layers[graph.producers] != layers[graph.consumers])
    return mask_of(graph.base[graph.producers[crossing]], len(graph)) & ~graph.leaf


# AOTAutograd removes such writes from its graphs, `make_fx` does not.
def _written(graph: Graph, nodes: Mapping[str, fx.Node]) -> BoolArray:
    """Returns a mask (n,) of the values in storages to which an operator of the step writes, and of their readers."""
    written = np.zeros(len(graph), np.bool_)
    for v, name in enumerate(graph.names):
        node = nodes.get(name)
        leaves = [] if node is None else written_arguments(node.target, node.args, node.kwargs)
        targets = [leaf for leaf in leaves if isinstance(leaf, fx.Node)]
        if targets or (node is not None and updates_statistics(node.target)):
            written[[v, *(graph.index[target.name] for target in targets)]] = True
    written = graph.owners(written)[graph.base]
    return (written | mask_of(graph.consumers[written[graph.producers]], len(graph))) & ~graph.leaf
