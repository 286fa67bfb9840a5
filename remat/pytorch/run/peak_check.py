"""Checks the peak of a plan by the code that TorchInductor writes for it, before the plan runs.

The peak comes from `remat.pytorch.inductor.rehearsed`.
"""

from __future__ import annotations

import logging
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace

from remat.answer.plan import Plan
from remat.facts.graph import Graph
from remat.predict.buffers.orders import has_torchs_order
from remat.pytorch.run import ranks
from remat.pytorch.run.planned_graph import NO_OWN_BUDGET, ChosenPlan
from remat.words import counted, human_bytes


class PeakCheck:
    """Finds the peaks of plans that must keep a limit, by the code that Inductor writes for them, and remembers them.

    If a check raises an error, the plan runs unchecked. It takes a fifth to a third of the time of a compilation.

    Args:
        codegen: whether Inductor compiles the graphs; if False, there is no code to check.
    """

    def __init__(self, *, codegen: bool = True) -> None:
        self.codegen = codegen
        self._found: dict[tuple[str, bool], tuple[int, dict[Plan, int | str]]] = {}

    # Copies are empty, like those of a `Log`.
    def __reduce__(self) -> tuple[type[PeakCheck], tuple[()]]:
        return PeakCheck, ()

    def __call__(self, graph: Graph, plan: Plan, limit_bytes: int) -> int | None:
        """Returns the peak of a plan in bytes, for a search of plans within a limit; None if it cannot be found."""
        key = _key(graph)
        peaks = self._found[key][1] if key in self._found else {}
        self._found[key] = limit_bytes, peaks
        if plan not in peaks:
            peaks[plan] = _peak(graph, plan) if self.codegen else "it runs operator by operator"
        return peak if isinstance(peak := peaks[plan], int) else None

    def with_check(self, graph: Graph, chosen: ChosenPlan) -> ChosenPlan:
        """Adds the result of the check to a chosen plan, and warns if the plan exceeds the limit."""
        limit_bytes, peaks = self._found.get(_key(graph), (0, {}))
        if (peak := peaks.get(chosen.plan)) is None:
            return chosen
        if isinstance(peak, str):
            return replace(chosen, check=f"the peak was not checked by Inductor's code: {peak}")
        told = f"the peak is {human_bytes(peak)} by Inductor's code"
        if chosen.by in NO_OWN_BUDGET:  # the limit is that of several graphs
            return replace(chosen, checked_peak_bytes=peak, check=f"of this graph alone, {told}")
        # Some were checked within an earlier limit, and may keep this one.
        beyond = {plan for plan, found in peaks.items() if isinstance(found, int) and found > limit_bytes}
        others = len(beyond - {chosen.plan})
        if peak > limit_bytes:
            # If the budget is a fraction, the limit may be larger than that: the smallest peak that was predicted.
            told += f"; no plan was found that keeps it within {human_bytes(limit_bytes)}"
            warnings.warn(f"remat: {told}", stacklevel=2)
        if others:
            told += f"; {counted(others, 'plan')} tried before exceeded {human_bytes(limit_bytes)}"
        return replace(chosen, checked_peak_bytes=peak, check=told)


def _key(graph: Graph) -> tuple[str, bool]:
    return ranks.key_of_graph(graph), has_torchs_order(graph)


def _peak(graph: Graph, plan: Plan) -> int | str:
    from remat.pytorch.inductor.rehearsed import rehearsed_peak  # imported here, since it imports this package

    # In another thread, torch's modes and contexts of this compilation do not apply.
    with ThreadPoolExecutor(1) as elsewhere:
        try:
            return elsewhere.submit(copy_context().run, rehearsed_peak, graph, plan).result()
        except Exception as error:  # Inductor, or an operator of another library, may raise anything
            logging.getLogger("remat").debug("a peak is not checked", exc_info=True)
            return f"{type(error).__name__}: {error}".splitlines()[0]
