"""Time against memory: saving is free, recomputing takes time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from remat.plugin import DEFAULT_ESTIMATOR, BoolArray, CostModel, Estimator, Graph, Region, Terms, find_estimator


@dataclass(frozen=True)
class RecomputeTime(CostModel):
    """The price of a plan is the time that recomputing takes; saving costs memory alone.

    By itself its optimum recomputes only what takes no time, and of the plans that do, it saves the
    fewest bytes. With a budget (`MemoryBudget`), or for a frontier, it is one side of the trade-off.

    Memory is held by storages: the value that owns one may be saved, its views are taken again for
    free. So every storage counts once, and as a whole.

    What the backward pass alone needs (`Region.EITHER`) is computed once, in whichever pass, and costs
    nothing more in the backward pass. Charged for, it would be computed early and held. Not counted: what
    such a value costs where both passes compute it, since one that is saved depends on it.

    Attributes:
        estimator: how long recomputing a value takes: a registered name or an instance.
    """

    name: ClassVar[str] = "recompute-time"

    estimator: str | Estimator = DEFAULT_ESTIMATOR

    def __post_init__(self) -> None:
        find_estimator(self.estimator)  # an unknown name is refused where it is typed

    @property
    def unit(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]  # the estimator's
        """The unit of the estimator."""
        return find_estimator(self.estimator).unit

    def data(self) -> str:
        """What the estimator depends on."""
        return find_estimator(self.estimator).data()

    def terms(self, graph: Graph) -> Terms:
        """Recomputing takes time, and views of what can be saved are not saved."""
        nothing = Terms.nothing(graph)
        again = find_estimator(self.estimator).prices(graph)
        return replace(
            nothing,
            recompute_cost=np.where(graph.region == Region.EITHER, 0, again),
            cannot_save=nothing.cannot_save.also(_dispensable_views(graph), "a view: what owns its memory is saved"),
        )


def _dispensable_views(graph: Graph) -> BoolArray:
    """(n,) values that can be had from the one that owns their storage, which can be saved.

    All the memory of a storage is kept or none; where a view is no function of its owner alone, the
    whole storage is left as it is. An input's memory is free, and so are its views.
    """
    view = graph.base != np.arange(len(graph))
    only_of_it = np.ones(len(graph), np.bool_)
    is_tensor = np.array([dtype != "" for dtype in graph.dtypes], np.bool_)
    foreign = (graph.base[graph.producers] != graph.base[graph.consumers]) & is_tensor[graph.producers]
    only_of_it[graph.consumers[foreign]] = False
    owner_stays = graph.cannot_save.mask | graph.must_recompute | graph.prefer_recompute
    odd = np.where(view, graph.cannot_recompute.mask | graph.must_save | ~only_of_it, owner_stays)
    spoiled = np.zeros(len(graph), np.bool_)
    spoiled[graph.base[odd]] = True
    return view & ~spoiled[graph.base] & ~graph.input[graph.base]
