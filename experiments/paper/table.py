"""Describes a table of a source: its cases, what was published of each, and how ours is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from experiments.paper.row_file import Rows

Figure = float | int | str | None
Figures = Mapping[str, Figure]
"""Figures by name, in the units that the table's `figures` say; None where a run has no such figure."""


MEMORY_GIB = 39.0
"""Tensors have so much of an A100 of 40 GB, the published machine, beside CUDA's own context."""

VIRTUAL = "a100-40gb"
"""The published machine, by its name in `remat.pytorch.virtual_gpu`: kernels are scheduled for it, and not run."""


class Unavailable(Exception):
    """Raised when a case cannot run here; the message says what it needs."""


class WrongStep(Exception):
    """Raised when a step fails, or computes something else than it should; the message says which and what."""


class UnknownCase(ValueError):
    """Raised when no case of a table has such a name."""


@dataclass(frozen=True)
class Setting:
    """Says where and how a case is measured.

    Attributes:
        device: "cpu" or "cuda"; or a GPU that need not be there, by its name in `remat.pytorch.virtual_gpu`.
        size: "published", or "small": what a CPU does in seconds.
        repeats: timed steps; figures are medians.
        seed: of weights and inputs; set before each case.
        memory_gib: what a search for the largest batch may use.
        trials: how many batches are scheduled for it where nothing runs.
    """

    device: str
    size: str
    repeats: int
    seed: int = 0
    memory_gib: float = MEMORY_GIB
    trials: int = 1

    @property
    def is_small(self) -> bool:
        """Whether the small size is asked for, not the published one."""
        return self.size == "small"

    @property
    def is_virtual(self) -> bool:
        """Whether kernels are scheduled for a GPU that is not there: nothing runs."""
        return self.device not in ("cpu", "cuda")


@dataclass(frozen=True)
class TableCase:
    """Describes one row of a table.

    Attributes:
        name: unique in its table.
        measure: measures it, in one of its table's units for each figure; may raise `Unavailable`.
        published: the source's figures, under the same names.
    """

    name: str
    measure: Callable[[Setting], Figures]
    published: Figures = field(default_factory=dict[str, Figure])


@dataclass(frozen=True)
class PaperTable:
    """Describes a table by its cases and their published figures.

    Attributes:
        name: of its files.
        title: what it shows.
        source: where the published figures stand, and on what they were measured.
        figures: the name of each figure, and its heading with the unit.
        cases: in the order of the source.
        notes: how ours differ from the published ones; Markdown.
        full_size: what the size "published" is called: "full" where the source does not say its own.
        summary: what all rows say together, as blocks of Markdown; may draw pictures into the folder of the table.
    """

    name: str
    title: str
    source: str
    figures: Mapping[str, str]
    cases: Sequence[TableCase]
    notes: str = ""
    full_size: str = "published"
    summary: Callable[[Rows, Path], Sequence[str]] | None = None
