"""Says how far each solver is after how many seconds: gaps over time.

As is usual for integer programs (Berthold, *Measuring the impact of primal heuristics*, 2013), a solver that has no
answer yet is at 100%. A row of the store has one answer, the last, and when it came: what a solver had found before is
not known, so that these gaps are at most too large.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from experiments.compare_solvers.performance_profile import best_bound

SECONDS = (0.01, 0.1, 1.0, np.inf)
"""The last is the end: a solver that keeps the time limit itself may need longer to stop."""


def gaps(frame: pd.DataFrame) -> pd.Series:
    """Computes (rows,) the gap of each row's plan to the best bound of any solver; missing where there is no plan.

    Args:
        frame: rows of one cost model.
    """
    excess = (frame["objective"] - best_bound(frame)).astype("Float64")
    return (excess / frame["objective"].where(frame["objective"] > 0)).mask((excess == 0).fillna(value=False), 0)


def gaps_over_time(frame: pd.DataFrame, limits: tuple[float, ...] = SECONDS) -> pd.DataFrame:
    """Tabulates solvers x seconds: the mean gap over all instances that a solver takes; the best in the end first.

    Args:
        frame: rows of one cost model.
        limits: seconds of the solver alone.

    Returns:
        shares from 0 to 1. A solver that takes none of the instances is left out.
    """
    taken = frame[frame["status"] != "refused"]
    gap = gaps(frame)[taken.index].astype(float).fillna(1.0)
    after = {
        limit: gap.where((taken["solve_s"] <= limit).fillna(value=False), 1.0).groupby(taken["solver"]).mean()
        for limit in limits
    }
    table = pd.DataFrame(after)
    return table.sort_values(list(reversed(limits)), kind="stable")


def gap_titles(table: pd.DataFrame) -> list[str]:
    """Writes the head of a table of gaps."""
    return ["gap after", *("the end" if np.isinf(limit) else f"{limit:g} s" for limit in table)]


def gap_rows(table: pd.DataFrame) -> list[tuple[str, ...]]:
    """Writes a table of gaps: a row for each solver; "-" where there is no answer at all yet."""
    shown = table.map(lambda gap: "-" if gap == 1 else f"{gap:.2%}")
    return [
        (str(solver), *row) for solver, row in zip(shown.index, shown.to_numpy(dtype=np.str_).tolist(), strict=True)
    ]
