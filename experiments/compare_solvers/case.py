"""Describes cases, the units of work here or on a cluster: one instance under one cost model, for several solvers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from experiments.compare_solvers.rows import SolverRow
from remat import CostModel
from remat.facts.corpus import Corpus, Entry
from remat.plugin import Solver

Plugin = TypeVar("Plugin", Solver, CostModel)


class Named(NamedTuple, Generic[Plugin]):
    """Pairs a solver or cost model with the text that stands for it on the command line."""

    text: str
    plugin: Plugin


@dataclass(frozen=True)
class SolverCase:
    """Says what to solve, and how.

    Attributes:
        instance: its name in the corpus.
        cost_model: it poses the problem, once.
        solvers: they solve it, one after the other.
        time_limit_s: for each solve.
        repeats: how many times each solver solves it; fewer if that takes longer than half the limit.
        folder: of the corpus; None for that of the repository.
    """

    instance: str
    cost_model: Named[CostModel]
    solvers: tuple[Named[Solver], ...]
    time_limit_s: float
    repeats: int
    folder: Path | None = None

    @property
    def keys(self) -> list[tuple[str, str, str]]:
        """The keys of its rows."""
        return [(self.instance, self.cost_model.text, solver.text) for solver in self.solvers]


def cases_of(
    entries: Iterable[Entry],
    cost_models: Sequence[Named[CostModel]],
    solvers: Sequence[Named[Solver]],
    *,
    time_limit_s: float,
    repeats: int,
    folder: Path | None,
) -> list[SolverCase]:
    """Makes all combinations, the largest instances first: so no worker waits long for another at the end."""
    ordered = sorted(entries, key=lambda entry: -entry.values)
    return [
        SolverCase(entry.name, model, tuple(solvers), time_limit_s, repeats, folder)
        for entry in ordered
        for model in cost_models
    ]


def unfinished(cases: Iterable[SolverCase], kept: Iterable[SolverRow], corpus: Corpus) -> list[SolverCase]:
    """Leaves out of the cases the solvers that have a row which still holds.

    A row holds unless the instance has changed since, it is an error (which may not last: a package was missing, or
    memory), or a time limit ended it that was shorter than this one.
    """
    rows = {row.key: row for row in kept}
    left = [
        replace(
            case,
            solvers=tuple(
                solver
                for solver, key in zip(case.solvers, case.keys, strict=True)
                if not _holds(rows, key, case.time_limit_s, corpus.entry(case.instance))
            ),
        )
        for case in cases
    ]
    return [case for case in left if case.solvers]


def graph_of(entry: Entry) -> str:
    """Returns what tells the file of an instance from another: the start of its SHA-256."""
    return entry.sha256[:16]


def _holds(
    rows: Mapping[tuple[str, str, str], SolverRow], key: tuple[str, str, str], limit_s: float, entry: Entry
) -> bool:
    row = rows.get(key)
    if row is None or row.status == "error" or row.graph != graph_of(entry):
        return False
    return not (row.stopped and row.time_limit_s < limit_s)
