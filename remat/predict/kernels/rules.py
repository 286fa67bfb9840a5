"""Lists what TorchInductor makes of each operator, and the thresholds at which it decides.

Read in torch 2.13 (`torch/_inductor/lowering.py`, `ir.py`, `config.py`): what all backends have
in common, or only that for CPUs asks. The thresholds in which they differ are in `backends`.
"""

from __future__ import annotations

from typing import TypeAlias

from remat.predict.kernels.recorded_calls import Call


def aten(names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names.split())


CONSTANTS = aten(
    "full full_like scalar_tensor zeros zeros_like ones ones_like empty empty_like new_zeros new_ones new_full "
    "new_empty empty_strided"
)
"""Operators that read nothing, whatever their arguments."""

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
}
"""The pointwise operators, and how many operations each adds to an expression, numbers among its arguments apart."""

ELEMENTWISE = frozenset(OPERATIONS) - CONSTANTS - COUNTS - aten("copy floor_divide _to_copy")
"""Those that torch marks as pointwise."""

REDUCTIONS = aten("sum mean amax amin prod any all argmax argmin max min var var_mean")
"""Operators that reduce dimensions."""

NEEDS_REALIZED = aten(
    "as_strided avg_pool2d avg_pool2d_backward bmm convolution convolution_backward max_pool2d_with_indices "
    "max_pool2d_with_indices_backward max_pool3d_with_indices mm upsample_nearest2d _int_mm"
)
"""Readers for which a value with several readers is stored early (`lowering.needs_realized_inputs`)."""

CALLED_BY_NAME = aten("addmm") | {"placeholder"}
"""Calls that are no fallbacks, and leave storing their arguments to the call."""

ALIGNED = aten("mm addmm bmm baddbmm add _int_mm convolution")
"""Calls whose results are known to be aligned; those of other calls are in `GraphLowering.unaligned_buffers`."""

FIXED_LAYOUT = aten("mm _int_mm convolution_backward")
"""Readers for which it is stored in eager's order of strides, too (`GraphLowering.run_node`)."""

CHEAP_READS = 4
"""`realize_reads_threshold`: what several operators read is stored beyond so many reads."""

MAX_INLINED_OPS = 100
"""What anybody reads; fixed in `GraphLowering.run_node`."""

UNROLLED = 8
"""`unroll_reductions_threshold`: a reduction of fewer elements is no loop."""

MAX_FUSION, MAX_HORIZONTAL_FUSION = 64, 16
"""`max_fusion_size`, `cpp.max_horizontal_fusion_size`: loops in a kernel."""

MIN_SHARED_BYTES = 10
"""`score_fusion_memory_threshold`: for loops that do not depend on each other."""

MAX_DISTANCE = 64
"""How far apart these may be in the order of creation; fixed in `Scheduler.are_long_distant_nodes`."""

MAX_ATTEMPTS = 64
"""`max_fusion_buffer_group_pairwise_attempts`: how many other readers of a buffer each is compared with."""

ROUNDS = 10
"""How often the scheduler looks for pairs; fixed in `Scheduler.fuse_nodes`."""


Number: TypeAlias = "float | tuple[int, int]"
"""What an expression holds once, however many operators need it: a number, or a place (which argument, its value)."""


class Weight:
    """Says what a value adds to the size of an expression.

    Attributes:
        operations: without those of a reduction, which depend on how it is lowered.
        numbers: those among its arguments. An expression holds each of them once.
        most: what it adds if no other value has its numbers.
    """

    __slots__ = ("most", "numbers", "operations")

    def __init__(self, operations: int, numbers: frozenset[Number]) -> None:
        self.operations, self.numbers, self.most = operations, numbers, operations + len(numbers)

    @classmethod
    def of(cls, call: Call) -> Weight:
        if call.op == "aten.select_scatter":  # it compares a coordinate with a place, and neither is a constant
            return cls(2, frozenset(enumerate(call.args[2:])))
        numbers: frozenset[Number] = frozenset(argument for argument in call.args if type(argument) in (int, float))
        return cls(OPERATIONS.get(call.op, 0 if call.op in REDUCTIONS else 1), numbers)
