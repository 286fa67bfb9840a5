"""Says what was solved, and how fast, of what performance profiles are made (`remat.views.performance_profile`)."""

from __future__ import annotations

import numpy as np
import pandas as pd

WITHIN = 0.001
"""An instance is solved by a plan that costs at most so much more, as a share, than the best bound of any solver.

Under a budget heuristics prove little by themselves, though their plans may be as good as those of exact solvers.
"""


def best_bound(frame: pd.DataFrame) -> pd.Series:
    """Finds (rows,) the best bound of any solver, of rows of one cost model. Another file is another problem."""
    return frame.groupby(["instance", "graph"])["bound"].transform("max")


def solved(frame: pd.DataFrame) -> pd.Series:
    """Tells (rows,) which rows of one cost model have a plan within `WITHIN` of the best bound of their instance."""
    bound = best_bound(frame)
    excess = (frame["objective"] - bound).astype("Float64")
    return (excess <= WITHIN * bound.astype("Float64")).fillna(value=False).astype(bool)


def seconds(frame: pd.DataFrame) -> pd.DataFrame:
    """Tabulates `solve_s`, instances x solvers; infinite where the instance was not solved.

    Args:
        frame: rows of one cost model. Instances that not every solver was asked to solve are left out, or not in
            the same file.
    """
    taken = frame.assign(taken=frame["solve_s"].clip(lower=1e-6).where(solved(frame), np.inf))
    return taken.pivot(index=["instance", "graph"], columns="solver", values="taken").dropna().droplevel("graph")


def coverage(frame: pd.DataFrame) -> str:
    """Says in words what `seconds` leaves out; "" if nothing."""
    compared, asked = len(seconds(frame)), frame["instance"].nunique()
    return "" if compared == asked else f"times compared on {compared} of {asked} instances: those with all solvers"
