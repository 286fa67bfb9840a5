"""Recomputes values across the kernels of one pass: the graph gets a copy of each value that is computed again.

TorchInductor itself inlines a pointwise value into every kernel that reads it, unless it writes the value to memory. It
writes values with many reads (`realize_reads_threshold`, `realize_acc_reads_threshold`, `realize_opcount_threshold` in
its settings), on CPUs an `exp`, `log`, `sigmoid` or `tanh` with several users, and values that a reduction in another
order, a matrix product or the caller reads. All other kernels then read them, too. In these cases the pass helps: for
figure 4 of the paper on a CPU, and for the backward passes of normalizations and gates, where several reductions read
the same gradient. It hardly helps transformers, where matrix products read nearly all large values. This was measured
on a CPU, with torch 2.13.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx

from remat.errors import UnsupportedTorch
from remat.improve.cross_kernel import Pass, recompute_across
from remat.pytorch.inductor.scheduled import InductorKernel, scheduled_kernels
from remat.pytorch.read.extract import extract
from remat.pytorch.run.cache_key import key_of
from remat.pytorch.seam.inductor_lowering import is_computed, lowered
from remat.pytorch.seam.torch_names import CustomGraphPass, HigherOrderOperator, tree_leaves

# The most schedules without success: each takes as long as lowering the graph.
_MOST_TRIALS = 16
# With more copies in one group, its readers share them.
_MOST_COPIES = 64


@dataclass(frozen=True)
class DuplicateAcrossKernels(CustomGraphPass):
    """Makes kernels recompute values that they would read, where Inductor then moves fewer bytes.

        from remat.pytorch.inductor.duplicate import DuplicateAcrossKernels
        torch.compile(model, options={"post_grad_custom_post_pass": DuplicateAcrossKernels()})

    Inductor runs this pass on each forward, backward or inference graph, after its own passes that match patterns or
    remove duplicates. The kernels are Inductor's (`dry_run`). `remat.improve.cross_kernel` decides pair by pair what to
    recompute, and a decision is kept if a new schedule of Inductor moves fewer bytes in no more kernels. So Inductor's
    own count never rises, except for its later changes: it makes some operators in-place. Only bytes count: arithmetic
    is free, however much of it a kernel repeats. Compilation takes two more lowerings as a rule, and about twenty where
    many trials fail.

    Graphs with symbolic sizes, and with operators that have a body (`cond`, a user's Triton kernel), are not changed.
    Random numbers, effects, collectives, and values that read memory that the graph writes to are never recomputed.
    Where Inductor's internals are unexpected, the graph is not changed, and a warning says so (only when the graph is
    compiled, not when it comes from a cache).
    """

    def __call__(self, graph: fx.Graph) -> None:
        if not can_dry_run(graph):
            return
        try:
            fused_pass, again = _decided(graph)
        except UnsupportedTorch:
            raise
        except Exception as error:  # an optimization must not make a training step fail
            message = f"DuplicateAcrossKernels leaves a graph as it is: {type(error).__name__}: {error}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
            return
        duplicate(graph, fused_pass, again)

    def uuid(self) -> str:
        """Returns the key for Inductor's caches: a hash of the code of `remat`."""
        return key_of(self)


def _decided(graph: fx.Graph) -> tuple[Pass, dict[int, frozenset[int]]]:
    kernels = dry_run(graph)
    fused_pass = pass_of(graph, kernels)
    recomputed = recompute_across(fused_pass).again
    readers = [k for k, values in enumerate(recomputed) if values]
    return fused_pass, {k: recomputed[k] for k in _Trials(graph, fused_pass, recomputed, kernels).keep(readers)}


# Bisection: tries all readers at once, then each half, and so on.
class _Trials:
    def __init__(
        self, graph: fx.Graph, fused_pass: Pass, recomputed: Sequence[frozenset[int]], kernels: Sequence[InductorKernel]
    ) -> None:
        self.graph, self.fused_pass, self.recomputed = graph, fused_pass, recomputed
        self.bytes, self.launches = sum(kernel.bytes for kernel in kernels), len(kernels)
        self.kept: list[int] = []
        self.failures_left = _MOST_TRIALS

    # Returns all readers kept so far, with those of the new ones that help.
    def keep(self, readers: list[int]) -> list[int]:
        if not readers or not self.failures_left:
            return self.kept
        trial = copied(self.graph)
        trial.owning_module = self.graph.owning_module
        duplicate(trial, self.fused_pass, {k: self.recomputed[k] for k in (*self.kept, *readers)})
        kernels = dry_run(trial)
        count = sum(kernel.bytes for kernel in kernels)
        if count < self.bytes and len(kernels) <= self.launches:
            self.kept, self.bytes, self.launches = [*self.kept, *readers], count, len(kernels)
            return self.kept
        self.failures_left -= 1
        if len(readers) > 1:
            self.keep(readers[: len(readers) // 2])
            self.keep(readers[len(readers) // 2 :])
        return self.kept


def pass_of(graph: fx.Graph, kernels: Sequence[InductorKernel]) -> Pass:
    """Makes a `Pass` of a forward or backward graph; Inductor's kernels are its fusion groups."""
    *nodes, end = graph.nodes
    everything = SimpleNamespace(required_fw_nodes=nodes, tangents_closure=(), static_lifetime_input_nodes=())
    facts = extract(graph, everything, len(end.args[0]))

    def values(accesses: Sequence[tuple[str, int]]) -> list[int]:
        return [facts.index[name] for name, _ in accesses if name in facts.index]

    made = [(values(kernel.reads), values(kernel.writes), kernel.generated) for kernel in kernels]
    return Pass.of_accesses(facts, made)


def duplicate(graph: fx.Graph, fused_pass: Pass, recomputed: Mapping[int, frozenset[int]]) -> None:
    """Rewrites `graph` so that each group of `recomputed` computes these values itself.

    The values that only this group computes read the copies. Values that are inlined in other groups, too, are copied
    as well, and so are the views in between. Nodes that have no reader any more are removed.

    Args:
        recomputed: group number -> the values of other groups that it must compute itself.
    """
    rewriting = _Rewriting(graph, fused_pass)
    for k, values in recomputed.items():
        rewriting.give(k, values)
    for v in sorted(frozenset[int]().union(*recomputed.values()), reverse=True):
        if not rewriting.nodes[v].users:
            graph.erase_node(rewriting.nodes[v])


# Each copy is inserted right before its reader.
class _Rewriting:
    def __init__(self, graph: fx.Graph, fused_pass: Pass) -> None:
        self.graph, self.fused_pass = graph, fused_pass
        self.nodes: list[fx.Node] = list(graph.nodes)[:-1]
        self.operands = {node: node.all_input_nodes for node in self.nodes}
        self.original: dict[fx.Node, fx.Node] = {}

    # Every reader gets separate copies: Inductor may store a value with two readers, and would then fuse the store with
    # the group that has the original. Within one kernel, equal expressions are computed once anyway. If there would be
    # too many copies, the readers share one.
    def give(self, k: int, values: frozenset[int]) -> None:
        group = self.fused_pass.groups[k]
        others = frozenset[int]().union(*(other.values for j, other in enumerate(self.fused_pass.groups) if j != k))
        private = group.writes | (group.values - others)
        sizes: dict[fx.Node, int] = {}  # copied nodes -> how many nodes one copy takes, with its operands
        readers: list[fx.Node] = []
        for v, node in enumerate(self.nodes):
            is_view = self.fused_pass.bases[v] != v
            below = [sizes[operand] for operand in self.operands[node] if operand in sizes]
            if v in private and not is_view and below:
                readers.append(node)
            elif v in values or (below and (is_view or v in group.values)):
                sizes[node] = 1 + sum(below)
        copies = sum(sizes.get(operand, 0) for reader in readers for operand in self.operands[reader])
        shared: dict[fx.Node, fx.Node] | None = {} if copies > _MOST_COPIES else None
        for reader in readers:
            with self.graph.inserting_before(reader):
                if shared is not None:  # operands first: a chain may be longer than Python's recursion limit
                    for node in self._behind(reader, sizes):
                        self._copy(node, sizes, shared)
                for operand in self.operands[reader]:
                    reader.replace_input_with(operand, self._copy(operand, sizes, shared))

    def _behind(self, reader: fx.Node, repeated: Iterable[fx.Node]) -> list[fx.Node]:
        candidates, reached, todo = set(repeated), set[fx.Node](), [reader]
        while todo:
            fresh = candidates.intersection(self.operands[todo.pop()]) - reached
            reached |= fresh
            todo += fresh
        return [node for node in repeated if node in reached]

    def _copy(self, node: fx.Node, repeated: Container[fx.Node], shared: dict[fx.Node, fx.Node] | None) -> fx.Node:
        if node not in repeated:
            return node
        if shared is not None and node in shared:
            return shared[node]
        twins = {operand: self._copy(operand, repeated, shared) for operand in self.operands[node]}
        # Another group may have replaced the node's operands by copies.
        copy = self.graph.node_copy(node, lambda operand: twins[self.original.get(operand, operand)])
        copy.meta = dict(node.meta)
        self.original[copy] = node
        if shared is not None:
            shared[node] = copy
        return copy


def dry_run(graph: fx.Graph) -> list[InductorKernel]:
    """Returns the kernels that Inductor would generate for `graph`, in order. Call it from a post-grad pass."""
    module: Any = graph.owning_module
    with lowered(fx.GraphModule(module, copied(graph))) as lowering:
        return _named(scheduled_kernels(lowering), lowering)


# A buffer without a node is one result of a call that has several, or a copy of an operand for a call. It was made
# while the call was lowered, so the call is the last of its origins, and the operand the one before.
def _named(kernels: list[InductorKernel], lowering: Any) -> list[InductorKernel]:
    buffers = {name: buffer for name, buffer in lowering.name_to_buffer.items() if _origins(buffer)}
    last = {name: max(_origins(buffer)).name for name, buffer in buffers.items()}
    calls = {last.get(name, name) for kernel in kernels if not kernel.generated for name, _ in kernel.writes}
    names: dict[str, str] = {}
    for name, buffer in buffers.items():
        made_of = [node for node in sorted(_origins(buffer)) if node.name not in calls or not is_computed(buffer)]
        names[name] = made_of[-1].name if made_of else name
    return [kernel.renamed(names) for kernel in kernels]


# For a buffer that a call overwrites, this is the call.
def _origins(buffer: Any) -> Collection[fx.Node]:
    operation = buffer.get_defining_op()
    return () if operation is None else operation.get_origins()


def copied(graph: fx.Graph) -> fx.Graph:
    """Copies a graph: new nodes with the same names and fake values."""
    copy, twin = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in graph.nodes:
        twin[node] = copy.node_copy(node, twin.__getitem__)
        twin[node].meta = dict(node.meta)
    return copy


def can_dry_run(graph: fx.Graph) -> bool:
    """Returns whether Inductor can schedule a copy of `graph` alone.

    It can if all sizes are fixed and no operator has a graph of its own. A graph that returns a single value instead of
    a list is the body of such an operator (a branch of a condition, or a score function of attention), and is refused.
    """
    *nodes, end = graph.nodes
    return isinstance(end.args[0], (tuple, list)) and all(_is_plain(node) for node in nodes)


def _is_plain(node: fx.Node) -> bool:
    value = node.meta.get("val")
    if node.op == "placeholder" and not isinstance(value, torch.Tensor):
        return False
    # A node that a pass has inserted has no fake value yet: Inductor adds it after the last pass.
    if (
        (node.op == "call_function" and "val" not in node.meta)
        or node.op == "call_module"
        or isinstance(node.target, HigherOrderOperator)
    ):
        return False
    # Sizes can be symbolic although those of all inputs are fixed: that of `x[x > 0]` is known only at run time.
    sizes = [leaf.shape if isinstance(leaf, torch.Tensor) else (leaf,) for leaf in tree_leaves(value)]
    return not any(isinstance(size, torch.SymInt) for of in sizes for size in of)
