"""Trades time for memory: saving is free, recomputing takes time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from remat.plugin import DEFAULT_ESTIMATOR, BoolArray, CostModel, Estimator, Graph, Region, Terms, find_estimator


@dataclass(frozen=True)
class RecomputeTime(CostModel):
    """Prices a plan by the time of recomputing; saving costs nothing but memory.

    Its optimum by itself recomputes only what takes no time, and of all such plans saves the fewest bytes. It is meant
    as one side of a trade-off: with a budget (`MemoryBudget`), or for a frontier.

    Memory belongs to storages: the value that owns a storage may be saved, and its views are recomputed for free. So
    every storage counts once, and as a whole. A value that only the backward pass needs (`Region.EITHER`) is computed
    once, in either pass, so recomputing it is free. With a price, the forward pass would compute it early and hold it.
    One case is priced too low: both passes compute such a value if a saved value depends on it.

    Attributes:
        estimator: the estimator of recompute times, a registered name or an instance.
    """

    name: ClassVar[str] = "recompute-time"

    estimator: str | Estimator = DEFAULT_ESTIMATOR

    def __post_init__(self) -> None:
        find_estimator(self.estimator)  # an unknown name raises here, where the user typed it

    @property
    def unit(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # the estimator's
        return find_estimator(self.estimator).unit

    def data(self) -> str:
        return find_estimator(self.estimator).data()

    def terms(self, graph: Graph) -> Terms:
        """Prices recomputing by its time, and bans saving a view whose owner can be saved."""
        nothing = Terms.nothing(graph)
        prices = find_estimator(self.estimator).prices(graph)
        return replace(
            nothing,
            recompute_cost=np.where(graph.region == Region.EITHER, 0, prices),
            cannot_save=nothing.cannot_save.also(_dispensable_views(graph), "a view: what owns its memory is saved"),
        )


# (n,) views that can be recomputed from the owner of their storage, which can be saved. A plan keeps all memory of a
# storage or nothing. If one view of a storage is no function of the owner alone, no view of this storage is marked. Nor
# are views of inputs, because their memory is free.
def _dispensable_views(graph: Graph) -> BoolArray:
    view = graph.base != np.arange(len(graph))
    from_owner_alone = np.ones(len(graph), np.bool_)
    is_tensor = np.array([dtype != "" for dtype in graph.dtypes], np.bool_)
    other_storage = (graph.base[graph.producers] != graph.base[graph.consumers]) & is_tensor[graph.producers]
    from_owner_alone[graph.consumers[other_storage]] = False
    owner_stays = graph.cannot_save.mask | graph.must_recompute | graph.prefer_recompute
    exceptions = np.where(view, graph.cannot_recompute.mask | graph.must_save | ~from_owner_alone, owner_stays)
    return view & ~(graph.owners(exceptions) | graph.input)[graph.base]
