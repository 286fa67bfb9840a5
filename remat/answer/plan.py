"""A plan: the answer to "save or recompute?", as data."""

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
"""Of the files. A plan that offloads nothing is written as before there was a choice."""
_SHOWN = 12


@dataclass(frozen=True)
class Plan:
    """Which values the forward pass saves and which ones the backward pass recomputes.

    Every other value of the forward pass is not available in the backward pass.

    Attributes:
        saved: names, in graph order.
        recomputed: names, in graph order.
        graph: `Graph.signature` of the graph that the plan was made for, if known: plans of `solve`,
            `choose` and searches have it. The decisions are what makes two plans equal.
        offloaded: names of those saved values that wait in the host's memory, in graph order.
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
        """This plan, with the graph noted, so that a replay on another one is refused."""
        checked_graph(graph)
        return replace(self, graph=Deferred(lambda: graph.signature))

    def check_is_for(self, graph: Graph, remedy: str = "Solve the new graph") -> None:
        """Checks that `graph` is the one noted in this plan, if any is.

        Args:
            graph: what the plan is about to be used for.
            remedy: what the message says to do.

        Raises:
            InvalidPlan: it is another one; the message shows what changed, in the inputs before all.
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
        """A stable hash of the decisions: the same on every machine, in whatever order they are listed."""
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
        """Reads what `save` wrote, gzipped or not.

        Raises:
            InvalidPlan: not a plan file, of a newer version, or altered since it was written.
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
    """Returns the same object, if it is a plan.

    Raises:
        InvalidOption: it is none; the message begins with `label`.
    """
    if not isinstance(plan, Plan):
        raise InvalidOption(f"{label} must be a remat.Plan (`solution.plan` of a solution), got {plan!r}")
    return plan
