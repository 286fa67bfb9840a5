"""Predicts what each of several changes of a plan does to its step time; one prediction serves many changes.

To predict a step takes long. So changes that touch different values are made together, and the kernels of the step are
compared with those of the plan before. Kernels that differ and compute the same values belong together, and what they
add to the time is the effect of the change that touches these values; if none does, of the nearest one. If two changes
meet in such a group, or if no kernel tells of a change, each of them is predicted alone, as long as predictions are
cheap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from remat.answer.choice import Choice
from remat.facts.columns import BoolArray
from remat.improve.progress import count_prediction, predictions_left
from remat.improve.step_predictor import StepPredictor
from remat.predict.kernels import Kernel

# Steps are predicted until they have this many values together, and at least this many steps. With a tenth of these
# values, the plan for a Mamba-2 of 6,170 values at 15 GB took 14% longer than its default; now it is 4%. Where prices
# stand in for predictions, the best change may never be tried.
_VALUES, _STEPS = 200_000, 3
# Of the predictions that a search has left, one in so many serves effects; the others, what follows from them.
_PART = 3


def joint_effects(predictor: StepPredictor, before: Choice, changed: Sequence[Sequence[Choice]]) -> dict[int, float]:
    """Predicts how much longer the step takes after each change, in nanoseconds.

    Args:
        predictor: predicts the kernels of steps, and times them.
        before: the plan before the changes; like the others, over the values that the graph can plan.
        changed: for each change, one plan or more that make it alone, in different places of the graph. Of these, the
            first is used that has no value in common with the other changes.

    Returns:
        the effects by the position of the change in `changed`; changes that could not be told apart have none.

    Raises:
        OutOfTime: the search is over (`remat.improve.progress`).
    """
    graph = predictor.graph
    kernels = predictor.kernels(graph.for_all_values(before.saved))
    effects, waiting, alone = dict[int, float](), [*range(len(changed))], set[int]()
    most = int(min(_VALUES / len(graph), predictions_left(len(graph)) / _PART))
    for _ in range(max(_STEPS, most)):
        first_only = waiting and waiting[0] in alone
        together, saved = _made_together(predictor, before, changed, waiting[:1] if first_only else waiting)
        if not together:
            break
        count_prediction(len(graph))
        own, unclear = _own_effects(together, predictor, kernels, predictor.kernels(graph.for_all_values(saved)))
        effects |= {i: ns for i, ns in own.items() if i not in unclear}
        alone |= (unclear | together.keys()) - effects.keys()
        waiting = [*(i for i in waiting if i not in together), *(i for i in together if i not in effects)]
    return effects


def _made_together(
    predictor: StepPredictor, before: Choice, changed: Sequence[Sequence[Choice]], waiting: Sequence[int]
) -> tuple[dict[int, set[int]], BoolArray]:
    """Chooses changes that touch different values; returns these values for each, and what is saved after all."""
    together, saved = dict[int, set[int]](), before.saved.copy()
    for i in waiting:
        for choice in changed[i]:
            touched = _touched(predictor, before, choice)
            if touched and all(touched.isdisjoint(others) for others in together.values()):
                together[i] = touched
                saved ^= choice.saved ^ before.saved
                break
    return together, saved


def _own_effects(
    together: dict[int, set[int]], predictor: StepPredictor, before: Sequence[Kernel], after: Sequence[Kernel]
) -> tuple[dict[int, float], set[int]]:
    """Returns how much longer the kernels of each change take, and the changes that cannot be told from others."""
    if len(together) == 1:
        return dict.fromkeys(together, predictor.ns_of(after) - predictor.ns_of(before)), set()
    own, unclear = dict[int, float](), set[int]()
    for values, ns in _differences(predictor, before, after):
        touching = [i for i, touched in together.items() if touched & values]
        # A change can also split kernels that compute none of its values.
        nearest = touching or [min(together, key=lambda i: _distance(together[i], values))]
        own[nearest[0]] = own.get(nearest[0], 0.0) + ns
        unclear.update(nearest if len(nearest) > 1 else ())
    return own, unclear


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
    groups = list[tuple[set[int], float]]()
    for kernel, sign in ((kernel, sign) for kernels, sign in differing for kernel in kernels.elements()):
        values = set(kernel.values or kernel.reads + kernel.writes)  # a copy computes no value
        ns = sign * predictor.ns_of([kernel])
        for group in [group for group in groups if not group[0].isdisjoint(values)]:
            groups.remove(group)
            values, ns = values | group[0], ns + group[1]
        groups.append((values, ns))
    return groups
