"""Groups nests that share a Triton kernel, and changes the loops of a group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import prod

from remat.predict.kernels.index import Shape
from remat.predict.kernels.ir import Buffer
from remat.predict.kernels.loop_groups import LoopGroup, merged_accesses
from remat.predict.kernels.loops import Dep
from remat.predict.kernels.tiles import fits, tiling
from remat.predict.kernels.triton_loops import TritonNest, by_stride, merged_loops, order_to_match

# A kernel holds so many reduced points of a row at once, where they are next to each other in memory or not.
_HELD, _HELD_ACROSS = 1024, 64


class TritonGroup(LoopGroup):
    """Holds nests that share a Triton kernel.

    Attributes:
        kept, reduced_points: the number of kept points, and of points that are reduced to each of them. In a group with
            reductions, both are those of the first reduction.
    """

    nests: list[TritonNest]

    def __init__(self, nests: list[TritonNest], writer_of: Mapping[Buffer, int]) -> None:
        super().__init__([*nests], writer_of)
        self.nests = nests
        self._writer_of = writer_of
        self.kept, self.reduced_points = prod(self.sizes), prod(self.reduced)

    @cached_property
    def tiling(self) -> Shape:
        return tiling(self.nests, self.kept)

    @cached_property
    def last_access(self) -> dict[Buffer, Dep]:
        """Returns, for each buffer, the access to compare with those of other groups: a write, if there is one."""
        return _by_buffer(self.reads, self.writes)

    @cached_property
    def extent(self) -> tuple[int, int]:
        """Returns the numbers of kept and reduced points; the first of two parts has those of the whole reduction."""
        whole = [nest.loop.unsplit for nest in self.nests if nest.is_reduction]
        first = whole[0] if whole else None
        return first if first is not None and None not in whole else (self.kept, self.reduced_points)

    @cached_property
    def read_in_later_loops(self) -> frozenset[Buffer]:
        """Returns what a loop over the reduced points writes and a later one reads, so that it goes through memory.

        What needs the result of a reduction runs in a later loop (`SIMDScheduling.generate_node_schedule`), unless the
        kernel holds all reduced points of a row (`should_use_persistent_reduction`).
        """
        is_across = any(nest.loop.across for nest in self.nests if nest.is_reduction)
        if self.reduced_points <= (_HELD_ACROSS if is_across else _HELD):
            return frozenset()
        current, results, writers, read = 0, 0, dict[Buffer, int](), set[Buffer]()
        for nest in self.nests:
            is_inside = nest.is_reduction or nest.points != self.kept
            if results and (not is_inside or nest.ancestors & results):
                current, results = current + 1, 0
            if nest.is_reduction:
                results |= 1 << nest.index
            if is_inside:
                read |= {dep[0] for dep in nest.reads if writers.get(dep[0], current) < current}
                writers |= {dep[0]: current for dep in nest.writes if not nest.is_reduction}
        return frozenset(read)

    def shared_elements(self, other: TritonGroup) -> int:
        return sum(size // dep[0].itemsize for dep, size in self.deps.items() if dep in other.deps)

    def set_nests(self, nests: list[TritonNest]) -> None:
        for name in ("tiling", "last_access", "extent", "read_in_later_loops"):
            self.__dict__.pop(name, None)
        TritonGroup.__init__(self, nests, self._writer_of)

    def reorder(self, own: Dep, other: Dep) -> bool:
        """Reorders the loops so that one access has the loop order of another group's; returns whether it could."""
        sizes = self.nests[0].sizes
        if any(nest.sizes != sizes for nest in self.nests) or not len(sizes) == len(own[1]) == len(other[1]):
            return False
        order = order_to_match(own[1], other[1])
        if order is None:
            return False
        self.set_nests([nest.reordered(order) for nest in self.nests])
        return True

    def fuses(self, other: TritonGroup) -> bool:
        """Returns whether one kernel can run both groups (`SIMDScheduling.can_fuse`)."""
        if self.is_reduction and other.is_reduction:
            return self.kept == other.kept and self.reduced_points == other.reduced_points
        if self.is_reduction:
            return other.fuses(self)
        if other.is_reduction:
            ranges = (other.kept, other.reduced_points)
            if self.kept != prod(ranges):
                return self.kept == other.kept
            return all(fits(ranges, nest.sizes) for nest in self.nests) and self.tiling in ((self.kept,), ranges)
        if self.kept != other.kept:
            return False
        tiles = {group.tiling for group in (self, other) if len(group.tiling) > 1}
        return not tiles or tiles == {tiling([*self.nests, *other.nests], self.kept)}


def shared_after_reordering(one: TritonGroup, other: TritonGroup) -> int:
    """Reorders the loops of one group so that both access a buffer in the same way; returns the shared bytes.

    Source: `Scheduler.shared_data_after_reordering_loop`. Returns -1 if there is no such order; the groups may have
    changed.
    """
    shared = _reordered(one, other)
    if shared >= 0 or not reindex_for_reduction(one, other):
        return shared
    shared = _reordered(one, other)
    return shared if shared >= 0 else one.shared_bytes(other)


def _reordered(one: TritonGroup, other: TritonGroup) -> int:
    best: tuple[tuple[bool, int], Dep, Dep] | None = None
    for buffer, left in one.last_access.items():
        right = other.last_access.get(buffer)
        if right is None:
            continue
        passed = (left in one.writes) != (right in other.writes)
        if left[2] == right[2] and by_stride(left[1]) == by_stride(right[1]):
            size = one.deps[left] // max(buffer.itemsize, 1)  # 0 where a hand-written graph has no dtype
            if best is None or (passed, size) > best[0]:
                best = (passed, size), left, right
        elif passed:
            write, read = (left, right) if left in one.writes else (right, left)
            if not set(_sizes(write)) <= set(_sizes(read)):
                return -1
    if best is None:
        return -1
    _, left, right = best
    if len(left[1]) != len(right[1]):
        return one.deps[left] if merged_loops(left[1]) == merged_loops(right[1]) else -1
    if one.is_reduction and other.is_reduction:
        return -1
    done = other.reorder(right, left) if one.is_reduction else one.reorder(left, right)
    return one.shared_bytes(other) if done else -1


def _sizes(dep: Dep) -> Sequence[int]:
    return [prod(n for n, _ in digits) for digits in merged_loops(dep[1])]


def reindex_for_reduction(one: TritonGroup, other: TritonGroup) -> bool:
    """Gives a pointwise group the loops of a reduction; returns whether both then access a buffer in the same way.

    Source: `Scheduler._try_reindex_pointwise_for_reduction`.
    """
    if one.is_reduction == other.is_reduction:
        return False
    rows, flat = (one, other) if one.is_reduction else (other, one)
    ranges = (rows.kept, rows.reduced_points)
    if any(nest.points != prod(ranges) or not fits(ranges, nest.sizes) for nest in flat.nests):
        return False
    if all(nest.sizes == ranges for nest in flat.nests):
        return False
    nests = [nest.reindexed(ranges) for nest in flat.nests]
    of_rows, of_flat = rows.last_access, _by_buffer(*merged_accesses(nests))
    if any(_alike(of_rows[buffer], of_flat[buffer]) for buffer in of_rows.keys() & of_flat.keys()):
        flat.set_nests(nests)
        return True
    return False


def _by_buffer(reads: Iterable[Dep], writes: Iterable[Dep]) -> dict[Buffer, Dep]:
    return {dep[0]: dep for dep in (*reads, *writes)}


# Whether two accesses are equal up to the order of the loops (`Scheduler.deps_match_normalized`).
def _alike(left: Dep, right: Dep) -> bool:
    if left[2] != right[2]:
        return False
    joined = by_stride if len(left[1]) == len(right[1]) else merged_loops
    return joined(left[1]) == joined(right[1])
