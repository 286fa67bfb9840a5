"""Finds discrete choices, such as a router's: which experts a token goes to must be decided once.

A recomputed value may be rounded differently, because its kernel is another one. That hardly changes a smooth
function. But two nearly equal scores may change places, and then the backward pass gathers other rows than those whose
results the forward pass saved: gradients are wrong, or shapes differ. So scores may be recomputed, and what was chosen
by them may not.

If it depends on a floating-point input, a value of the forward pass is a discrete choice in five cases:

- an operator that selects computes it: `topk`, `sort`, `argmax`, the maximum with its index, and the like, or a custom
  operator that makes integers or masks of numbers;
- it is a tensor of booleans or integers made of numbers, and indices or sizes are made of it;
- it is a number that is rounded for such integers. What is made of the rounded number need not be a choice, then;
- it is a mask that compares with a selected number, such as `scores >= scores.topk(4).values[..., -1:]`. If the number
  was saved in bfloat16 and the scores are recomputed in float32, the largest one is no longer equal to itself;
- it is the predicate of `torch.cond`.

No other mask is a choice, such as that of a ReLU: where it changes, both branches are nearly equal. Nor are the indices
of pooling, which take a gradient to one of two nearly equal pixels.
"""

from __future__ import annotations

import numpy as np

from remat.facts.columns import BoolArray, any_set, mask_of
from remat.facts.uses import operands_of, propagate_to_operands
from remat.pytorch.read.operators import GROUPED, Operators
from remat.pytorch.read.values import Inputs, Values

CHOSEN = "a discrete choice: from recomputed scores, the backward pass might choose otherwise"

_SELECTS = (
    "topk sort argsort kthvalue median nanmedian mode argmax argmin max min cummax cummin searchsorted bucketize"
    " multinomial unique_dim _unique _unique2 unique_consecutive"
)
_SELECTING = frozenset(_SELECTS.split())
_ROUNDING = frozenset(["floor", "ceil", "round", "trunc"])
_ARITHMETIC = frozenset(["add", "sub", "mul", "neg", "clamp", "clamp_min", "clamp_max", "minimum", "maximum", "where"])
# These give a selected number, some of them without its index.
_EXTREME = frozenset(["amax", "amin", "aminmax", "max", "min", "median", "nanmedian"])
_AS_IT_IS = frozenset(["getitem", "convert_element_type", "_to_copy", "clone", "expand", "detach", "alias"])
# Here integers and masks say where data goes, how much of it there is, or what runs.
_PLACES = (
    "index index_put _unsafe_index _unsafe_index_put _unsafe_masked_index _unsafe_masked_index_put_accumulate"
    " index_select index_add index_copy index_fill index_reduce gather scatter scatter_add scatter_reduce take put"
    " masked_select masked_scatter nonzero nonzero_static embedding embedding_bag repeat_interleave bincount histc"
    " cumsum _local_scalar_dense cond while_loop"
)
_PLACING = frozenset(_PLACES.split())
_BUILTIN = ("aten.", "prims.", "_c10d_functional")


def discrete_choices(ops: Operators, values: Values, inputs: Inputs, forward: BoolArray) -> BoolArray:
    """Returns a mask (n,) of the values of the forward pass, `forward` (n,), that are discrete choices."""
    n, u, v = len(forward), inputs.producers, inputs.consumers
    packets = [op.name.removeprefix("aten.").removeprefix("prims.").partition(".")[0] for op in ops.different]
    kinds = np.array([_kind(dtype) for dtype in values.dtypes])
    discrete, number = kinds == "discrete", kinds == "number"
    mask = np.array([dtype == "bool" for dtype in values.dtypes], np.bool_)

    def reading(read: BoolArray) -> BoolArray:
        return mask_of(v[read[u]], n)

    elements = ops.are([packet == "getitem" for packet in packets])
    of_numbers = reading(number)
    # A custom operator, if one of its results is discrete.
    makes = discrete.copy()
    makes[u[(elements & discrete)[v]]] = True
    custom = of_numbers & makes & ops.are(["." in op.name and not op.name.startswith(_BUILTIN) for op in ops.different])
    # A maximum without its index is a number, and no choice, but may be compared with.
    selecting = ~number & ops.are([packet in _SELECTING for packet in packets])
    selected = selecting | ops.are([packet in _EXTREME for packet in packets])
    as_it_is = ops.are([op.views or packet in _AS_IT_IS for op, packet in zip(ops.different, packets, strict=True)])
    if any_set(selected):
        selected = _propagated(inputs, selected, as_it_is)
    choosing = selecting | custom | (mask & reading(selected & number))
    made = discrete & of_numbers & ~elements
    rounded = placed = np.zeros(n, np.bool_)
    if any_set(made & forward):
        operands, places = operands_of(n, u, v), np.zeros(n, np.bool_)
        places[u[ops.are([packet in _PLACING or GROUPED in packet for packet in packets])[v]]] = True
        placed = made & propagate_to_operands(operands, places & discrete, discrete)
        near = placed | number & (as_it_is | ops.are([packet in _ARITHMETIC for packet in packets]))
        rounded = number & ops.are([packet in _ROUNDING for packet in packets])
        rounded &= propagate_to_operands(operands, placed, near)
    if not any_set((choosing | rounded | placed) & forward):
        return np.zeros(n, np.bool_)
    # What is made of integer inputs alone, such as an order of positions, is the same again.
    leaves = number & ops.are([op.name == "placeholder" for op in ops.different])
    choosing &= forward & _propagated(inputs, leaves, ~leaves)
    # So is what depends on numbers only through choices. A sort is not left to that: it may order equal values anew.
    rounded &= forward & _propagated(inputs, leaves, ~choosing)
    placed &= forward & _propagated(inputs, leaves, ~(choosing | rounded))
    return choosing | rounded | placed


# (n,) what is marked, and all values of `through` that read it, directly or through others.
def _propagated(inputs: Inputs, marked: BoolArray, through: BoolArray) -> BoolArray:
    is_marked: list[bool] = marked.tolist()
    passes: list[bool] = through.tolist()
    for u, v in zip(inputs.producers.tolist(), inputs.consumers.tolist(), strict=True):
        if is_marked[u] and passes[v]:
            is_marked[v] = True
    return np.array(is_marked, np.bool_)


def _kind(dtype: str) -> str:
    if dtype.startswith(("float", "bfloat", "complex")):
        return "number"
    return "discrete" if dtype == "bool" or dtype.startswith(("int", "uint")) else ""
