"""Counts the microbatches that each stage of a pipeline holds, in the orders of `torch.distributed.pipelining`.

A rank runs the forward passes of some microbatches first. From then on, each forward pass is followed by the backward
pass of the oldest microbatch; at the end, backward passes are left. Schedules differ in how many come first:

- "1f1b" (`Schedule1F1B`): as many as there are ranks after this one.
- "gpipe" (`ScheduleGPipe`): all of them.
- "interleaved-1f1b" (`ScheduleInterleaved1F1B`): a rank has several stages, and stage s is on rank s % ranks. Rounds of
  about `ranks` microbatches go through its stages in turn. First comes one through all but the last, and two more
  forward passes for each rank after this one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from remat.errors import InvalidOption
from remat.facts.argument_checks import checked_number
from remat.words import near

Schedule = Literal["1f1b", "interleaved-1f1b", "gpipe"]


@dataclass(frozen=True)
class PipelineSchedule:
    """Describes in which order the ranks of a pipeline run their stages.

    Attributes:
        name: "1f1b", "interleaved-1f1b" or "gpipe".
        stages: the number of stages in all.
        ranks: the number of ranks; each has stages / ranks of the stages.
        microbatches: the number of microbatches in a step.

    Raises:
        InvalidOption: the schedule is unknown, or torch has none for these numbers.

    >>> [PipelineSchedule("1f1b", 4, 4, 8).in_flight(stage) for stage in range(4)]
    [4, 3, 2, 1]
    """

    name: Schedule
    stages: int
    ranks: int
    microbatches: int

    def __post_init__(self) -> None:
        names = get_args(Schedule)
        if self.name not in names:
            raise InvalidOption(
                f"schedule must be one of {', '.join(names)}, got {self.name!r}{near(str(self.name), names)}"
            )
        for label in ("stages", "ranks", "microbatches"):
            checked_number(label, getattr(self, label), 1)
        if self.name != "interleaved-1f1b" and self.ranks != self.stages:
            raise InvalidOption(
                f"ranks must be the number of stages ({self.stages}) in the schedule {self.name!r}, got {self.ranks}: "
                f"leave it out, or take 'interleaved-1f1b'"
            )
        if self.stages % self.ranks:
            raise InvalidOption(f"ranks must divide the number of stages ({self.stages}), got {self.ranks}")
        if self.name == "1f1b" and self.microbatches < self.stages:
            raise InvalidOption(
                f"microbatches must be at least the number of stages ({self.stages}) in the schedule '1f1b', got "
                f"{self.microbatches}"
            )
        if self.microbatches % self._rounds:
            raise InvalidOption(
                f"microbatches must be a multiple of {self._rounds} in the schedule 'interleaved-1f1b' with "
                f"{self.ranks} ranks, got {self.microbatches}"
            )

    @property
    def _rounds(self) -> int:
        return max(1, self.microbatches // self.ranks) if self.name == "interleaved-1f1b" else 1

    def actions(self, rank: int) -> list[tuple[int, bool]]:
        """Lists the passes of a rank, in order: each with its stage, and whether it is a backward pass."""
        of_rank = self.stages // self.ranks
        a_round, following = self.microbatches // self._rounds, self.ranks - 1 - rank
        all_passes = of_rank * self.microbatches
        first = {
            "1f1b": following,
            "interleaved-1f1b": (of_rank - 1) * a_round + 2 * following,
            "gpipe": all_passes,
        }[self.name]
        first = min(first, all_passes)
        stages = [step // a_round % of_rank for step in range(all_passes)]
        forward = [(stage * self.ranks + rank, False) for stage in stages]
        backward = [((of_rank - 1 - stage) * self.ranks + rank, True) for stage in stages]
        steady = [action for pair in zip(forward[first:], backward, strict=False) for action in pair]
        return [*forward[:first], *steady, *backward[all_passes - first :]]

    def moments(self, rank: int) -> list[tuple[int, Mapping[int, int]]]:
        """Lists, for each pass of a rank, its stage, and how many microbatches each stage holds during the pass."""
        held, moments = Counter[int](), list[tuple[int, Mapping[int, int]]]()
        for stage, is_backward in self.actions(rank):
            held[stage] += not is_backward
            moments.append((stage, dict(held)))
            held[stage] -= is_backward
        return moments

    def in_flight(self, stage: int) -> int:
        """Returns the most microbatches that a stage holds at the same time."""
        return max(held.get(stage, 0) for _, held in self.moments(stage % self.ranks))
