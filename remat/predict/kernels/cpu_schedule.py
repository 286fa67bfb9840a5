"""Decides which loops share a kernel on CPUs, like `Scheduler.fuse_nodes` of torch 2.13 with its C++ backend."""

from __future__ import annotations

from remat.predict.kernels import rules
from remat.predict.kernels.ir import Loop
from remat.predict.kernels.loop_groups import LoopGroup
from remat.predict.kernels.loops import Nest, nest_of
from remat.predict.kernels.schedule import Scheduler


class CpuScheduler(Scheduler[Nest, LoopGroup]):
    """Fuses the loops of one pass into CPU kernels."""

    def _nest(self, loop: Loop, index: int) -> Nest:
        return nest_of(loop, index)

    def _group(self, nests: list[Nest]) -> LoopGroup:
        return LoopGroup(nests, self._writer_of)

    def _joined(self, one: LoopGroup, other: LoopGroup) -> LoopGroup:
        return one.joined(other, self._writer_of)

    # Pairs that share only their outer loops fuse when no other pair is left.
    def _best(self, pairs: list[tuple[LoopGroup, LoopGroup]]) -> list[tuple[LoopGroup, LoopGroup]]:
        return [(one, other) for one, other in pairs if not one.outer_depth(other)] or pairs

    def _can_fuse(self, one: LoopGroup, other: LoopGroup) -> bool:
        if one.ancestors & other.members:
            return False
        shared, count = one.shared_bytes(other), len(one.nests) + len(other.nests)
        if not shared or count > rules.MAX_FUSION or self._takes_memory(one, other, shared):
            return False
        if other.ancestors & one.members:
            if not self._can_follow(one, other):
                return False
            return (not one.is_reduction and one.same_loops(other)) or one.outer_depth(other) > 0
        return (
            shared >= rules.MIN_SHARED_BYTES
            and one.distance(other) <= rules.MAX_DISTANCE
            and count <= rules.MAX_HORIZONTAL_FUSION
            and one.same_loops(other)
        )

    # A consumer must read each element exactly where its producer writes it, and no third group may run between them.
    def _can_follow(self, one: LoopGroup, other: LoopGroup) -> bool:
        for dep in other.unmet:
            if dep in one.writes:
                continue
            if dep[0] in one.written or self._group_of[self._writer_of[dep[0]]].ancestors & one.members:
                return False
        return True
