"""Predicts what each of several changes of a plan does to its step time; one prediction serves many changes.

To predict a step takes long. So changes that touch different values are made together, and the kernels of the step are
compared with those of the plan before. Kernels that differ and compute the same values belong together, and what they
add to the time is the effect of the change that touches these values; if none does, of the nearest one. Changes that
meet in such a group cannot be told apart: the next prediction makes them in other places, or with other changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

import numpy as np

from remat.answer.choice import Choice
from remat.improve.progress import count_prediction, predictions_left
from remat.improve.step_predictor import StepPredictor
from remat.predict.kernels import Kernel

# Steps are predicted until they have this many values together, and at least this many steps. With a tenth of these
# values, the plan for a Mamba-2 of 6,170 values at 15 GB took 14% longer than its default; now it is 4%. Where prices
# stand in for predictions, the best change may never be tried.
_VALUES, _STEPS = 200_000, 3
# A step in which only one change is made tells least. Such steps have at most this many values together, but at least
# one is predicted.
_ALONE = 10_000
# A value that more kernels of one pass compute does not tell which kernels belong together. On a Mamba-2, the kernels
# of all layers compute the same constants: with them, 14 pairs of 29 changes could not be told apart, without them one.
_FEW = 3
# Of the predictions that a search has left, one in so many serves effects; the others, what follows from them.
_PART = 3

_Place = tuple[int, int]
"""The position of a change, and which of its plans makes it."""


def joint_effects(predictor: StepPredictor, before: Choice, changed: Sequence[Sequence[Choice]]) -> dict[int, float]:
    """Predicts how much longer the step takes after each change, in nanoseconds.

    Args:
        predictor: predicts the kernels of steps, and times them.
        before: the plan before the changes; like the others, over the values that the graph can plan.
        changed: for each change, one plan or more that make it alone, in different places of the graph. It is made in
            the first place in which it meets no other change of the same prediction.

    Returns:
        the effects by the position of the change in `changed`; changes that could not be told apart have none.

    Raises:
        OutOfTime: the search is over (`remat.improve.progress`).
    """
    graph = predictor.graph
    kernels = predictor.kernels(graph.for_all_values(before.saved))
    touched = {
        (i, place): values
        for i, choices in enumerate(changed)
        for place, choice in enumerate(choices)
        if (values := _touched(predictor, before, choice))
    }
    effects, met = dict[int, float](), set[frozenset[_Place]]()
    most = int(min(_VALUES / len(graph), predictions_left(len(graph)) / _PART))
    alone_left = max(_ALONE // len(graph), 1)
    for _ in range(max(_STEPS, most)):
        together = _made_together({at: values for at, values in touched.items() if at[0] not in effects}, met)
        alone_left -= len(together) == 1
        if not together or alone_left < 0:
            break
        count_prediction(len(graph))
        saved = before.saved.copy()
        for i, place in together:
            saved ^= changed[i][place].saved ^ before.saved
        own, meeting = _own_effects(together, predictor, kernels, predictor.kernels(graph.for_all_values(saved)))
        unclear = frozenset[_Place]().union(*meeting)
        effects |= {at[0]: ns for at, ns in own.items() if at not in unclear}
        silent = together.keys() - own.keys() - unclear  # their kernels may count as those of any other change
        met |= meeting | {frozenset((one, other)) for one in silent for other in together if other != one}
    return effects


def _made_together(waiting: Mapping[_Place, set[int]], met: Collection[frozenset[_Place]]) -> dict[_Place, set[int]]:
    """Chooses changes, each in one place, that touch different values and have not met; if possible, more than one.

    Args:
        waiting: the values that a change touches in each place.
        met: pairs that could not be told apart.
    """
    alone = dict[_Place, set[int]]()
    for first in waiting:
        together, changes = {first: waiting[first]}, {first[0]}
        for at, values in waiting.items():
            if at[0] not in changes and all(
                values.isdisjoint(others) and frozenset((at, other)) not in met for other, others in together.items()
            ):
                together[at] = values
                changes.add(at[0])
        if len(together) > 1:
            return together
        alone = alone or together
    return alone


def _own_effects(
    together: dict[_Place, set[int]], predictor: StepPredictor, before: Sequence[Kernel], after: Sequence[Kernel]
) -> tuple[dict[_Place, float], set[frozenset[_Place]]]:
    """Returns how much longer the kernels of each change take, and the pairs of changes that cannot be told apart."""
    if len(together) == 1:
        return dict.fromkeys(together, predictor.ns_of(after) - predictor.ns_of(before)), set()
    own, met = dict[_Place, float](), set[frozenset[_Place]]()
    for values, ns in _differences(predictor, before, after):
        touching = [at for at, touched in together.items() if touched & values]
        # A change can also split kernels that compute none of its values.
        nearest = touching or [min(together, key=lambda at: _distance(together[at], values))]
        own[nearest[0]] = own.get(nearest[0], 0.0) + ns
        met.update(map(frozenset, combinations(nearest, 2)))
    return own, met


# How far apart two sets of values are in the order of the graph.
def _distance(some: set[int], others: set[int]) -> int:
    return int(abs(np.subtract.outer([*some], [*others])).min())


def _touched(predictor: StepPredictor, before: Choice, after: Choice) -> set[int]:
    graph = predictor.graph
    differs = (before.saved != after.saved) | (before.recomputed != after.recomputed)
    values = graph.plannable[differs]
    return {*values.tolist(), *graph.base[values].tolist()}


def _differences(
    predictor: StepPredictor, before: Sequence[Kernel], after: Sequence[Kernel]
) -> list[tuple[set[int], float]]:
    """Returns, for kernels that differ and belong together, their values and how much longer they take afterwards."""
    counts = Counter(before), Counter(after)
    differing = [(counts[0] - counts[1], -1), (counts[1] - counts[0], 1)]
    common = _computed_often(before) | _computed_often(after)
    groups = list[tuple[set[int], set[int], float]]()
    for kernel, sign in ((kernel, sign) for kernels, sign in differing for kernel in kernels.elements()):
        values = set(kernel.values or kernel.reads + kernel.writes)  # a copy computes no value
        own, ns = values - common or values, sign * predictor.ns_of([kernel])
        for group in [group for group in groups if not group[0].isdisjoint(own)]:
            groups.remove(group)
            own, values, ns = own | group[0], values | group[1], ns + group[2]
        groups.append((own, values, ns))
    return [(values, ns) for _, values, ns in groups]


def _computed_often(kernels: Sequence[Kernel]) -> set[int]:
    counts = Counter((kernel.backward, v) for kernel in kernels for v in kernel.values)
    return {v for (_, v), count in counts.items() if count > _FEW}
