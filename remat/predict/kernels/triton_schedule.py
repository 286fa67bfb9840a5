"""Decides which loops share a Triton kernel, like `Scheduler.fuse_nodes` of torch 2.13 on GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from remat.predict.kernels import rules
from remat.predict.kernels.ir import Buffer, Loop
from remat.predict.kernels.mixed_orders import MixedGroup, can_mix, in_order, mixed
from remat.predict.kernels.schedule import Scheduler
from remat.predict.kernels.triton_groups import TritonGroup, reindex_for_reduction, shared_after_reordering
from remat.predict.kernels.triton_loops import TritonNest, same_place, triton_nest_of


class TritonScheduler(Scheduler[TritonNest, TritonGroup]):
    """Fuses the loops of one pass into Triton kernels."""

    def __init__(self, loops: Sequence[Loop]) -> None:
        self._reorders = False
        super().__init__(loops)

    def _nest(self, loop: Loop, index: int) -> TritonNest:
        return triton_nest_of(loop, index)

    def _group(self, nests: list[TritonNest]) -> TritonGroup:
        return TritonGroup(nests, self._writer_of)

    def groups(self) -> list[TritonGroup]:
        """Returns the groups. After the usual rounds, a last one fuses pairs whose loops must first be reordered."""
        groups = super().groups()
        self._reorders = True
        return self._round(groups)

    # A refused pair is tried again only if it shares too few bytes now: only then can other loops help.
    def _is_refused(self, one: TritonGroup, other: TritonGroup) -> bool:
        if self._reorders and one.shared_bytes(other) < rules.MIN_SHARED_BYTES:
            return not self._can_fuse(one, other)
        return super()._is_refused(one, other)

    def _joined(self, one: TritonGroup, other: TritonGroup) -> TritonGroup:
        if isinstance(one, MixedGroup):
            if isinstance(other, MixedGroup):
                rows, columns = self._joined(one.rows, other.rows), self._joined(one.columns, other.columns)
            elif self._can_take(one.rows, other, one.columns.members, one.columns.ancestors, one):
                rows, columns = self._joined(one.rows, other), one.columns
            else:
                rows, columns = one.rows, self._joined(one.columns, other)
            return mixed(rows, columns, self._writer_of)
        if can_mix(one, other):
            return mixed(one, other, self._writer_of)
        return TritonGroup([*one.nests, *other.nests], self._writer_of)

    # Mixed row and column reductions compare elements, other groups bytes.
    def _shared(self, one: TritonGroup, other: TritonGroup) -> int:
        return prod(one.extent) if can_mix(one, other) else one.shared_bytes(other)

    # If the fusion fails, changes of the loops are undone.
    def _can_fuse(self, one: TritonGroup, other: TritonGroup, *, mixing: bool = True) -> bool:
        if one.ancestors & other.members or isinstance(other, MixedGroup) > isinstance(one, MixedGroup):
            return False
        if isinstance(one, MixedGroup):
            return self._can_extend(one, other)
        first, second = one.nests, other.nests
        if self._allowed(one, other, mixing):
            return True
        if one.nests is not first:
            one.set_nests(first)
        if other.nests is not second:
            other.set_nests(second)
        return False

    # As `FusedMixOrderReductions.can_fuse_with`.
    def _can_extend(self, one: MixedGroup, other: TritonGroup) -> bool:
        if one.too_many_reads(other):
            return False
        rows, columns = one.rows, one.columns
        if isinstance(other, MixedGroup):
            members = columns.members | other.columns.members
            ancestors = columns.ancestors | other.columns.ancestors
            return self._can_take(rows, other.rows, members, ancestors, one) and self._can_take(
                columns, other.columns, 0, 0, one
            )
        return self._can_take(rows, other, columns.members, columns.ancestors, one) or self._can_take(
            columns, other, rows.members, rows.ancestors, one
        )

    # Rows and columns may not depend on each other.
    def _can_take(self, part: TritonGroup, other: TritonGroup, members: int, ancestors: int, group: MixedGroup) -> bool:
        reorders, self._reorders = self._reorders, False
        fuses = self._can_fuse(part, other, mixing=False)
        self._reorders = reorders
        if not fuses or (in_order(part) and not in_order(other)):
            return False
        if (part.ancestors | other.ancestors) & members or ancestors & (part.members | other.members):
            return False
        return not other.is_reduction or part.shared_elements(other) >= prod(group.extent)

    def _allowed(self, one: TritonGroup, other: TritonGroup, mixing: bool) -> bool:
        mixes = mixing and can_mix(one, other)
        exact = self._shared(one, other) if mixes else one.shared_bytes(other)
        shared = exact
        follows = bool(other.ancestors & one.members)
        if not (shared or self._reorders) or (follows and self._is_between(one, other)):
            return False
        if self._reorders and shared < rules.MIN_SHARED_BYTES:
            shared = max(shared, shared_after_reordering(one, other))
            exact = one.shared_bytes(other)
        if not shared or len(one.nests) + len(other.nests) > rules.MAX_FUSION:
            return False
        if follows:
            fuses = self._can_follow(one, other) and one.fuses(other)
        else:
            fuses = mixes or (
                shared >= rules.MIN_SHARED_BYTES and one.distance(other) <= rules.MAX_DISTANCE and one.fuses(other)
            )
        may_reindex = follows and one.is_reduction != other.is_reduction
        if not (fuses or may_reindex) or self._takes_memory(one, other, exact):
            return False
        return fuses or (reindex_for_reduction(one, other) and self._can_follow(one, other) and one.fuses(other))

    # Whether a third group runs after `one` and before `other`, whatever the order of their loops.
    def _is_between(self, one: TritonGroup, other: TritonGroup) -> bool:
        return any(
            dep[0] not in one.written and self._group_of[self._writer_of[dep[0]]].ancestors & one.members
            for dep in other.unmet
        )

    def _can_follow(self, one: TritonGroup, other: TritonGroup) -> bool:
        passed: set[Buffer] = set()
        for dep in other.unmet:
            if dep[0] in one.written:
                # Of several accesses to one buffer, Inductor crosses off only every other one.
                if dep[0] in passed or not any(same_place(dep, write) for write in one.writes):
                    return False
                passed.add(dep[0])
        return True
