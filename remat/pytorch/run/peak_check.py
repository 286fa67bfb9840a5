"""Checks the peaks of plans by TorchInductor's own code before one of them runs: `remat.pytorch.inductor.rehearsed`."""

from __future__ import annotations

import logging
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace

from remat.answer.plan import Plan
from remat.facts.graph import Graph
from remat.pytorch.run import ranks
from remat.pytorch.run.planned_graph import TOGETHER, ChosenPlan
from remat.words import counted, human_bytes


class PeakCheck:
    """Makes Inductor write the code of plans that are to keep a limit of the peak, and remembers the peaks.

    A check that fails stops nothing. It takes a fifth to a third of the time of a compilation for each plan.

    Args:
        codegen: Inductor compiles what is planned; if False, there is no code to check.
    """

    def __init__(self, *, codegen: bool = True) -> None:
        self.codegen = codegen
        self._found: dict[str, tuple[int, dict[Plan, int | str]]] = {}

    # A copy is empty, as that of a `Log`.
    def __reduce__(self) -> tuple[type[PeakCheck], tuple[()]]:
        return PeakCheck, ()

    def __call__(self, graph: Graph, plan: Plan, limit_bytes: int) -> int | None:
        """Returns the peak of a plan that is to stay within a limit, in bytes; None if it cannot be known."""
        key = ranks.key_of_graph(graph)
        peaks = self._found[key][1] if key in self._found else {}
        self._found[key] = limit_bytes, peaks
        if plan not in peaks:
            peaks[plan] = _peak(graph, plan) if self.codegen else "it runs operator by operator"
        return peak if isinstance(peak := peaks[plan], int) else None

    def noted(self, graph: Graph, chosen: ChosenPlan) -> ChosenPlan:
        """Adds the result of the check to what was chosen; warns if no plan was found that keeps the limit."""
        limit_bytes, peaks = self._found.get(ranks.key_of_graph(graph), (0, {}))
        if (peak := peaks.get(chosen.plan)) is None:
            return chosen
        if isinstance(peak, str):
            return replace(chosen, check=f"the peak was not checked by Inductor's code: {peak}")
        told = f"the peak is {human_bytes(peak)} by Inductor's code"
        if chosen.by in TOGETHER:  # the limit is that of several graphs
            return replace(chosen, checked_peak_bytes=peak, check=f"of this graph alone, {told}")
        # Some were checked within an earlier limit, and may keep this one.
        beyond = {plan for plan, found in peaks.items() if isinstance(found, int) and found > limit_bytes}
        others = len(beyond - {chosen.plan})
        if peak > limit_bytes:
            told += f", which is more than the limit of {human_bytes(limit_bytes)}; no plan was found that keeps it"
            warnings.warn(f"remat: {told}", stacklevel=2)
        if others:
            told += f"; {counted(others, 'plan')} tried before exceeded {human_bytes(limit_bytes)}"
        return replace(chosen, checked_peak_bytes=peak, check=told)


def _peak(graph: Graph, plan: Plan) -> int | str:
    from remat.pytorch.inductor.rehearsed import rehearsed_peak  # it stands above this package, and imports it

    with ThreadPoolExecutor(1) as elsewhere:  # what torch compiles here has modes and contexts of its own
        try:
            return elsewhere.submit(copy_context().run, rehearsed_peak, graph, plan).result()
        except Exception as error:  # whatever Inductor, or somebody else's operator, has in store
            logging.getLogger("remat").debug("a peak is not checked", exc_info=True)
            return f"{type(error).__name__}: {error}".splitlines()[0]
