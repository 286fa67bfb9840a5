"""Records the plan of each graph when torch compiles it, for `step.report()` and `remat.last_report()`."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, cast

from torch import nn

from remat.facts.graph import Graph
from remat.pytorch.run import ranks
from remat.pytorch.run.planned_graph import ChosenPlan, PlannedGraph
from remat.pytorch.run.report import HeldMemory, Report

_LOGGER = logging.getLogger("remat")
_LOGGER.addHandler(logging.NullHandler())
# The most graphs that `remat.last_report()` remembers.
_RECENT = 64


class CompiledStep(Protocol):
    """Describes the result of `remat.compile`, which is called like the model."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def report(self) -> Report:
        """Reports the plan of each graph that was compiled so far."""
        ...


class Log:
    """Records the plan of each graph; a graph that is planned again has its last plan."""

    _numbers = itertools.count()

    def __init__(self, capacity: int | None = None) -> None:
        self.planned: OrderedDict[tuple[int, str], PlannedGraph] = OrderedDict()
        self.notes = deque[str](maxlen=capacity)
        self.capacity, self._number = capacity, next(self._numbers)
        self._judged: Mapping[str, ChosenPlan] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        """Makes copies empty, so that the keys of torch's caches do not depend on the plans."""
        return Log, (self.capacity,)

    @staticmethod
    def begin(graph: Graph) -> None:
        """Logs that the search for a plan begins, because it may take seconds under a budget."""
        _LOGGER.info("planning a graph of %s values", f"{len(graph):,}")

    def add(self, planned: PlannedGraph) -> None:
        """Records the plan of a graph, here and for `remat.last_report()`, and logs it."""
        self._keep((self._number, ranks.key_of_graph(planned.graph)), planned)
        if _LOGGER.isEnabledFor(logging.INFO):
            _LOGGER.info("%s", planned)

    # In place of an earlier plan with the same key.
    def _keep(self, key: tuple[int, str], planned: PlannedGraph) -> None:
        for log in (self, _recent):
            log.planned[key] = planned
            log.planned.move_to_end(key)
            if log.capacity is not None and len(log.planned) > log.capacity:
                log.planned.popitem(last=False)

    def judge(self, plans: Mapping[str, ChosenPlan], with_check: Callable[[Graph, ChosenPlan], ChosenPlan]) -> None:
        """Replaces what is said of a graph alone by what is said of all graphs together, if its plan stays the same.

        Each step calls this; only new plans change anything.
        """
        if plans is self._judged:
            return
        self._judged = plans
        for (number, key), planned in list(self.planned.items()):
            chosen = plans.get(key)
            if chosen and chosen.together != planned.chosen.together and chosen.plan == planned.plan:
                judged = replace(planned, chosen=with_check(planned.graph, chosen), remarks=())
                self._keep((number, key), judged)

    def note(self, text: str) -> None:
        """Records, in the same logs as `add`, why a graph runs without a plan of ours."""
        for log in (self, _recent):
            log.notes.append(text)
        _LOGGER.info("%s", text)

    def report(self, held_memory: Callable[[], HeldMemory] | None = None) -> Report:
        """Reports what was recorded so far.

        Args:
            held_memory: returns what all calls saved at the same time.
        """
        planned, notes = list(self.planned.items()), tuple(self.notes)
        graphs = tuple(one for _, one in planned)
        if held_memory is None:
            return Report(graphs, notes=notes)
        most = held_memory()
        calls = tuple(most.calls.get(key, 0) for (_, key), _ in planned) if most.calls else ()
        return Report(graphs, most.bytes, most.default_bytes, most.limit_bytes, calls, notes)


_recent = Log(_RECENT)


def report_cached(planned: PlannedGraph) -> None:
    """Records a plan of an earlier run for `remat.last_report()`, unless the graph was planned in this run, too."""
    if all(other.graph != planned.graph for other in _recent.report().graphs):
        _recent.add(planned)


def with_report(
    step: Callable[..., Any],
    model: Callable[..., Any],
    log: Log,
    held_memory: Callable[[], HeldMemory] | None = None,
) -> CompiledStep:
    """Adds the method `report` to a compiled model, unless the model has a `report` already.

    The compiled model is changed in place, unless it is a function that torch has not compiled.
    """
    if step is model and not isinstance(step, nn.Module):  # torch's switch for "do not compile" is set
        step = functools.wraps(step)(functools.partial(step))
    if not hasattr(model, "report"):
        # By `vars`, because `setattr` on a compiled module sets the attribute of the original module.
        vars(step)["report"] = functools.partial(log.report, held_memory)
    return cast(CompiledStep, step)


def log_plans_if_asked(setting: str) -> None:
    """Logs each plan as a line on standard error, if the environment variable REMAT_LOG is "plans".

    For any other text, it warns.
    """
    if not setting:
        return
    if setting != "plans":
        told = f'the environment variable REMAT_LOG must be "plans", or not set, got {setting!r}: nothing is logged'
        warnings.warn(told, stacklevel=2)
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("remat: %(message)s"))
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False  # otherwise a program that logs, too, prints each line twice


log_plans_if_asked(os.environ.get("REMAT_LOG", ""))


def last_report() -> Report:
    """Reports the last 64 graphs that were planned in this process, with any backend.

    Use it for steps that were compiled by `torch.compile(model, backend="remat")`, or by the code of others.
    """
    return _recent.report()
