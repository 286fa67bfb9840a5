"""Describes what a joint graph's operators do, as far as saving and recomputing are concerned."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.utils.flop_counter import flop_registry

from remat.facts.columns import BoolArray, IntArray, frozen
from remat.improve.torch_knapsack import UNCOUNTED_PRODUCTS
from remat.pytorch.seam.torch_names import (
    HigherOrderOperator,
    argument_of,
    is_builtin,
    is_mutable,
    is_overload,
    schema_of,
)
from remat.pytorch.seam.torch_partitioner import op_types

# Views according to their schemas, but copies where the strides require one.
_MAY_COPY = (torch.ops.aten.reshape.default, torch.ops.aten.contiguous.default, torch.ops.aten.flatten.using_ints)
# These return their argument, or a view of it, although their schemas do not declare it.
_UNDECLARED = ("aten._unsafe_view.default", "_c10d_functional.wait_tensor.default")

GROUPED = "grouped_mm"
"""Part of the names of grouped matrix products, as in a mixture of experts: torch has no formula for them."""

COLLECTIVE = "a collective"

# Namespaces. Those of the second are in joint graphs of models that call them by name (torch 2.13).
_COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional")

# The facts that were read in this process, by operator.
_known: dict[Any, Operator] = {}

# A Triton kernel computes from its arguments alone, and writes into copies of them. The `score_mod` of flex attention
# computes a score from a score and its position; TorchInductor refuses random numbers in it.
_WITHOUT_EFFECTS = ("triton_kernel_wrapper_functional", "flex_attention")


@dataclass(frozen=True)
class Operator:
    """Holds the facts that depend on the operator alone."""

    name: str  # e.g. "aten.mm.default".
    fusible: bool = True  # the compiler can fuse it
    takes_any: bool = False  # as a consumer, it fuses with any producer (torch: "memory fusion into a cat")
    gives: bool = True  # can be fused into its consumers
    random: bool = False  # draws random numbers, or expands a seed into them
    seeded: bool = False  # draws from the global random number generator
    compute_bound: bool = False  # its time is arithmetic, not memory
    views: bool = False  # its results share the storage of its first argument
    fresh: bool = False  # its result, if it is a tensor, has a storage of its own
    mutates: bool = False  # writes to its first argument
    unrepeatable: str | None = None  # why it must not run twice, or None
    unary: bool = False  # its first argument is the only one that holds tensors

    @classmethod
    def of(cls, node: fx.Node) -> Operator:
        """Returns the facts about a node's operator, cached because a schema takes 20 us to read."""
        target: Any = node.target
        # A formula may be registered after the first call.
        key = (target, _has_formula(target)) if node.op == "call_function" else node.op
        return _known.get(key) or _known.setdefault(key, cls._read(node))

    @classmethod
    def _read(cls, node: fx.Node) -> Operator:
        if node.op != "call_function":
            return cls(node.op, fusible=False)  # an input has no kernel to fuse into
        target: Any = node.target
        types = op_types()
        packet = getattr(target, "overloadpacket", target)
        name = _name(target)
        seeded = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
        # Inductor turns these into pointwise kernels that expand a seed; they are missing in torch's lists.
        expands_seed = name.startswith("prims.inductor_")
        return cls(
            name=name,
            fusible=types.is_fusible(node) or expands_seed,
            takes_any=packet is torch.ops.aten.cat,
            gives=packet is not torch.ops.aten.cat,
            random=seeded or types.is_random(node) or (expands_seed and "seed" not in name),
            seeded=seeded,
            compute_bound=types.is_compute_intensive(node) or is_expensive(target),
            views=_views(target),
            fresh=_fresh(target),
            mutates=is_mutable(target),
            unrepeatable=_unrepeatable(target),
            unary=_unary(target),
        )


@dataclass(frozen=True, eq=False)
class Operators:
    """Holds facts about the operators of n nodes; each fact is read once per distinct operator."""

    different: Sequence[Operator]  # the operators, each once
    targets: Sequence[Any]  # what their nodes call; None for nodes that call nothing
    number: IntArray  # (n,) position in `different` of each node's operator

    @classmethod
    def of(cls, nodes: Sequence[fx.Node]) -> Operators:
        position: dict[Any, int] = {}
        number: list[int] = []
        different: list[Operator] = []
        targets: list[Any] = []
        for node in nodes:
            # The key is an id, because the hash of an operator is slow Python code.
            key = id(node.target) if node.op == "call_function" else node.op
            place = position.get(key)
            if place is None:
                place = position[key] = len(different)
                different.append(Operator.of(node))
                targets.append(node.target if node.op == "call_function" else None)
            number.append(place)
        return cls(different, targets, frozen(np.array(number, np.int64)))

    def are(self, flags: Sequence[bool]) -> BoolArray:
        """Expands one flag per distinct operator to one per node (n,)."""
        return frozen(np.array(flags, np.bool_)[self.number])

    def which(self, fact: Callable[[Operator], bool]) -> Iterator[tuple[int, Operator]]:
        """Yields position and operator of each node for whose operator `fact` is true."""
        numbers: list[int] = self.number.tolist()
        positions: list[int] = np.flatnonzero(self.are([fact(op) for op in self.different])).tolist()
        for i in positions:
            yield i, self.different[numbers[i]]

    def __iter__(self) -> Iterator[Operator]:
        numbers: list[int] = self.number.tolist()
        return iter([self.different[i] for i in numbers])


def is_expensive(target: Any) -> bool:
    """Returns whether an operator, also one of eager mode, is a product, a convolution or attention.

    The cost of a custom operator is unknown, so it counts as expensive, as in torch.
    """
    is_custom = is_overload(target) and not is_builtin(target)
    is_named = _name(target) in UNCOUNTED_PRODUCTS or any(word in _name(target) for word in ("attention", GROUPED))
    return _has_formula(target) or is_named or is_custom


def _name(target: Any) -> str:
    return str(target) if is_overload(target) else getattr(target, "__name__", str(target))


def _has_formula(target: Any) -> bool:
    return getattr(target, "overloadpacket", target) in flop_registry


def grouped_flops(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Counts the operations of a grouped matrix product from the shapes of its factors.

    A 3-D factor has one matrix per group. A 2-D factor has the rows, or columns, of all groups; each of these is
    multiplied by its own group's matrix only.
    """
    return 2 * math.prod(right) * left[-2] if len(right) == 2 else 2 * math.prod(left) * right[-1]


def is_dropout_free(node: fx.Node) -> bool:
    """Returns whether a node is attention with a dropout of 0, which draws no random numbers."""
    dropout = argument_of(node.target, node.args, node.kwargs, "dropout_p")
    return isinstance(dropout, (int, float)) and dropout == 0


def _views(target: Any) -> bool:
    if str(target) in _UNDECLARED:
        return True
    if not is_overload(target) or target in _MAY_COPY:
        return False
    aliases = [result.alias_info for result in schema_of(target).returns]
    return bool(aliases) and all(alias is not None and not alias.is_write for alias in aliases)


def _fresh(target: Any) -> bool:
    if not is_overload(target) or _views(target):
        return False
    returns = schema_of(target).returns
    return len(returns) == 1 and returns[0].alias_info is None


def _unary(target: Any) -> bool:
    if not is_overload(target):
        return target is operator.getitem
    first, *others = [str(argument.type) for argument in schema_of(target).arguments] or [""]
    return first == "Tensor" and not any("Tensor" in other for other in others)


def _unrepeatable(target: Any) -> str | None:
    if isinstance(target, HigherOrderOperator) and target.name() not in _WITHOUT_EFFECTS:
        return "a higher-order operator: its body may draw random numbers or have effects"
    if is_overload(target):
        if target.namespace in _COLLECTIVES:
            return COLLECTIVE
        if is_mutable(target):
            return "mutates its arguments"
    return None
