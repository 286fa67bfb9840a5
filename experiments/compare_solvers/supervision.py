"""Runs a case in a process that is killed when a solver exceeds its time, and goes on with the next solver.

A solver may hang where no signal of Python reaches it, or start a process of its own (CBC). So a case has a process
group, and is killed as a whole. It costs a second a case to start Python; reading and posing are done again after
a kill only.
"""

from __future__ import annotations

import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.compare_solvers.case import SolverCase, graph_of
from experiments.compare_solvers.rows import SolverRow, one_line
from experiments.report.provenance import provenance
from remat.facts.corpus import Corpus
from remat.plugin import Feature, Solver

ROOT = Path(__file__).parents[2]

_START_S = 120.0
"""A process may take so long to start Python, read the largest graph and pose: a hundred times what it takes."""

_IMPORT_S = 30.0
"""A process may take so long to import a solver's package and solve a trifle: that is not what is compared."""

_OTHERS = ("commit", "date", "machine", "command", "torch")
"""What `provenance` says beside the versions of the packages that run here."""


def rows_of(case: SolverCase) -> list[SolverRow]:
    """Makes a row for each solver of a case, whatever happens to it.

    Raises:
        UnknownName, InvalidGraph, NotInstalled: the corpus does not have the instance.
    """
    entry, origin = Corpus.open(case.folder).entry(case.instance), provenance(gpu=False)
    rows: list[SolverRow] = []
    left = case.solvers
    while left:
        answers = _answers(replace(case, solvers=left))
        rows += [
            SolverRow(
                instance=entry.name,
                family=entry.family,
                values=entry.values,
                uses=entry.uses,
                cost_model=case.cost_model.text,
                solver=solver.text,
                commit=origin["commit"],
                date=origin["date"],
                machine=origin["machine"],
                versions=", ".join(f"{name} {number}" for name, number in origin.items() if name not in _OTHERS),
                exact=solver.plugin.exact,
                unit=case.cost_model.plugin.unit,
                time_limit_s=case.time_limit_s,
                graph=graph_of(entry),
                **answer,
            )
            for solver, answer in zip(left, answers, strict=False)
        ]
        left = left[len(answers) :]
    return rows


def _answers(case: SolverCase) -> list[dict[str, Any]]:
    """Collects one process's answers: those of all solvers up to one that had to be killed or killed the process."""
    with _Process(case) as process:
        posed = process.step(_START_S, late={"status": "error", "note": f"not posed within {_START_S:.0f} s"})
        if "status" in posed:
            return [posed] * len(case.solvers)
        answers: list[dict[str, Any]] = []
        for solver in case.solvers:
            patience_s = _patience_s(solver.plugin, case.time_limit_s)
            late = {"status": "timeout", "stopped": True, "note": f"killed after {patience_s:g} s"}
            unready = {"status": "error", "note": f"not imported, and a trifle not solved, within {_IMPORT_S:g} s"}
            answer = process.step(_IMPORT_S, unready)
            if "started" in answer:
                answer = process.step(patience_s, late)
            answers.append(posed | answer)
            if process.is_over:
                break
        return answers


def _patience_s(solver: Solver, limit_s: float) -> float:
    """Says how long a solver may take, checks included; one that keeps a limit itself has time to build and to stop."""
    return 2 * limit_s + 10 if Feature.TIME_LIMIT in solver.features else limit_s


class _Process:
    """Runs a process that solves a case, and kills it with all that it started.

    Attributes:
        is_over: it was too slow, or has died.
    """

    def __init__(self, case: SolverCase) -> None:
        data = pickle.dumps(case)
        self.is_over = False
        # For its files, too: PuLP leaves some behind when it is killed.
        self._scratch = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._errors = Path(self._scratch.name) / "errors"
        paths = [str(ROOT), *(path or str(Path.cwd()) for path in sys.path)]
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "experiments.compare_solvers.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": self._scratch.name},
                start_new_session=True,
            )
        assert self._process.stdin is not None
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        with suppress(BrokenPipeError):  # then it has died, and `step` says so
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._scratch.cleanup()

    def step(self, seconds: float, late: dict[str, Any]) -> dict[str, Any]:
        """Waits for the next message; returns `late` if there is none in time, an error if the process has died."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            self.is_over = True
            return late
        if line is None or not line.endswith(b"\n"):  # it may die while it writes
            self.is_over = True
            return {"status": "error", "note": self._last_words()}
        return json.loads(line)

    def _last_words(self) -> str:
        code = self._process.wait()
        said = self._errors.read_text(errors="replace").strip().splitlines()
        how = f"the process was ended by {signal.Signals(-code).name}" if code < 0 else f"the process ended with {code}"
        return one_line(f"{how}: {said[-1]}") if said else how
