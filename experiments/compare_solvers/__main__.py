"""Runs every solver on every instance of the corpus under several cost models: `python -m experiments.compare_solvers`.

Each solve runs in a process that is killed at the time limit, and each answer is checked. Rows are kept in
`solvers.duckdb` as they arrive, with the commit and the machine that they come from. A call runs what has no row
yet: after Ctrl-C, a crash, or with more solvers, it goes on where it was.

On a cluster, through joblib: `--backend dask --scheduler tcp://host:8786`, or `--backend ray --scheduler host:6379`;
both start a local one without `--scheduler`. All machines need this checkout, and it must be on their path:

    PYTHONPATH=. dask scheduler
    PYTHONPATH=. dask worker tcp://host:8786 --nworkers 8 --nthreads 1
    python -m experiments.compare_solvers --backend dask --scheduler tcp://host:8786
"""

from __future__ import annotations

import fnmatch
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from experiments.compare_solvers import solver_pictures, summary
from experiments.compare_solvers.agreement import disagreements
from experiments.compare_solvers.case import Named, SolverCase, cases_of, unfinished
from experiments.compare_solvers.performance_profile import coverage
from experiments.compare_solvers.rows import SolverRow
from experiments.compare_solvers.scheduling import BACKENDS, run, workers
from experiments.compare_solvers.store import Store, check_export, check_folder
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS
from remat.answer.registry import solver_names, usable_solvers
from remat.cli.inputs import cost_model_of, solver_of
from remat.cli.output import table
from remat.errors import InvalidOption, RematError, UnknownName
from remat.facts.corpus import Corpus, Entry
from remat.words import near

COST_MODELS = (
    "byte-traffic",
    "byte-traffic:mode=aggressive",
    "multi-read",
    "memory-budget:budget=0.5,estimator=roofline:device=h200",
)
_SMOKE = 4
"""A trial takes this many instances, the smallest ones."""

_SHOWN = (
    "solver",
    "instances",
    "solved",
    "certified",
    "refused",
    "timeout",
    "error",
    "x fastest, mean",
    "x fastest, worst",
    "slowest, s",
    "gap, median",
)
"""A terminal shows these columns; solvers.md has all."""

PICTURES = {"Time against size": "solvers-scaling.svg", "Performance profiles": "solvers-profile.svg"}
"""The files of the page's pictures, by title."""

_STYLES = {"timeout": "yellow", "error": "red"}

console = Console(width=None if Console().is_terminal else 160)


def main(  # noqa: PLR0913, PLR0917  # one for each option
    solvers: Annotated[
        list[str] | None, typer.Option(metavar="NAME[:KEY=VALUE,...]", help="repeatable; all that are installed")
    ] = None,
    instances: Annotated[list[str] | None, typer.Option(metavar="GLOB", help="such as 'hf-*'; repeatable; all")] = None,
    cost_models: Annotated[
        list[str] | None, typer.Option(metavar="NAME[:KEY=VALUE,...]", help=f"repeatable; {', '.join(COST_MODELS)}")
    ] = None,
    time_limit: Annotated[float, typer.Option(min=0.1, max=1e6, help="seconds for each solve")] = 10.0,
    repeats: Annotated[
        int, typer.Option(min=1, help="of each solve, for medians; fewer if they take half the time limit")
    ] = 3,
    jobs: Annotated[int | None, typer.Option(help="cases at a time; 1 here, all workers of a cluster")] = None,
    backend: Annotated[str, typer.Option(help=f"of joblib: {', '.join(BACKENDS)}")] = "threading",
    scheduler: Annotated[str | None, typer.Option(metavar="ADDRESS", help="of a Dask or Ray cluster")] = None,
    folder: Annotated[Path | None, typer.Option(help="of the corpus; that of the repository")] = None,
    output: Annotated[
        Path | None, typer.Option(help="folder for solvers.duckdb, .csv, .md and .svg; experiments/results")
    ] = None,
    export: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="write all rows there, too: .parquet or .csv; repeatable")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="forget the rows that there are, and run them")] = False,
    smoke: Annotated[
        bool, typer.Option("--smoke", help="a trial: the smallest instances, in a folder of its own")
    ] = False,
) -> None:
    """Solves what has no row yet; then writes solvers.csv, solvers.md and two pictures of all rows.

    Exits with 1 if solvers disagree, or an answer did not pass its check.

    \b
      python -m experiments.compare_solvers --smoke
      python -m experiments.compare_solvers --jobs 2
      python -m experiments.compare_solvers --instances 'hf-*' --solvers networkx:flow_func=dinitz
      python -m experiments.compare_solvers --backend dask --scheduler tcp://host:8786
    """
    goes_on = "the same command"
    if output is None and smoke:
        output = Path(tempfile.mkdtemp(prefix="solvers-"))
        goes_on += f" with --output {output}"
    output = output or RESULTS
    try:
        check_folder(output)
        for path in export or ():
            check_export(path)  # not after hours of solving
        corpus = Corpus.open(folder)
        cases = cases_of(
            _entries(corpus, instances, smoke),
            [Named(text, cost_model_of(text)) for text in dict.fromkeys(cost_models or COST_MODELS)],
            [Named(text, solver_of(text)) for text in dict.fromkeys(solvers or _usable())],
            time_limit_s=time_limit,
            repeats=repeats,
            folder=None if folder is None else folder.resolve(),  # a worker may run elsewhere
        )
        with workers(backend, scheduler, jobs), Store(output / "solvers.duckdb") as store:
            if again:
                store.forget(key for case in cases for key in case.keys)
            _run(cases, unfinished(cases, store.rows(), corpus), store)
            frame = store.frame()
            for path in (output / "solvers.csv", *(export or ())):
                store.export(path)
    except RematError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(2 if isinstance(error, InvalidOption | UnknownName) else 1) from None
    except KeyboardInterrupt:
        goes_on += " without --again" if again else ""
        typer.echo(f"\nstopped: finished rows are kept, and {goes_on} goes on from here", err=True)
        raise typer.Exit(130) from None
    _write(frame, output)


def _usable() -> list[str]:
    missing = sorted(set(solver_names()) - set(usable_solvers()))
    if missing:
        console.print(f"not installed, left out: {', '.join(missing)}", style="yellow")
    return usable_solvers()


def _entries(corpus: Corpus, globs: Sequence[str] | None, smoke: bool) -> list[Entry]:
    names = [entry.name for entry in corpus.entries]
    if not names:
        raise RematError(f"--folder: the corpus in {corpus.folder} has no instances; `python -m experiments.corpus`")
    for glob in globs or ():
        if not fnmatch.filter(names, glob):
            raise typer.BadParameter(
                f"--instances {glob!r} matches no instance{near(glob, names)}; see `remat corpus list`"
            )
    chosen = [entry for entry in corpus.entries if any(fnmatch.fnmatch(entry.name, glob) for glob in globs or ("*",))]
    return sorted(chosen, key=lambda entry: entry.values)[:_SMOKE] if smoke else chosen


def _run(cases: Sequence[SolverCase], todo: Sequence[SolverCase], store: Store) -> None:
    """Runs the unfinished cases, keeps their rows, and shows how far it is."""
    total = sum(len(case.solvers) for case in cases)
    kept = total - sum(len(case.solvers) for case in todo)
    if kept:
        console.print(f"{kept:,} of {total:,} rows are kept; --again runs them, too")
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.description}", markup=False), console=console) as progress:
        task = progress.add_task("", total=total, completed=kept)

        def keep(rows: list[SolverRow]) -> None:
            store.add(rows)
            for row in rows:
                if row.status in ("timeout", "error"):
                    line = f"{row.status}: {row.solver} on {row.instance}, {row.cost_model}: {row.note}"
                    progress.console.print(line, style=_STYLES[row.status], markup=False, highlight=False)
            progress.update(task, advance=len(rows), description=f"{rows[-1].instance}, {rows[-1].cost_model}")

        run(todo, keep)


def _write(frame: pd.DataFrame, output: Path) -> None:
    wrong = disagreements(frame)
    solver_pictures.scaling(frame, output / "solvers-scaling.svg")
    solver_pictures.profiles(frame, output / "solvers-profile.svg")
    (output / "solvers.md").write_text(summary.markdown(frame, provenance(gpu=False)["command"], PICTURES))
    for cost_model, rows in frame.groupby("cost_model", sort=False):
        console.print(f"\n{cost_model}", style="bold", markup=False)
        console.print(table(summary.readable(summary.solver_table(rows))[list(_SHOWN)].to_dict("records")))
        if left_out := coverage(rows):
            console.print(f"({left_out})", style="yellow")
    console.print()
    for claim in wrong or summary.claims(frame):
        console.print(
            f"DISAGREEMENT: {claim}" if wrong else claim, style="bold white on red" if wrong else "", markup=False
        )
    console.print(
        f"written to {output}: solvers.csv, solvers.md, solvers-scaling.svg, solvers-profile.svg", markup=False
    )
    if wrong:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
