"""Lists how TorchInductor lowers each operator, and its thresholds.

Source: `torch/_inductor/lowering.py`, `ir.py` and `config.py` of torch 2.13. These are the rules that all backends
share or that only CPUs have; `backends` has the thresholds that differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from remat.predict.kernels.recorded_calls import Call


def aten(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


CONSTANTS = aten(
    "full full_like scalar_tensor zeros zeros_like ones ones_like empty empty_like new_zeros new_ones new_full "
    "new_empty empty_strided"
)
"""Operators that never read their arguments."""

COUNTS = aten("arange") | {"prims.iota"}
"""Operators whose elements are their own coordinates."""

OPERATIONS: dict[str, int] = {
    **dict.fromkeys(CONSTANTS | COUNTS | aten("clone copy"), 0),
    **dict.fromkeys(
        aten(
            "abs acos acosh add asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not bitwise_or "
            "bitwise_right_shift bitwise_xor ceil clamp_max clamp_min copysign cos cosh div eq erf erfc erfinv exp "
            "exp2 expm1 floor floor_divide fmod ge gt hypot isinf isnan le lgamma log log10 log1p log2 logical_and "
            "logical_not logical_or logical_xor lt maximum minimum mul ne neg pow reciprocal relu round rsqrt sigmoid "
            "sign signbit sin sinh sqrt square sub tan tanh trunc where _to_copy"
        )
        | {"prims.convert_element_type", "prims.fma"},
        1,
    ),
    **dict.fromkeys(aten("addcdiv addcmul clamp hardtanh leaky_relu lerp masked_fill remainder rsub"), 2),
    **dict.fromkeys(aten("elu gelu sigmoid_backward silu softplus tanh_backward threshold_backward"), 4),
    "prims._low_memory_max_pool_offsets_to_indices": 6,
    "aten.glu": 2,
}
"""Pointwise operators, with the operations that each adds to an expression, not counting constant arguments."""

ELEMENTWISE = frozenset(OPERATIONS) - CONSTANTS - COUNTS - aten("copy floor_divide glu _to_copy")
"""The operators that torch marks as pointwise."""

REDUCTIONS = aten("sum mean amax amin prod any all argmax argmin max min var var_mean")
"""Operators that reduce dimensions."""

NEEDS_REALIZED = aten(
    "as_strided avg_pool2d avg_pool2d_backward bmm convolution convolution_backward max_pool2d_with_indices "
    "max_pool2d_with_indices_backward max_pool3d_with_indices mm upsample_nearest2d _int_mm"
)
"""Operators whose arguments are stored early, if they have several readers (`lowering.needs_realized_inputs`)."""

CALLED_BY_NAME = aten("addmm") | {"placeholder"}
"""Calls that are no fallbacks, and whose arguments are stored only when the call is lowered."""

PRODUCTS = aten("mm addmm bmm baddbmm _int_mm")
"""Matrix products, whose arguments must have a stride of 1 (`mm_args`)."""

ALIGNED = PRODUCTS | aten("add convolution") | {"triton_kernel_wrapper_functional"}
"""Calls with aligned results. On CPUs, the results of other calls are in `GraphLowering.unaligned_buffers`, because
those of the inputs are (`should_assume_input_aligned`)."""

FIXED_LAYOUT = aten("mm _int_mm convolution_backward")
"""Operators whose arguments are stored in eager's order of strides, too (`GraphLowering.run_node`)."""

CHEAP_READS = 4
"""`realize_reads_threshold`: an expression with several readers is stored if it has more reads."""

MAX_INLINED_OPS = 100
"""An expression with more operations is always stored; a constant in `GraphLowering.run_node`."""

UNROLLED = 8
"""`unroll_reductions_threshold`: a reduction of fewer elements is unrolled."""

MAX_FUSION, MAX_HORIZONTAL_FUSION = 64, 16
"""`max_fusion_size`, `cpp.max_horizontal_fusion_size`: the most loops in a kernel."""

MIN_SHARED_BYTES = 10
"""`score_fusion_memory_threshold`: the least shared bytes for a fusion of independent loops."""

MAX_DISTANCE = 64
"""The largest distance of independent loops in creation order; a constant in `Scheduler.are_long_distant_nodes`."""

MAX_ATTEMPTS = 64
"""`max_fusion_buffer_group_pairwise_attempts`: each user of a buffer is compared with so many others."""

ROUNDS = 10
"""The number of fusion rounds; a constant in `Scheduler.fuse_nodes`."""

HALF = ("bfloat16", "float16")
"""Parts of a reduction of such numbers are kept in single precision (`Reduction.create_multilayer_helper`)."""


Number: TypeAlias = tuple[str, int | str]
"""A constant, which an expression counts once: its type and text, or ("bound", n) for one that a coordinate is compared
with."""

UNCOUNTED = (
    REDUCTIONS
    | COUNTS
    | aten("cat constant_pad_nd embedding gather index repeat select_scatter slice_scatter _unsafe_index")
)
"""Operators that only read, or whose operations and constants are counted where they are lowered (`Stores.weigh`)."""


class Weight:
    """Describes what a value adds to the size of an expression.

    Attributes:
        operations: its operations, without those that depend on how it is lowered.
        numbers: the constants among its arguments; an expression counts each of them once.
        most: what it adds if no other value of the expression has the same constants.
    """

    __slots__ = ("most", "numbers", "operations")

    def __init__(self, operations: int, numbers: frozenset[Number]) -> None:
        self.operations, self.numbers, self.most = operations, numbers, operations + len(numbers)

    @classmethod
    def of(cls, call: Call, calls: Sequence[Call]) -> Weight:
        if call.op in UNCOUNTED:
            return cls(0, frozenset())
        if call.op == "aten.pow" and type(call.args[1]) in (int, float):
            operations, numbers = _power(call.args[1])
            return cls(operations, frozenset((call.dtype, repr(number)) for number in numbers))
        kinds = (int, float, bool) if call.op in CONSTANTS else (int, float)
        types = [calls[u].dtype for u in call.refs][call.op == "aten.where" :]
        computes_with = call.dtype
        if call.dtype == "bool" and types:
            computes_with = max(types, key=lambda name: ("float" in name, name))
        # Arguments of another type than the operator computes with are converted first (`lowering.transform_args`).
        converts = call.op in ELEMENTWISE - aten("clone") - {"prims.convert_element_type"}
        conversions = sum(name != computes_with for name in types) if converts else 0
        given = frozenset((computes_with, repr(argument)) for argument in call.args if type(argument) in kinds)
        return cls(OPERATIONS.get(call.op, 1) + conversions, given)


# As `lowering.pow`: whole exponents of up to 31 are products. Returns the number of operations, and the constants.
def _power(exponent: float) -> tuple[int, Sequence[float]]:
    if exponent == 0:
        return 0, [1]
    if exponent == int(exponent) and abs(exponent) < 32:
        bits = f"{abs(int(exponent)):b}"
        return len(bits) + bits.count("1") - 2 + (exponent < 0), []
    return 1, [] if exponent == 0.5 else [exponent]
