"""Sums what plans save by source line of the model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.facts.graph import Graph
from remat.words import cut, human_bytes, placed

_NUMBER = re.compile(r"\b[0-9]+\b")


@dataclass(frozen=True)
class SavedLine:
    """Describes how many of the saved bytes come from one line of a model.

    Attributes:
        line: such as "model.py:57"; the module's path if only that is known; "" if nothing is.
        modules: paths of the modules that ran the line, with "*" for the numbers of layers: "layers.*.fc1".
        bytes: memory between the passes; values that share a storage count once.
        values: the number of these storages.
    """

    line: str
    modules: tuple[str, ...]
    bytes: int
    values: int

    def modules_told(self, width: int = 60) -> str:
        """Returns the first module, shortened to a width, and the number of the others."""
        more = f" and {len(self.modules) - 1} more" if len(self.modules) > 1 else ""
        return "".join(cut(module, width - len(more)) for module in self.modules[:1]) + more

    def __str__(self) -> str:
        return f"{human_bytes(self.bytes)} from {placed(self.line or 'an unknown line', self.modules_told())}"


def saved_lines(plans: Iterable[tuple[Graph, Plan]]) -> tuple[SavedLine, ...]:
    """Returns what plans save on the device by line, the largest first; empty if the graphs have no places.

    Raises `InvalidPlan` if a plan names a value that its graph does not have.
    """
    sizes: dict[str, list[int]] = {}
    modules: dict[str, dict[str, None]] = {}
    for graph, plan in plans:
        choice = Choice.from_plan(graph, plan, offload=True)
        elsewhere = (graph.input | choice.offloaded)[graph.base]
        owners: list[int] = np.unique(graph.base[choice.saved & ~elsewhere]).tolist()
        for v in owners:
            line = graph.sources[v] or graph.modules[v]
            sizes.setdefault(line, []).append(int(graph.activation_bytes[v]))
            if graph.sources[v] and graph.modules[v]:
                modules.setdefault(line, {})[_NUMBER.sub("*", graph.modules[v])] = None
    lines = [SavedLine(line, tuple(modules.get(line, ())), sum(of), len(of)) for line, of in sizes.items()]
    return tuple(sorted(lines, key=lambda line: -line.bytes)) if any(sizes) else ()
