"""Fuses two reductions of the same data, one along rows and one along columns, into one Triton kernel.

For example, in a layer norm, the gradient of the input reduces rows, and those of the weights reduce columns. The
kernel reads each row once for both, and sums columns in parts. Source: `MixOrderReduction` and
`FusedMixOrderReductions` of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import prod

from remat.predict.kernels.ir import Buffer
from remat.predict.kernels.loops import step_of
from remat.predict.kernels.triton_groups import TritonGroup

_MIN_ELEMENTS, _MIN_ROWS, _MAX_COLUMNS, _MAX_READS = 5 << 20, 4096, 1 << 14, 10


class MixedGroup(TritonGroup):
    """Represents a group that reduces rows and one that reduces columns of the same data, joined in one kernel.

    Attributes:
        rows: the group that reads memory in order.
    """

    def __init__(self, rows: TritonGroup, columns: TritonGroup, writer_of: Mapping[Buffer, int]) -> None:
        super().__init__([*rows.nests, *columns.nests], writer_of)
        self.rows, self.columns = rows, columns

    @cached_property
    def read_in_later_loops(self) -> frozenset[Buffer]:
        """Returns nothing: the kernel holds whole rows (`override_persistent_reduction`)."""
        return frozenset()

    def too_many_reads(self, other: TritonGroup) -> bool:
        nests = (*self.nests, *other.nests)
        return len({walk[0] for nest in nests for walk in nest.walks[:-1]}) > _MAX_READS


def can_mix(one: TritonGroup, other: TritonGroup) -> bool:
    """Returns whether two groups can share a kernel as rows and columns."""
    if not (one.is_reduction and other.is_reduction):
        return False
    left, right = one.extent, other.extent
    if left != right[::-1] or left == right or prod(left) < _MIN_ELEMENTS:
        return False
    if one.ancestors & other.members or other.ancestors & one.members:
        return False
    if not any(_reads_all(one, buffer) and _reads_all(other, buffer) for buffer in one.used if buffer in other.used):
        return False
    rows, columns = (one, other) if in_order(one) else (other, one)
    count, width = rows.extent
    return (
        in_order(rows)
        and count >= max(2 * width, _MIN_ROWS)
        and width <= _MAX_COLUMNS
        and not any(nest.loop.across or nest.loop.unsplit for nest in rows.nests if nest.is_reduction)
        and all(nest.loop.reduction in ("sum", "mean", "prod") for nest in columns.nests if nest.is_reduction)
    )


def mixed(one: TritonGroup, other: TritonGroup, writer_of: Mapping[Buffer, int]) -> MixedGroup:
    return MixedGroup(one, other, writer_of) if in_order(one) else MixedGroup(other, one, writer_of)


def in_order(group: TritonGroup) -> bool:
    """Returns whether the innermost loops of a group read memory in order, or always the same element."""
    read = {dep[0] for dep in group.reads}
    return all(
        step_of(dims[-1]) in (0, 1)
        for nest in group.nests
        for buffer, dims, _ in nest.walks[:-1]
        if buffer in read and dims
    )


# Whether the group reads one element of the buffer at every point of its loops.
def _reads_all(group: TritonGroup, buffer: Buffer) -> bool:
    nest = group.nests[0]
    size = next((size for dep, size in group.reads.items() if dep[0] is buffer), 0)
    return size == nest.points * prod(nest.reduced) * buffer.itemsize
