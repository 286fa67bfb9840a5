"""Defines a plan: which values to save and which to recompute, by name."""

from __future__ import annotations

import difflib
import hashlib
import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from remat.errors import InvalidOption, InvalidPlan
from remat.facts.argument_checks import checked_path
from remat.facts.columns import name_column
from remat.facts.graph import Graph, checked_graph
from remat.facts.json_file import read_document, write_document
from remat.facts.lazy_field import Deferred, LazyField, is_deferred

_FORMAT = "remat.plan"
_VERSION, _WITH_OFFLOADED = 1, 2
"""Versions of the file format. A plan without offloading has the first, so that an older remat can read it."""
_SHOWN = 12


@dataclass(frozen=True)
class Plan:
    """Names the values that the forward pass saves and those that the backward pass recomputes.

    No other value of the forward pass is available in the backward pass.

    Attributes:
        saved: names, in graph order.
        recomputed: names, in graph order.
        graph: `Graph.signature` of the plan's graph, or empty if unknown. Plans of `solve`, `choose` and searches have
            it. Plans with equal decisions are equal, whatever their graph.
        offloaded: names of the saved values that wait in host memory, in graph order.
    """

    saved: tuple[str, ...]
    recomputed: tuple[str, ...]
    graph: LazyField[tuple[str, ...]] = field(default=LazyField(()), compare=False)
    offloaded: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for label in ("saved", "recomputed", "graph", "offloaded"):
            if not is_deferred(self, label):
                object.__setattr__(self, label, name_column(f"Plan.{label}", getattr(self, label), InvalidPlan))

    def for_graph(self, graph: Graph) -> Plan:
        """Returns this plan with the signature of a graph, so that another graph is refused."""
        checked_graph(graph)
        return replace(self, graph=Deferred(lambda: graph.signature))

    def check_is_for(self, graph: Graph, remedy: str = "Solve the new graph") -> None:
        """Checks that a graph has the signature of this plan, if the plan has one.

        Args:
            graph: the graph for which the plan will be used.
            remedy: the advice at the end of the error message.

        Raises:
            InvalidPlan: the graphs differ; the message shows the differences, changed inputs first.
        """
        if not self.graph or self.graph == checked_graph(graph).signature:
            return
        changes = list(difflib.unified_diff(self.graph, graph.signature, lineterm="", n=0))[2:]
        changes = [line for line in changes if not line.startswith("@@")]
        shown = ([line for line in changes if ": placeholder" in line] or changes)[:_SHOWN]
        rest = f"\n  ... and {len(changes) - len(shown)} more lines" if len(changes) > len(shown) else ""
        listed = "\n  ".join(shown)
        raise InvalidPlan(
            f"the plan was made for another graph ({len(changes)} lines differ; - then, + now):\n  {listed}{rest}\n"
            f"{remedy}."
        )

    @cached_property
    def digest(self) -> str:
        """Returns a hash of the decisions: the same on every machine, and for every order of the names."""
        decisions = [self.saved, self.recomputed, *([self.offloaded] if self.offloaded else [])]
        return hashlib.sha256(json.dumps([sorted(names) for names in decisions]).encode()).hexdigest()

    def __repr__(self) -> str:
        host = f" ({len(self.offloaded)} on the host)" if self.offloaded else ""
        return f"<Plan {self.digest[:10]}: {len(self.saved)} saved{host}, {len(self.recomputed)} recomputed>"

    def save(self, path: str | Path) -> None:
        """Writes the plan as JSON, gzipped if the name ends in ".gz"."""
        document: dict[str, Any] = {
            "format": _FORMAT,
            "version": _WITH_OFFLOADED if self.offloaded else _VERSION,
            "digest": self.digest,
            "saved": self.saved,
            "recomputed": self.recomputed,
            "graph": self.graph,
        }
        if self.offloaded:
            document["offloaded"] = self.offloaded
        write_document(document, checked_path(path), indent=1)

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Reads a file that `save` wrote, gzipped or not.

        Raises:
            InvalidPlan: the file is no plan file, has a newer version, or was altered after it was written.
        """
        fields = read_document(checked_path(path), _FORMAT, InvalidPlan)
        labels = ["saved", "recomputed", "graph"]
        if fields.get("version") == _WITH_OFFLOADED:
            labels.append("offloaded")
        elif fields.get("version") != _VERSION:
            raise InvalidPlan(
                f"{path}: version {fields.get('version')!r}, but this remat reads {_VERSION} and {_WITH_OFFLOADED}"
            )
        if "graph" not in fields:
            raise InvalidPlan(f"{path}: written before plans noted the graph that they are for; solve that graph again")
        for key in labels:
            if not isinstance(fields.get(key), list):
                raise InvalidPlan(f'{path}: "{key}" must be a list of names, got {fields.get(key)!r}')
        plan = cls(*(tuple(map(str, fields[key])) for key in labels))
        if plan.digest != fields.get("digest"):
            raise InvalidPlan(f"{path}: the digest does not match the content; the file was altered")
        return plan


def checked_plan(plan: object, label: str = "plan") -> Plan:
    """Returns the same plan; raises an `InvalidOption` that begins with `label` for anything else."""
    if not isinstance(plan, Plan):
        raise InvalidOption(f"{label} must be a remat.Plan (`solution.plan` of a solution), got {plan!r}")
    return plan
