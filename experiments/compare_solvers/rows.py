"""Describes rows of the comparison: a solver's answer to a problem, with its times, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd


class Kind(NamedTuple):
    """Names the type of a column as DuckDB and as pandas call it."""

    sql: str
    dtype: str


_KINDS = {
    "str": Kind("VARCHAR", "str"),
    "bool": Kind("BOOLEAN", "bool"),
    "int": Kind("BIGINT", "int64"),
    "int | None": Kind("BIGINT", "Int64"),  # a float would round prices above 2**53
    "float": Kind("DOUBLE", "float64"),
    "float | None": Kind("DOUBLE", "float64"),
}


@dataclass(frozen=True, kw_only=True)
class SolverRow:
    """Holds one solver's answer. Seconds are wall time, and medians over `repeats`.

    Attributes:
        instance, family, values, uses: as in the index of the corpus.
        cost_model, solver: as on the command line, with options.
        status: "optimal", "feasible", "infeasible", "limit" or "no_plan_found"; "refused": the solver
            does not take the problem; "timeout": it was killed at the time limit; "error": anything else.
        objective: what the plan costs, in `unit`.
        bound: no plan costs less, says the solver.
        gap: (objective - bound) / objective.
        certified: the answer passed `remat.proof.certify`, and its proof that no plan is better (or that there is none)
            was verified without trusting the solver.
        saved_bytes: memory of the saved activations.
        plan: a hash of the plan's decisions.
        pose_s: posing the problem, the facts about the graph included; once for all solvers.
        solve_s: the solver alone.
        certify_s: all checks before and after it.
        total_s: the three together.
        repeats: how many times it was solved.
        note: why there is no plan, or no proof; in one line.
        commit, date, machine, versions: of the code, and where it ran.
        exact: whether the solver claims optimality on every problem that it takes.
        unit: of the prices.
        budget_bytes: the most bytes that may be saved; None without a budget.
        stopped: the time limit ended the search.
        time_limit_s: that limit.
        graph: start of the SHA-256 of the instance's file.
    """

    instance: str
    family: str
    values: int
    uses: int
    cost_model: str
    solver: str
    status: str
    objective: int | None = None
    bound: int | None = None
    gap: float | None = None
    certified: bool = False
    saved_bytes: int | None = None
    plan: str = ""
    pose_s: float | None = None
    solve_s: float | None = None
    certify_s: float | None = None
    total_s: float | None = None
    repeats: int = 0
    note: str = ""
    commit: str
    date: str
    machine: str
    versions: str
    exact: bool
    unit: str
    budget_bytes: int | None = None
    stopped: bool = False
    time_limit_s: float
    graph: str

    @property
    def key(self) -> tuple[str, str, str]:
        """The columns that no two rows share: instance, cost model and solver."""
        return self.instance, self.cost_model, self.solver


_LONGEST_NOTE = 1000


def one_line(text: str) -> str:
    """Makes a note without line breaks, not endless, and without what no file can hold (halves of surrogate pairs)."""
    return " ".join(text.encode(errors="backslashreplace").decode().split())[:_LONGEST_NOTE]


COLUMNS = {field.name: _KINDS[str(field.type)] for field in fields(SolverRow)}
KEY = ("instance", "cost_model", "solver")


def frame_of(rows: Iterable[SolverRow]) -> pd.DataFrame:
    """Makes a table of rows. What a row lacks is missing; integers stay exact."""
    import pandas as pd  # here, for a process that solves one case does without, and starts in half the time

    columns = list(zip(*map(astuple, rows), strict=True)) or [()] * len(COLUMNS)
    return pd.DataFrame(
        {
            name: pd.array(list(cells), dtype=kind.dtype)  # type: ignore[call-overload]
            for (name, kind), cells in zip(COLUMNS.items(), columns, strict=True)
        }
    )
