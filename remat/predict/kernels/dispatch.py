"""Chooses the rule that lowers each operator."""

from __future__ import annotations

from collections.abc import Sequence

from remat.predict.kernels import pointwise, rules
from remat.predict.kernels.attention import attention
from remat.predict.kernels.concatenation import concatenation
from remat.predict.kernels.indexing import diagonal, lookup, overwrite, placed, put, scatter
from remat.predict.kernels.library import batched_product, convolution, convolution_backward, library, scan
from remat.predict.kernels.lowering import Lowering, Rule
from remat.predict.kernels.pooling import average_pool, average_pool_backward, max_pool, max_pool_backward, pool_indices
from remat.predict.kernels.recorded_calls import Call
from remat.predict.kernels.reductions import reduction
from remat.predict.kernels.view_maps import SPLITS, VIEWS
from remat.predict.kernels.written_arguments import triton_kernel, uninitialized

_OWN: dict[str, Rule] = {
    "getitem": pointwise.tuple_element,
    "aten.bmm": batched_product,
    "aten.avg_pool2d": average_pool,
    "aten.avg_pool2d_backward": average_pool_backward,
    "aten.max_pool2d_with_indices_backward": max_pool_backward,
    "aten.cat": concatenation,
    "aten.convolution": convolution,
    "aten.convolution_backward": convolution_backward,
    "aten.diagonal_scatter": diagonal,
    "aten.scatter": placed,
    "aten.scatter_add": scatter,
    "aten.copy_": overwrite,
    "aten.as_strided": pointwise.restrided,
    "aten.constant_pad_nd": pointwise.padded,
    "aten.repeat": pointwise.repeated,
    "prims.rev": pointwise.mirrored,
    "prims.inductor_seeds": library,
    "prims.inductor_random": pointwise.random,
    "prims.inductor_lookup_seed": pointwise.seed,
    "triton_kernel_wrapper_functional": triton_kernel,
    "aten.empty": uninitialized,
    "aten.glu": pointwise.gated_linear_unit,
    "prims._low_memory_max_pool_offsets_to_indices": pool_indices,
    "prims._low_memory_max_pool_with_offsets": max_pool,
    **{
        f"aten._scaled_dot_product_{kernel}{direction}": attention
        for kernel in ("cudnn_attention", "efficient_attention", "flash_attention", "flash_attention_for_cpu")
        for direction in ("", "_backward")
    },
    **dict.fromkeys(rules.aten("cumprod cumsum logcumsumexp"), scan),
    **dict.fromkeys(rules.aten("embedding gather index _unsafe_index _unsafe_masked_index"), lookup),
    **dict.fromkeys(rules.aten("index_put _unsafe_index_put _unsafe_masked_index_put_accumulate"), put),
    **dict.fromkeys(rules.aten("slice_scatter select_scatter"), pointwise.patched),
    **dict.fromkeys(VIEWS, pointwise.view_operator),
    **dict.fromkeys(SPLITS, pointwise.split),
    **dict.fromkeys(rules.REDUCTIONS, reduction),
}


def rules_of(calls: Sequence[Call], fusible: Sequence[bool], views: Sequence[bool]) -> list[Rule]:
    """Returns, for each value of a graph, the rule that lowers its operator.

    Args:
        fusible, views: columns of the graph, for operators that have no rule of their own.
    """
    return [_rule(call, calls, fusible, views) for call in calls]


def _rule(call: Call, calls: Sequence[Call], fusible: Sequence[bool], views: Sequence[bool]) -> Rule:
    if call.dtype == "symint":
        return _nothing
    own = _OWN.get(call.op)
    complex_numbers = any(calls[u].dtype.startswith("complex") for u in (call.position, *call.sources))
    if complex_numbers and own is not pointwise.view_operator:
        return library  # the compiler has no kernels for them
    if own is not None or call.op in rules.OPERATIONS:
        return own or pointwise.pointwise
    if call.is_tuple:
        return library
    if views[call.position]:
        return pointwise.view_operator
    return pointwise.pointwise if fusible[call.position] else library


def _nothing(lowering: Lowering, call: Call) -> None:
    """Lowers a symbolic size, which is not a tensor, to nothing."""
