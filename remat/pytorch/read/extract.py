"""Converts a live FX joint graph into a `Graph`: it reads every fact that a cost model may need, once."""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from remat.facts.bans import Bans
from remat.facts.columns import BoolArray, IntArray, frozen, mask_of
from remat.facts.graph import Graph, Region
from remat.facts.lazy_field import Deferred
from remat.pytorch.read.call_text import call_texts
from remat.pytorch.read.discrete_choices import CHOSEN, discrete_choices
from remat.pytorch.read.flops import flops_of
from remat.pytorch.read.mutated_inputs import backward_targets, overwritten_inputs, values_in_their_memory
from remat.pytorch.read.operators import COLLECTIVE, Operator, Operators, is_dropout_free
from remat.pytorch.read.places import meta_entries, notes_of, places_of
from remat.pytorch.read.values import Inputs, Values, bases

OVERWRITTEN = "the forward pass overwrites its memory"
"""Why a value can neither be passed to the backward pass nor be recomputed there."""


def extract(
    joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int, meta: Mapping[str, str] | None = None
) -> Graph:
    """Converts a joint FX graph into a `Graph`.

    Args:
        joint_graph: forward and backward in one graph, with fake tensors in `meta["val"]`.
        node_info: torch's classification of its nodes.
        num_fwd_outputs: how many of the outputs belong to the forward pass.
        meta: the origin of the graph; the version of torch and the device are added.
    """
    facts = {"torch": torch.__version__, **(meta or {}), **device_facts(joint_graph)}
    return _Reader(joint_graph, node_info, num_fwd_outputs).graph(facts)


def device_facts(joint_graph: fx.Graph) -> dict[str, str]:
    """Returns the device for `Graph.meta`: "cuda" and the GPU's name, or "cpu" and how many threads torch uses.

    The number of threads is left out if there is one for each processor, unless there is only one.
    """
    values = (node.meta.get("val") for node in joint_graph.nodes)
    kind = next((value.device.type for value in values if isinstance(value, torch.Tensor)), "cpu")
    if kind == "cuda":
        return {"device": kind, "gpu": torch.cuda.get_device_name()}
    threads = torch.get_num_threads()
    return {"device": kind} | ({} if 1 < threads == os.cpu_count() else {"threads": str(threads)})


class _Reader:
    def __init__(self, joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int) -> None:
        *self.nodes, self.end = joint_graph.nodes
        self.joint_graph = joint_graph
        self.metas = [node.meta for node in self.nodes]
        self.inputs = Inputs.of(self.nodes)
        self.info = node_info
        self.num_fwd_outputs = num_fwd_outputs
        self.ops = Operators.of(self.nodes)

    def graph(self, meta: dict[str, str]) -> Graph:
        nodes, ops, kinds = self.nodes, self.ops, self.ops.different
        values = Values.of(meta_entries(self.metas, "val"))
        marked = self._marks()
        region = self._regions()
        producers, consumers = self.inputs.producers, self.inputs.consumers
        base = bases(nodes, self.inputs, ops)
        storage = frozen(np.array(base, np.int64))
        fusible, fusible_uses = self._fusible()
        view = mask_of(consumers[storage[producers] == storage[consumers]], len(nodes))
        returned = self.end.args[0]
        cannot_save, cannot_recompute = self._rules(base, values)
        # The user may say that a choice is repeated exactly.
        choices = discrete_choices(ops, values, self.inputs, region == int(Region.FORWARD))
        cannot_recompute = cannot_recompute.also(choices & ~marked[CheckpointPolicy.MUST_RECOMPUTE], CHOSEN)
        notes = notes_of(self.metas)
        places = cache(lambda: [*zip(*places_of(notes, producers, consumers), strict=True)])
        symbolic = {nodes[i] for i, dtype in enumerate(values.dtypes) if dtype == "symint"}
        return Graph(
            names=tuple([node.name for node in nodes]),
            ops=tuple([op.name for op in ops]),
            dtypes=values.dtypes,
            shapes=values.shapes,
            bytes=values.bytes,
            storage=storage,
            flops=flops_of(nodes, self.inputs.position, ops, values),
            region=region,
            input=frozen(ops.are([op.name == "placeholder" for op in kinds]) & (region != int(Region.TANGENTS))),
            parameter=self._these(self.info.static_lifetime_input_nodes),
            output=self._these(returned[: self.num_fwd_outputs]),
            gradient=self._these(returned[self.num_fwd_outputs :]),
            fusible=fusible,
            random=self._random(),
            view=frozen(view),
            compute_bound=ops.are([op.compute_bound for op in kinds]),
            must_save=marked[CheckpointPolicy.MUST_SAVE],
            must_recompute=marked[CheckpointPolicy.MUST_RECOMPUTE],
            prefer_save=marked[CheckpointPolicy.PREFER_SAVE],
            prefer_recompute=marked[CheckpointPolicy.PREFER_RECOMPUTE],
            producers=producers,
            consumers=consumers,
            fusible_uses=fusible_uses,
            cannot_save=cannot_save,
            cannot_recompute=cannot_recompute,
            meta=meta,
            arguments=call_texts(nodes, self.inputs.sources, ops, symbolic),
            modules=Deferred(lambda: places()[0]),
            sources=Deferred(lambda: places()[1]),
            noncontiguous=values.noncontiguous,
        )

    def _these(self, some: Iterable[Any]) -> BoolArray:
        positions = [i for i in map(self.inputs.position.get, some) if i is not None]
        return frozen(mask_of(positions, len(self.nodes)))

    # torch's partitioner itself marks collectives with MUST_SAVE, so that they run once; that is one of our bans.
    def _marks(self) -> dict[CheckpointPolicy, BoolArray]:
        marks = {self.nodes[i]: meta["recompute"] for i, meta in enumerate(self.metas) if "recompute" in meta}
        marks = {
            node: mark
            for node, mark in marks.items()
            if mark is not CheckpointPolicy.MUST_SAVE or Operator.of(node).unrepeatable != COLLECTIVE
        }
        return {
            policy: self._these([node for node, mark in marks.items() if mark is policy]) for policy in CheckpointPolicy
        }

    def _random(self) -> BoolArray:
        random = np.array(self.ops.are([op.random for op in self.ops.different]))
        for i in np.flatnonzero(random):
            random[i] = not is_dropout_free(self.nodes[i])
        return frozen(random)

    def _regions(self) -> IntArray:
        region = np.full(len(self.nodes), int(Region.EITHER), np.int64)
        region[self._these(self.info.required_fw_nodes)] = int(Region.FORWARD)
        region[self._these(self.info.tangents_closure)] = int(Region.TANGENTS)
        return frozen(region)

    def _fusible(self) -> tuple[BoolArray, BoolArray]:
        ops, producers, consumers = self.ops, self.inputs.producers, self.inputs.consumers
        elements = ops.are([target is operator.getitem for target in ops.targets])
        maker = np.arange(len(self.nodes))  # a tuple element fuses if the operator that computes the tuple does
        first = self.inputs.first()
        for i in np.flatnonzero(elements):
            maker[i] = maker[first[i]]
        fusible = frozen(ops.are([op.fusible for op in ops.different])[maker])
        takes_any, gives = (ops.are([getattr(op, fact) for op in ops.different]) for fact in ("takes_any", "gives"))
        fusible_uses = takes_any[consumers] | (fusible[producers] & gives[producers] & fusible[consumers])
        return fusible, frozen(fusible_uses)

    def _rules(self, base: Sequence[int], values: Values) -> tuple[Bans, Bans]:
        nodes, tangents = self.nodes, self.info.tangents_closure
        n = len(nodes)
        cannot_save = Bans.of(n, values.unsaveable)
        doubtful = self.ops.which(lambda op: op.seeded or op.unrepeatable is not None or _draws_from_seed(op))
        whys = {i: why for i, op in doubtful if (why := _unrepeatable(nodes[i], op))}
        cannot_recompute = Bans.of(n, whys)
        writers = [nodes[i] for i, _ in self.ops.which(lambda op: op.mutates)]
        inputs = overwritten_inputs(self.joint_graph, writers, tangents)
        if not inputs:
            return cannot_save, cannot_recompute
        theirs = inputs | values_in_their_memory(self.joint_graph, tangents)
        overwritten = self._these(node for node, first in zip(nodes, base, strict=True) if nodes[first] in theirs)
        # The backward pass may receive its write targets: it only writes to them, and never reads the forward's value.
        handles = inputs & backward_targets(writers, tangents)
        readers = {reader for node in handles for reader in node.users if reader not in tangents}
        handle, stale = self._these(handles), self._these(readers)
        return (
            cannot_save.also(overwritten & ~handle, OVERWRITTEN),
            cannot_recompute.also(overwritten, OVERWRITTEN).also(stale, "reads what the forward pass overwrites"),
        )


def _unrepeatable(node: fx.Node, op: Operator) -> str | None:
    if op.seeded and not is_dropout_free(node) and not _restores_its_state(node):
        return "draws from the random number generator, which moves on"
    if op.unrepeatable and not (op.unrepeatable == COLLECTIVE and _is_to_run_twice(node)):
        return op.unrepeatable
    if _drawn_by_shape_of_kernel(node, op):
        return "a GPU's kernels draw other numbers from the seed where they have other loops"
    return None


# Torch draws the same numbers again for operators that were marked before the partitioner (`must_recompute`,
# `functionalize_rng_ops`): the forward pass saves the state of the global generator, and the backward pass restores
# it. Plain `torch.utils.checkpoint` marks its operators as preferred, which is enough. Inductor's seeds do not need
# this, and the user's own generator has another state.
def _restores_its_state(node: fx.Node) -> bool:
    aten = getattr(node.target, "namespace", "") == "aten"
    return _is_to_run_twice(node) and aten and node.kwargs.get("generator") is None


# In a region that the user checkpoints, torch runs even a collective again.
def _is_to_run_twice(node: fx.Node) -> bool:
    return node.meta.get("recompute") in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


# On GPUs, Inductor draws four numbers at a time in kernels over one index, and one at a time in other kernels, such as
# reductions: the numbers differ (torch 2.13). Values that the model marks for recomputation are left to torch.
def _drawn_by_shape_of_kernel(node: fx.Node, op: Operator) -> bool:
    value = node.meta.get("val")
    marked = node.meta.get("recompute") == CheckpointPolicy.MUST_RECOMPUTE
    on_gpu = isinstance(value, torch.Tensor) and value.device.type == "cuda"
    return _draws_from_seed(op) and on_gpu and not marked


def _draws_from_seed(op: Operator) -> bool:
    return op.name.startswith("prims.inductor_random")
