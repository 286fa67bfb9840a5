"""Recomputes values across the kernels of one pass: what is computed again is there twice in the graph.

TorchInductor by itself inlines a pointwise value into every kernel that reads it, so that nothing needs to be
duplicated, as long as it does not write the value to memory. It does so where a value has many reads
(`realize_reads_threshold`, `realize_acc_reads_threshold`, `realize_opcount_threshold` in its settings); on CPUs
where an `exp`, `log`, `sigmoid` or `tanh` has several users; and where it must, since a reduction in another
order, a matrix product or the caller reads it. Every other kernel then reads it, too. That is where this
pass helps: for figure 4 of the paper on a CPU, and for the backward passes of normalizations and gates, where several
reductions read the same gradient. It hardly helps transformers: nearly all large values there are read by matrix
products. This was measured on a CPU, with torch 2.13.
"""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

from torch import fx

from remat.errors import UnsupportedTorch
from remat.improve.cross_kernel import Pass, recompute_across
from remat.pytorch.inductor.dry_run import can_dry_run, copied, dry_run
from remat.pytorch.inductor.traffic_count import InductorKernel
from remat.pytorch.read.extract import extract
from remat.pytorch.run.cache_key import key_of
from remat.pytorch.seam.torch_names import CustomGraphPass

# Schedules that Inductor is asked for in vain, at most: each takes as long as lowering the graph.
_MOST_TRIALS = 16
# Of one group, before its readers share them.
_MOST_COPIES = 64


@dataclass(frozen=True)
class DuplicateAcrossKernels(CustomGraphPass):
    """Lets kernels compute again what they would read, where Inductor then moves fewer bytes.

        from remat.pytorch.inductor.duplicate import DuplicateAcrossKernels

        torch.compile(model, options={"post_grad_custom_post_pass": DuplicateAcrossKernels()})

    Inductor runs the pass on each forward, backward, or inference graph after all of its own passes that look
    for patterns or drop duplicates. The kernels are those that Inductor would make (`dry_run`); what to compute
    again is decided pair by pair (`remat.improve.cross_kernel`); and what is decided is kept if Inductor,
    asked again, moves fewer bytes in no more kernels. So Inductor's own count never rises, but for what it still
    changes later: it lets some operators work in place. Bytes are all that counts: arithmetic is taken for free,
    however much of it a kernel does again. Compiling takes longer by two lowerings as a rule, and by twenty or
    so where much is tried in vain.

    Left as they are: graphs with symbolic sizes, and with operators that have a body of their own (`cond`,
    a user's Triton kernel). Never computed again: random numbers, effects, collectives, and what reads memory
    that the graph writes to. Where Inductor's internals are not as expected of a graph, it is left as it is, too,
    with a warning (at compilation: a cache keeps the graph alone).
    """

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrites one graph; called by Inductor."""
        if not can_dry_run(graph):
            return
        try:
            fused_pass, again = _decided(graph)
        except UnsupportedTorch:
            raise
        except Exception as error:  # a step that trains without this must not fail with it
            message = f"DuplicateAcrossKernels leaves a graph as it is: {type(error).__name__}: {error}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
            return
        duplicate(graph, fused_pass, again)

    def uuid(self) -> str:
        """Returns the key for Inductor's caches: the code of `remat` alone."""
        return key_of(self)


def _decided(graph: fx.Graph) -> tuple[Pass, dict[int, frozenset[int]]]:
    kernels = dry_run(graph)
    fused_pass = pass_of(graph, kernels)
    recomputed = recompute_across(fused_pass).again
    readers = [k for k, values in enumerate(recomputed) if values]
    return fused_pass, {k: recomputed[k] for k in _Trials(graph, fused_pass, recomputed, kernels).keep(readers)}


# All readers are tried at once, then each half by itself, and so on.
class _Trials:
    def __init__(
        self, graph: fx.Graph, fused_pass: Pass, recomputed: Sequence[frozenset[int]], kernels: Sequence[InductorKernel]
    ) -> None:
        self.graph, self.fused_pass, self.recomputed = graph, fused_pass, recomputed
        self.bytes, self.launches = sum(kernel.bytes for kernel in kernels), len(kernels)
        self.kept: list[int] = []
        self.failures_left = _MOST_TRIALS

    # All that were kept so far, those of these readers that help among them.
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
    """Reads a forward or backward graph, with Inductor's kernels as fusion groups."""
    *nodes, end = graph.nodes
    everything = SimpleNamespace(required_fw_nodes=nodes, tangents_closure=(), static_lifetime_input_nodes=())
    facts = extract(graph, everything, len(end.args[0]))

    def values(accesses: Sequence[tuple[str, int]]) -> list[int]:
        return [facts.index[name] for name, _ in accesses if name in facts.index]

    made = [(values(kernel.reads), values(kernel.writes), kernel.generated) for kernel in kernels]
    return Pass.of_accesses(facts, made)


def duplicate(graph: fx.Graph, fused_pass: Pass, recomputed: Mapping[int, frozenset[int]]) -> None:
    """Rewrites `graph` so that each group of `recomputed` computes these values itself.

    Values that only this group computes then read the copies. Values that are inlined in other groups, too, are copied
    as well, and so are the views in between. Nodes that nothing reads any more are removed.

    Args:
        recomputed: for each group, by its number, the values of other groups that it shall compute itself.
    """
    rewriting = _Rewriting(graph, fused_pass)
    for k, values in recomputed.items():
        rewriting.give(k, values)
    for v in sorted(frozenset[int]().union(*recomputed.values()), reverse=True):
        if not rewriting.nodes[v].users:
            graph.erase_node(rewriting.nodes[v])


# Each copy stands right before the node that reads it.
class _Rewriting:
    def __init__(self, graph: fx.Graph, fused_pass: Pass) -> None:
        self.graph, self.fused_pass = graph, fused_pass
        self.nodes: list[fx.Node] = list(graph.nodes)[:-1]
        self.operands = {node: node.all_input_nodes for node in self.nodes}
        self.original: dict[fx.Node, fx.Node] = {}

    # Every reader gets copies of its own: Inductor may write down what has two readers, and then fuses the writing with
    # the group that has the original. In one kernel equal expressions are computed once. Where that would be too many
    # copies, the readers share one.
    def give(self, k: int, values: frozenset[int]) -> None:
        group = self.fused_pass.groups[k]
        others = frozenset[int]().union(*(other.values for j, other in enumerate(self.fused_pass.groups) if j != k))
        private = group.writes | (group.values - others)
        sizes: dict[fx.Node, int] = {}  # what is copied, and how many copies one of it takes, operands included
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
                if shared is not None:  # first things first: a chain may be longer than Python's stack is deep
                    for node in self._behind(reader, sizes):
                        self._copy(node, sizes, shared)
                for operand in self.operands[reader]:
                    reader.replace_input_with(operand, self._copy(operand, sizes, shared))

    def _behind(self, reader: fx.Node, copied: Iterable[fx.Node]) -> list[fx.Node]:
        candidates, found, todo = set(copied), set[fx.Node](), [reader]
        while todo:
            fresh = candidates.intersection(self.operands[todo.pop()]) - found
            found |= fresh
            todo += fresh
        return [node for node in copied if node in found]

    def _copy(self, node: fx.Node, copied: Container[fx.Node], shared: dict[fx.Node, fx.Node] | None) -> fx.Node:
        if node not in copied:
            return node
        if shared is not None and node in shared:
            return shared[node]
        twins = {operand: self._copy(operand, copied, shared) for operand in self.operands[node]}
        # Another group may have made the node read copies of its own.
        copy = self.graph.node_copy(node, lambda operand: twins[self.original.get(operand, operand)])
        copy.meta = dict(node.meta)
        self.original[copy] = node
        if shared is not None:
            shared[node] = copy
        return copy
