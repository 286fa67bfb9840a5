"""Finds discrete choices, such as a router's: which experts a token goes to must be decided once.

A recomputed value is rounded otherwise if its kernel is another one. To a smooth function that makes no difference. But
two nearly equal scores may change places, and then the backward pass gathers other rows than those that the forward
pass saved: gradients are wrong, or shapes differ. So scores may be recomputed, and what was chosen by them may not.

Two kinds of operators choose, if what they compare depends on a floating-point input:

- those that select: `topk`, `sort`, `argmax`, the maximum with its index, and the like;
- comparisons, if indices or sizes are made of their results. The mask of a ReLU is none: it only multiplies.

Not counted, because a neighbour serves as well: the indices of pooling, which take a gradient to one of two equal
pixels, and integers that are rounded from numbers, as interpolation does.
"""

from __future__ import annotations

import numpy as np

from remat.facts.columns import BoolArray, any_set
from remat.facts.uses import operands_of, propagate_to_operands
from remat.pytorch.read.node_inputs import Inputs
from remat.pytorch.read.operators import GROUPED, Operators
from remat.pytorch.read.values import Values

CHOSEN = "a discrete choice: from recomputed scores, the backward pass might choose otherwise"

_SELECTS = (
    "topk sort argsort kthvalue median nanmedian mode argmax argmin max min cummax cummin searchsorted bucketize"
    " unique_dim _unique _unique2 unique_consecutive"
)
_SELECTING = frozenset(_SELECTS.split())
# Here integers and masks say where data goes, or how much of it there is.
_PLACES = (
    "index index_put _unsafe_index _unsafe_index_put _unsafe_masked_index _unsafe_masked_index_put_accumulate"
    " index_select index_add index_copy index_fill index_reduce gather scatter scatter_add scatter_reduce take put"
    " masked_select masked_scatter nonzero nonzero_static embedding embedding_bag repeat_interleave bincount histc"
    " _local_scalar_dense"
)
_PLACING = frozenset(_PLACES.split())


def discrete_choices(ops: Operators, values: Values, inputs: Inputs, forward: BoolArray) -> BoolArray:
    """Returns a mask (n,) of the values of the forward pass that are discrete choices.

    Args:
        ops, values, inputs: the nodes of the joint graph, their values, and what they read.
        forward: (n,) the values of the forward pass.
    """
    n, u, v = len(forward), inputs.producers, inputs.consumers
    kinds = np.array([_kind(dtype) for dtype in values.dtypes])
    discrete, number = kinds == "discrete", kinds == "number"
    # A maximum without its index is a number, and no choice.
    selecting = forward & ~number & ops.are([_packet(op.name) in _SELECTING for op in ops.different])
    compares = np.zeros(n, np.bool_)
    compares[v[number[u]]] = True
    compares &= forward & np.array([dtype == "bool" for dtype in values.dtypes], np.bool_)
    if any_set(compares):
        placing = ops.are([_packet(op.name) in _PLACING or GROUPED in op.name for op in ops.different])
        places = np.zeros(n, np.bool_)
        places[u[placing[v]]] = True
        compares &= propagate_to_operands(operands_of(n, u, v), places & discrete, discrete)
    choosing = selecting | compares
    return choosing & _on_numbers(inputs, ops, number) if any_set(choosing) else choosing


# Which values depend on a floating-point input. What is sorted of integer inputs, such as positions, is the same again.
def _on_numbers(inputs: Inputs, ops: Operators, number: BoolArray) -> BoolArray:
    depends = ops.are([op.name == "placeholder" for op in ops.different]) & number
    marked: list[bool] = depends.tolist()
    for u, v in zip(inputs.producers.tolist(), inputs.consumers.tolist(), strict=True):
        if marked[u]:
            marked[v] = True
    return np.array(marked, np.bool_)


def _kind(dtype: str) -> str:
    if dtype.startswith(("float", "bfloat", "complex")):
        return "number"
    return "discrete" if dtype == "bool" or dtype.startswith(("int", "uint")) else ""


def _packet(name: str) -> str:
    return name.removeprefix("aten.").partition(".")[0]
