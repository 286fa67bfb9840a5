"""Plans a chain of stages by a dynamic program, after Beaumont et al. (2019), "Optimal checkpointing for heterogeneous
chains: how to train deep neural networks with limited memory" (Rotor).

They decide for each stage, within the bytes that are left: keep everything that its backward pass reads, or keep only
the input of a run of stages, and compute the run again when the backward pass reaches it. Memory is divided into slots
(theirs: 500), and sizes are rounded up.

Their networks are given as chains. Here a graph is cut where fewer bytes cross than at the places before and after, at
the `STAGES` such places with the fewest bytes. Tensors that cross several stages are counted once: with the first run
that makes them. For that, what a run hands on is counted for each pair of its ends; in a chain, this is its last
output.

Changed: a run that is computed again keeps everything then, as each value is computed at most twice; in theirs, the
same program plans the run anew. Theirs counts the gradients between stages and the memory that each operator needs
while it runs; here these are not counted. A run's time includes values that its own end saves. The backward pass of a
run must fit beside what is kept before it. For budgets of saved bytes, this does not count, so the program runs a
second time without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from experiments.rivals.tensor_instance import FloatArray, TensorInstance
from remat.facts.columns import BoolArray, IntArray

STAGES, SLOTS, PLANS = 200, 4000, 200


@dataclass(frozen=True, eq=False)
class Chain:
    """Holds L stages; a run (i, j) has the stages from i to j - 1.

    Attributes:
        all_bytes: (L,) what a stage keeps if it keeps everything.
        hands_on: (L + 1, L + 1) what the run (i, j) makes and later stages read, in bytes.
        costs: (L,) the time to compute a stage again.
    """

    all_bytes: IntArray
    hands_on: IntArray
    costs: IntArray

    def table(self, unit: float, slots: int, *, fits_again: bool) -> tuple[FloatArray, IntArray]:
        """Returns (L + 1, slots + 1) the least time from each stage on within so many slots, and where its run ends.

        The end is the stage itself where the stage keeps everything. With `fits_again`, all of a run has to fit when it
        is computed again.
        """
        stages = len(self.costs)
        least, ends = np.full((stages + 1, slots + 1), np.inf), np.full((stages + 1, slots + 1), -1)
        least[stages] = 0
        kept = np.ceil(self.all_bytes / unit).astype(np.int64)
        handed = np.ceil(self.hands_on / unit).astype(np.int64)
        times, sizes = (np.concatenate([[0], column.cumsum()]) for column in (self.costs, self.all_bytes))
        for i in range(stages - 1, -1, -1):
            self._improve(least, ends, (i, i + 1, i), int(kept[i]), 0, 0)
            for j in range(i + 1, stages + 1):
                again = int(np.ceil((sizes[j] - sizes[i]) / unit)) if fits_again else 0
                self._improve(least, ends, (i, j, j), int(handed[i, j]), int(times[j] - times[i]), again)
        return least, ends

    @staticmethod
    def _improve(
        least: FloatArray, ends: IntArray, run: tuple[int, int, int], kept_slots: int, time: int, slots_again: int
    ) -> None:
        i, j, end = run
        first = max(kept_slots, slots_again)
        if first >= least.shape[1]:
            return
        offered = least[j, first - kept_slots : least.shape[1] - kept_slots] + time
        better = offered < least[i, first:]
        least[i, first:][better] = offered[better]
        ends[i, first:][better] = end

    def runs(self, ends: IntArray, slots: int, unit: float) -> list[tuple[int, int]] | None:
        """Returns the runs (i, j) of the best plan within so many slots; (i, i) keeps everything of stage i."""
        found, i = list[tuple[int, int]](), 0
        while i < len(self.costs):
            j = int(ends[i, slots])
            if j < 0:
                return None
            found.append((i, j))
            size = self.all_bytes[i] if i == j else self.hands_on[i, j]
            slots -= int(np.ceil(size / unit))
            i = max(j, i + 1)
        return found


def stages_of(instance: TensorInstance) -> IntArray:
    """Returns (k,) the stage of each tensor."""
    places = np.flatnonzero(instance.forward)
    across = instance.crossing(instance.bytes)[places]
    before, behind = np.append(across[:1], across[:-1]), np.append(across[1:], across[-1:])
    cuts = np.flatnonzero((across <= before) & (across < behind))
    cuts = places[np.sort(cuts[np.argsort(across[cuts], kind="stable")[: STAGES - 1]])]
    stage = np.searchsorted(cuts, np.arange(len(instance)))
    for p in np.flatnonzero(~instance.forward).tolist():
        stage[p] = max((stage[u] for u in instance.operands[p]), default=0)
    return stage


def chain_of(instance: TensorInstance, stage: IntArray) -> tuple[Chain, IntArray]:
    """Returns the chain of stages, and (k,) the last stage in which the forward pass reads each tensor."""
    count, free = int(stage.max(initial=0)) + 1, ~instance.fixed
    last = stage.copy()
    for p in np.flatnonzero(instance.forward).tolist():
        for u in instance.operands[p]:
            last[u] = max(last[u], stage[p])
    is_kept = free & (instance.needed | (last > stage))
    every = np.bincount(stage[is_kept], instance.bytes[is_kept], count).astype(np.int64)
    hands_on = np.zeros((count + 1, count + 1), np.int64)
    made = np.zeros((count, count), np.int64)  # bytes by the stage that makes them, and the last one that reads them
    np.add.at(made, (stage[free], last[free]), instance.bytes[free])
    for j in range(1, count + 1):
        read_later = made[:, j:].sum(1)
        hands_on[:j, j] = read_later[:j][::-1].cumsum()[::-1]
    is_computed = free & (instance.asked_at <= len(instance.graph))
    costs = np.bincount(stage[is_computed], instance.cost[is_computed], count).astype(np.int64)
    return Chain(every, hands_on, costs), last


def plans(instance: TensorInstance) -> Iterator[BoolArray]:
    """Yields the best plans within `PLANS` limits of memory, with and without room for what is computed again."""
    stage = stages_of(instance)
    chain, last = chain_of(instance, stage)
    unit = max(int(chain.all_bytes.sum()), 1) / SLOTS
    for fits_again in (True, False):
        _, ends = chain.table(unit, SLOTS, fits_again=fits_again)
        for slots in np.linspace(SLOTS, 0, PLANS).astype(np.int64).tolist():
            runs = chain.runs(ends, slots, unit)
            if runs is not None:
                yield saved_by(instance, runs, stage, last)


def saved_by(instance: TensorInstance, runs: list[tuple[int, int]], stage: IntArray, last: IntArray) -> BoolArray:
    """Returns a mask (k,) of what these runs keep."""
    saved = np.zeros(len(instance), np.bool_)
    for i, j in runs:
        own = stage == i if i == j else (i <= stage) & (stage < j)
        saved |= own & ((last >= max(j, i + 1)) | (instance.needed if i == j else False))
    return saved
