"""Groups loop nests that share a kernel, and compares two such groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod

from remat.predict.kernels.ir import Buffer
from remat.predict.kernels.loops import Dep, Nest, same_after_joining


def merged_accesses(nests: Sequence[Nest]) -> tuple[dict[Dep, int], dict[Dep, int]]:
    """Returns the reads and the writes of several nests, with the bytes that they move (`ReadWrites.merge_list`).

    Each access is listed once, at its first place, and what the nests write is not listed as read.
    """
    reads, writes = dict[Dep, int](), dict[Dep, int]()
    for nest in nests:
        reads |= nest.reads
        writes |= nest.writes
    for dep in writes:
        reads.pop(dep, None)
    return reads, writes


class LoopGroup:
    """Holds loop nests that share a kernel.

    Attributes:
        members, ancestors: bit masks of the nests in the group, and of all nests that it depends on.
        first, last: the places of its first and last nest in the order of creation.
        reads, writes: accesses with the bytes that they move; reads where the group itself writes are left out.
        deps: the accesses in `reads` and `writes`, with their bytes.
        used: each buffer that the group accesses -> the accesses to it.
        unmet: reads of buffers that other groups write.
        parts: the groups that share only `depth` outer loops; the group itself if its nests share all loops (depth 0).
    """

    def __init__(self, nests: list[Nest], writer_of: Mapping[Buffer, int]) -> None:
        self.nests = nests
        self.depth = 0
        self._parts: list[LoopGroup] = []
        self.members = self.ancestors = 0
        for nest in nests:
            self.members |= 1 << nest.index
            self.ancestors |= nest.ancestors
        self.reads, self.writes = merged_accesses(nests)
        self.deps = self.reads | self.writes
        self.used: dict[Buffer, list[Dep]] = {}
        for dep in self.deps:
            self.used.setdefault(dep[0], []).append(dep)
        self.written = dict.fromkeys([dep[0] for dep in self.writes])
        self.unmet = [dep for dep in self.reads if dep[0] in writer_of and dep[0] not in self.written]
        places = [nest.place for nest in nests]
        self.first, self.last = min(places), max(places)
        reductions = [nest for nest in nests if nest.loop.reduced]
        self.is_reduction = bool(reductions)
        shown = reductions[0] if reductions else nests[0]
        self.sizes, self.reduced = shown.sizes, shown.reduced

    @property
    def parts(self) -> list[LoopGroup]:
        return self._parts or [self]

    @cached_property
    def read_in_later_loops(self) -> frozenset[Buffer]:
        """Returns what a loop of the kernel writes and a later one reads from memory; a backend may know of some."""
        return frozenset()

    def shared_bytes(self, other: LoopGroup) -> int:
        """Returns the bytes that both groups access in the same way (`Scheduler.score_fusion_memory`)."""
        shared = 0
        for buffer, deps in self.used.items():  # not the accesses: it takes long to hash them
            if buffer in other.used:
                there = other.used[buffer]
                for dep in deps:
                    if dep in there:
                        shared += self.deps[dep]
        return shared

    def distance(self, other: LoopGroup) -> int:
        return max(abs(self.first - other.last), abs(other.first - self.last))

    def same_loops(self, other: LoopGroup) -> bool:
        """Returns whether one loop nest can run both groups (`CppScheduling._why_fuse_nodes`)."""
        if self.depth or other.depth:
            return False
        if self.sizes == other.sizes and self.reduced == other.reduced:
            return True
        if not self.reduced and self.sizes == other.sizes + other.reduced:
            return True
        if self.reduced or other.reduced or prod(self.sizes) != prod(other.sizes):
            return False
        if len(self.sizes) != 1 and len(other.sizes) != 1:
            return False
        narrow, wide = (self, other) if len(self.sizes) < len(other.sizes) else (other, self)
        return (
            len(narrow.nests) == 1
            and len({nest.loop.sizes for nest in wide.nests}) == 1
            and all(same_after_joining(narrow.nests[0], nest) for nest in wide.nests)
        )

    def outer_depth(self, consumer: LoopGroup) -> int:
        """Returns how many outer loops this group would share with a consumer; 0 if they cannot fuse in that way.

        Source: `CppScheduling.can_fuse_vertical_outer_loop`.
        """
        if not consumer.ancestors & self.members or (not self.is_reduction and self.same_loops(consumer)):
            return 0
        last, first = self.parts[-1], consumer.parts[0]
        if self.depth and consumer.depth:
            return self.depth if self.depth == consumer.depth else 0
        depth = min(len(last.sizes), len(first.sizes))
        if depth < 1 or last.sizes[:depth] != first.sizes[:depth]:
            return 0
        return depth if (self.depth or consumer.depth) in (0, depth) else 0

    def joined(self, other: LoopGroup, writer_of: Mapping[Buffer, int]) -> LoopGroup:
        depth = self.outer_depth(other)
        group = LoopGroup([*self.nests, *other.nests], writer_of)
        if depth:
            group.depth = depth
            group._parts = self.parts + other.parts
        elif not group.is_reduction:
            # Loops were joined differently: the group has the finer ones.
            group.sizes = max(self.sizes, other.sizes, key=len)
        return group
