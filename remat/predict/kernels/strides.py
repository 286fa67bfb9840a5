"""Infers the strides that eager PyTorch would give each value; a graph does not record them.

They decide which copies are made: of the outputs of a pass, and of inputs that a library needs in another order.
Inputs and values without a rule count as contiguous.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from remat.predict.kernels.backends import KernelBackend, release
from remat.predict.kernels.index import Shape, broadcasts, contiguous_strides, strided, strides_in, strides_of
from remat.predict.kernels.recorded_calls import Call, Ref
from remat.predict.kernels.rules import OPERATIONS
from remat.predict.kernels.view_maps import VIEWS, positive, view_access

# Indices of the arguments that hold the filters and the number of groups.
_FILTERS = {"aten.convolution": (1, 8), "aten.convolution_backward": (2, 9)}

# Operators whose result is channels-last if one of these arguments (images or filters) is.
_LIKE_IMAGE = {
    "aten.avg_pool2d": (0,),
    "aten.avg_pool2d_backward": (1,),
    "aten.adaptive_max_pool2d_backward": (1,),
    "aten.max_pool2d_with_indices_backward": (1,),
    "prims._low_memory_max_pool_with_offsets": (0,),
    "aten.convolution": (0, 1),
    "aten.convolution_backward": (1, 2),
}

# Attention operators whose first results have the strides of arguments, with the places of these: the result has those
# of the queries; the gradients have those of queries, keys and values.
_LIKE_ARGUMENTS: dict[str, tuple[int, ...]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu": (0,),
    "aten._scaled_dot_product_flash_attention": (0,),
    "aten._scaled_dot_product_flash_attention_backward": (1, 2, 3),
    "aten._scaled_dot_product_cudnn_attention": (0,),
    "aten._scaled_dot_product_cudnn_attention_backward": (1, 2, 3),
}

# Attention operators whose results have the heads next to the features in memory. On CPUs this is true for the
# logarithms of sums, too, which have no features.
_HEADS_INSIDE_ON_CPUS = "aten._scaled_dot_product_flash_attention_for_cpu"
_HEADS_INSIDE = (_HEADS_INSIDE_ON_CPUS, "aten._scaled_dot_product_efficient_attention")


def eager_strides(calls: list[Call]) -> list[Shape]:
    strides: list[Shape] = []
    for call in calls:
        strides.append(_strides(call, calls, strides))
    return strides


def strides_after(calls: list[Call], eager: list[Shape], other_strides: Mapping[int, Shape]) -> list[Shape]:
    """Returns the strides that all values would have in eager mode, if some values had other strides."""
    strides = list(eager)
    changed: set[int] = set()
    for call in calls:
        v = call.position
        after_changes = not changed.isdisjoint(call.sources)
        if v in other_strides or after_changes:
            strides[v] = other_strides[v] if v in other_strides else _strides(call, calls, strides)
            # The elements of a tuple have strides by the arguments of its call.
            if strides[v] != eager[v] or (call.is_tuple and after_changes):
                changed.add(v)
    return strides


def with_tangents(
    calls: list[Call], eager: list[Shape], tangents: Sequence[int], outputs: Sequence[int]
) -> list[Shape]:
    """Returns the strides of all values if each tangent has the layout of the first output that may be its own.

    AOTAutograd copies a tangent that has another layout.
    """
    free, of_tangents = list(outputs), dict[int, Shape]()
    for v in tangents:
        call = calls[v]
        for u in free:
            if (calls[u].shape, calls[u].dtype) == (call.shape, call.dtype):
                free.remove(u)
                of_tangents[v] = _elementwise(call.shape, ((call.shape, eager[u]),))
                break
    return strides_after(calls, eager, of_tangents)


def channels_last(shape: Shape) -> Shape:
    """Returns the strides of a batch of images whose second dimension is the innermost in memory.

    >>> channels_last((2, 3, 4, 5))
    (60, 1, 15, 3)
    """
    if len(shape) != 4:
        return contiguous_strides(shape)
    batch, height, width, channels = contiguous_strides((shape[0], shape[2], shape[3], shape[1]))
    return batch, channels, height, width


def is_channels_last(shape: Shape, strides: Shape) -> bool:
    """Returns whether torch treats strides as those of channels-last images or volumes (`suggest_memory_format`)."""
    least, rank = 0, len(shape)
    if rank not in (4, 5):
        return False
    for dim in (1, *range(rank - 1, 1, -1), 0):
        if strides[dim] < least or (dim == 0 and least == strides[1]):
            return False
        least = strides[dim] * max(shape[dim], 1)
    return True


def turned(shape: Shape) -> Shape:
    """Returns the strides of channels-last images or volumes.

    >>> turned((2, 3, 4, 5, 6))
    (360, 1, 90, 18, 3)
    """
    return strides_in([1, *reversed(range(2, len(shape))), 0], shape)


def lies_last(shape: Shape, strides: Shape | None) -> bool:
    """Returns whether images or volumes lie channels-last in memory."""
    return len(shape) in (4, 5) and strides is not None and same_layout(shape, strides, turned(shape))


def in_order_of(shape: Shape, strides: Shape) -> Shape:
    """Returns dense strides in the order of `strides`; of equal ones, the last is innermost (`get_fill_order`).

    >>> in_order_of((2, 3, 4, 5), channels_last((8, 1, 3, 3)))  # columns, channels, rows
    (60, 5, 15, 1)
    """
    return strides_in(sorted(range(len(shape)), key=lambda i: (strides[i], -i)), shape)


def is_dense(shape: Shape, strides: Shape) -> bool:
    """Returns whether each element of a tensor is alone in its place, without gaps between them.

    >>> is_dense((2, 3), (1, 2)), is_dense((2, 3), (1, 0)), is_dense((2, 3), (4, 1))
    (True, False, False)
    """
    return same_layout(shape, strides, in_order_of(shape, strides))


def turning_images(torch: str) -> frozenset[str]:
    """Returns the operators that make the compiler consider channels-last images in a pass.

    Before torch 2.15, gradients of convolutions are not among them, so backward passes have eager's layouts.

    >>> sorted(turning_images("2.15.0+cpu") - turning_images("2.13.0+cpu"))
    ['aten.convolution_backward']
    """
    return frozenset(_FILTERS) if release(torch) >= (2, 15) else frozenset({"aten.convolution"})


def channels_last_chosen(backend: KernelBackend, convolutions: list[Call], calls: list[Call], count: int) -> bool:
    """Returns whether the compiler keeps images channels-last (`GraphLowering.decide_layout_opt`).

    CPUs do so in every pass with a convolution; GPUs not where convolutions are rare, grouped, small or narrowing.

    Args:
        convolutions: the operators of the pass that `turning_images` names.
    """
    if not convolutions or not backend.gpu:
        return bool(convolutions)
    places = [_FILTERS[call.op] for call in convolutions]
    which: list[int] = [call.args[at].position for call, (at, _) in zip(convolutions, places, strict=True)]
    groups = [int(call.args[at]) for call, (_, at) in zip(convolutions, places, strict=True)]
    filters = [(calls[u].shape, number) for u, number in zip(which, groups, strict=True)]
    return not (
        count >= 300 * len(filters)
        or any(groups > 1 and shape[1] > 1 for shape, groups in filters)
        or any(shape[0] * 2 <= shape[1] and shape[2] > 1 for shape, _ in filters)
        or all(shape[0] <= 64 and shape[1] <= 64 for shape, _ in filters)
    )


def channels_last_values(calls: list[Call], tangents: Sequence[bool]) -> frozenset[int]:
    """Returns the images that the compiler keeps channels-last: those before and after a convolution.

    Source: `GraphLowering.find_nodes_prefer_channels_last`.
    """
    ends = [call.position for call in calls if call.op == "aten.convolution"]
    images = set(ends)
    for call in reversed(calls):
        if call.position in images and call.op != "aten.bmm":
            images.update(call.sources)
    last = ends[-1] if ends else 0
    for call in calls:
        if (
            call.op != "aten.bmm"
            and not tangents[call.position]
            and any(u in images and u < last for u in call.sources)
        ):
            images.add(call.position)
    return frozenset(v for v in images if len(calls[v].shape) == 4)


def _strides(call: Call, calls: list[Call], layouts: list[Shape]) -> Shape:
    first = call.args[0] if call.args else None
    if call.op in VIEWS and isinstance(first, Ref):
        return _of_view(call, calls[first.position], layouts[first.position])
    if call.op == "getitem" and isinstance(first, Ref):
        return element_strides(call, calls[first.position], calls, layouts)
    asked = call.kwargs.get("memory_format", (0, ""))[1] if call.op == "aten.clone" else ""
    if call.op in OPERATIONS and asked in ("", "preserve_format"):
        return _elementwise(call.shape, tuple([(calls[u].shape, layouts[u]) for u in call.refs]))
    last = asked == "channels_last" or _like_images(call, calls, layouts)
    return channels_last(call.shape) if last else contiguous_strides(call.shape)


def _like_images(call: Call, calls: Sequence[Call], layouts: Sequence[Shape] | Mapping[int, Shape]) -> bool:
    if call.op == "aten.cat":
        return all(is_channels_last(calls[u].shape, layouts[u]) for u in call.refs)
    arguments = [call.args[i] for i in _LIKE_IMAGE.get(call.op, ())]
    images = [argument.position for argument in arguments if isinstance(argument, Ref)]
    return any(is_channels_last(calls[u].shape, layouts[u]) for u in images)


def _of_view(call: Call, of: Call, strides: Shape) -> Shape:
    try:
        access = view_access(call, of.shape, (strided(of.shape, strides), 0))
    except (IndexError, TypeError, ValueError):  # the call is not recorded: `Lowering.run` raises if that matters
        access = None
    own = strides_of(access[0], call.shape) if access is not None and len(access[0]) == len(call.shape) else None
    return contiguous_strides(call.shape) if own is None else own


def element_strides(
    call: Call, of: Call, calls: Sequence[Call], layouts: Sequence[Shape] | Mapping[int, Shape]
) -> Shape:
    """Returns the strides of an element of a tuple.

    Args:
        of: the call that returns the tuple.
        layouts: the strides of the arguments of this call, by position.
    """
    if of.op in ("aten.split", "aten.split_with_sizes", "aten.unbind") and isinstance(of.args[0], Ref):
        parent = of.args[0].position
        if len(calls[parent].shape) == len(call.shape):
            return layouts[parent]
        dim = positive(of.arg(1, "dim", 0), len(calls[parent].shape))
        return layouts[parent][:dim] + layouts[parent][dim + 1 :]
    if _like_images(of, calls, layouts):
        return channels_last(call.shape)
    # Elements of a user's kernel have names in place of numbers.
    like_arguments = dict(enumerate(_LIKE_ARGUMENTS.get(of.op, ())))
    if call.args[1] in like_arguments:
        like = of.args[like_arguments[call.args[1]]]
        if isinstance(like, Ref) and len(layouts[like.position]) == len(call.shape):
            return in_order_of(call.shape, layouts[like.position])
    inside = len(call.shape) >= (3 if of.op.startswith(_HEADS_INSIDE_ON_CPUS) else 4)
    if of.op.startswith(_HEADS_INSIDE) and inside:
        swapped = (call.shape[0], call.shape[2], call.shape[1], *call.shape[3:])
        a, b, c, *rest = contiguous_strides(swapped)
        return (a, c, b, *rest)
    return contiguous_strides(call.shape)


# As `torch._prims_common.compute_elementwise_output_strides`.
@lru_cache(maxsize=1 << 13)
def _elementwise(shape: Shape, operands: tuple[tuple[Shape, Shape], ...]) -> Shape:
    padded = [_padded(shape, size, strides) for size, strides in operands if size and broadcasts(size, shape)]
    if all(strides == contiguous_strides(shape) for strides in padded):
        return contiguous_strides(shape)
    order = list(reversed(range(len(shape))))  # the innermost dimension first
    for i in range(1, len(shape)):
        at = i
        for before in reversed(range(i)):
            comparison = _compared(order[before], order[at], shape, padded)
            if comparison > 0:
                order[before], order[at] = order[at], order[before]
                at = before
            elif comparison < 0:
                break
    return strides_in(order, shape)


# The first operand whose strides differ decides which dimension is the outer one.
def _compared(a: int, b: int, shape: Shape, padded: list[Shape]) -> int:
    for strides in padded:
        if strides[a] and strides[b]:
            if strides[a] != strides[b]:
                return -1 if strides[a] < strides[b] else 1
            if shape[a] > shape[b]:
                return 1
    return 0


def _padded(shape: Shape, size: Shape, strides: Shape) -> Shape:
    missing = len(shape) - len(size)
    return (0,) * missing + tuple(
        0 if n == 1 and m != 1 else s for n, m, s in zip(size, shape[missing:], strides, strict=True)
    )


def same_layout(shape: Shape, left: Shape, right: Shape) -> bool:
    """Returns whether two strides agree in every dimension that has more than one element."""
    return all(a == b for n, a, b in zip(shape, left, right, strict=True) if n != 1)
