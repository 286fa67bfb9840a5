"""A table of a source: its cases, what was published of each, and how ours is measured."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress

from experiments.paper.kept_rows import Row, Rows, WrongFile
from experiments.paper.table_page import markdown

RESULTS = Path(__file__).parents[1] / "results" / "paper"

Figure = float | int | str | None
Figures = Mapping[str, Figure]
"""By name. Numbers in the units that the table's `figures` say; None where a run has no such figure."""


MEMORY_GIB = 39.0
"""What is left to tensors on an A100 of 40 GB, the published machine, beside CUDA's own context."""


class Unavailable(Exception):
    """A case cannot run here; the message says what it needs."""


class WrongStep(Exception):
    """A step failed, or computes something else than it should; the message says which and what."""


class UnknownCase(ValueError):
    """No case of a table has such a name."""


@dataclass(frozen=True)
class Setting:
    """Where and how a case is measured.

    Attributes:
        device: "cpu" or "cuda".
        size: "published", or "small": what a CPU does in seconds.
        repeats: timed steps; figures are medians.
        seed: of weights and inputs; set before each case.
        memory_gib: what a search for the largest batch may use.
    """

    device: str
    size: str
    repeats: int
    seed: int = 0
    memory_gib: float = MEMORY_GIB

    @property
    def is_small(self) -> bool:
        """Whether the published size is not asked for."""
        return self.size == "small"


@dataclass(frozen=True)
class Case:
    """One row of a table.

    Attributes:
        name: unique in its table.
        measure: measures it, in one of its table's units for each figure; may raise `Unavailable`.
        published: the source's figures, under the same names.
    """

    name: str
    measure: Callable[[Setting], Figures]
    published: Figures = field(default_factory=dict[str, Figure])


@dataclass(frozen=True)
class Table:
    """Cases and their published figures.

    Attributes:
        name: of its files.
        title: what it shows.
        source: where the published figures stand, and on what they were measured.
        figures: the name of each figure, and its heading with the unit.
        cases: in the order of the source.
        notes: how ours differ from the published ones; Markdown.
        full_size: what the size "published" is called: "full" where the source does not say its own.
        summary: what all rows say together, as lines of Markdown; may draw pictures into the folder of the table.
    """

    name: str
    title: str
    source: str
    figures: Mapping[str, str]
    cases: Sequence[Case]
    notes: str = ""
    full_size: str = "published"
    summary: Callable[[Rows, Path], Sequence[str]] | None = None

    def measure(
        self, setting: Setting, folder: Path = RESULTS, *, only: str = "", minutes: float = 7.0, again: bool = False
    ) -> Rows:
        """Measures what is missing, most recent result wins, and writes `<name>.json` and `<name>.md`.

        Those that were never tried come first, then those that were tried the longest ago: what fails slowly, or
        is measured again, does not keep the others waiting whenever the time is over.

        Args:
            setting: where and how.
            folder: where the files are.
            only: the cases with this in their name.
            minutes: no case is begun after this.
            again: measures also what is there.

        Raises:
            UnknownCase: no case has `only` in its name.
            WrongFile: the folder has the file of another table.
        """
        chosen = [case for case in self.cases if only in case.name]
        if not chosen:
            raise UnknownCase(f"no case of {self.name} has {only!r} in its name: {[case.name for case in self.cases]}")
        known = [case.name for case in self.cases]
        rows = Rows.open(folder / f"{self.name}.json", self.name)
        rows.forget_all_but(known)
        todo = [case for case in chosen if again or not rows.has(case.name, setting.device, setting.size)]
        todo.sort(key=lambda case: rows.age(case.name, setting.device, setting.size))
        deadline = time.monotonic() + 60 * minutes
        with Progress(console=Console(stderr=True)) as progress:
            task = progress.add_task(self.name, total=len(todo))
            for case in todo:
                if time.monotonic() > deadline:
                    over = f"{minutes:g} minutes are over; the same command goes on with {case.name}"
                    progress.console.print(escape(over))
                    break
                progress.update(task, description=escape(f"{self.name}: {case.name}"))
                rows.add(_measured(case, setting))
                progress.advance(task)
        rows.save(known)
        summary = self.summary(rows, folder) if self.summary else ()
        (folder / f"{self.name}.md").write_text(markdown(self, rows, summary))
        return rows


def _clear(device: str) -> None:
    """Forgets what was compiled, and frees what nobody holds."""
    torch.compiler.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def _measured(case: Case, setting: Setting) -> Row:
    _clear(setting.device)
    torch.manual_seed(setting.seed)
    start, figures, problem, kind = time.perf_counter(), dict[str, Figure](), "", ""
    try:
        figures = dict(case.measure(setting))
    except Unavailable as error:
        problem, kind = str(error), "unavailable"
    except Exception as error:  # the other cases still count, and the row says what went wrong
        problem, kind = (
            f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}",
            "error",
        )
    return Row(case.name, setting.device, setting.size, figures, kind, problem, round(time.perf_counter() - start, 2))


def command(table: Table) -> Callable[..., None]:
    """The command line of a table: `typer.run(command(TABLE))`."""
    cuda = torch.cuda.is_available()

    def main(
        device: Annotated[str, typer.Option(help="cpu or cuda")] = "cuda" if cuda else "cpu",
        size: Annotated[str, typer.Option(help="small or published; published by default on CUDA")] = "",
        only: Annotated[str, typer.Option(help="the cases with this in their name")] = "",
        budget_minutes: Annotated[float, typer.Option(help="begin no case after this")] = 7.0,
        repeats: Annotated[int, typer.Option(min=1, help="timed steps of each")] = 10,
        again: Annotated[bool, typer.Option("--again", help="measure also what has a result")] = False,
        memory_gib: Annotated[float, typer.Option(min=0.1, help="that the largest batch may use")] = MEMORY_GIB,
        output: Annotated[Path, typer.Option(help="folder of the JSON and Markdown files", file_okay=False)] = RESULTS,
    ) -> None:
        size = size or ("published" if device == "cuda" else "small")
        for name, value, known in (("--device", device, ("cpu", "cuda")), ("--size", size, ("small", "published"))):
            if value not in known:
                raise typer.BadParameter(f"{value!r}: expected {' or '.join(known)}", param_hint=name)
        if device == "cuda" and not cuda:
            raise typer.BadParameter("there is no CUDA device here; use --device cpu", param_hint="--device")
        setting = Setting(device, size, repeats, memory_gib=memory_gib)
        try:
            rows = table.measure(setting, output, only=only, minutes=budget_minutes, again=again)
        except (UnknownCase, WrongFile) as error:
            hint = "--only" if isinstance(error, UnknownCase) else "--output"
            raise typer.BadParameter(str(error), param_hint=hint) from None
        console = Console(width=max(Console().width, 120))
        console.print(rows.readable(device, size, dict(table.figures)))
        console.print(escape(f"written to {output / table.name}.json and .md"))
        failed = [row for row in rows.of(device, size) if row.kind == "error" and only in row.case]
        if failed:
            for row in failed:
                console.print(f"[bold red]failed[/]: {escape(f'{row.case}: {row.problem}')}")
            raise typer.Exit(1)

    main.__doc__ = f"{table.title} ({table.source})."
    return main
