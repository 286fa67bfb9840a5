"""Computes performance profiles: how often a solver is within a factor of the fastest.

Dolan and Moré, *Benchmarking optimization software with performance profiles* (2002). On instance p solver s takes
t(p, s), infinite where it fails, and r(p, s) = t(p, s) / min over s of t(p, s). Then

    rho(s, tau) = share of all instances p with r(p, s) <= tau

At tau = 1 that is the share on which s is the fastest, and for large tau that which it solves at all. An instance
that no solver solves counts, against all of them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray

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


def ratios(taken: pd.DataFrame) -> pd.DataFrame:
    """Divides times, instances x solvers, by that of the fastest; infinite where a solver failed."""
    best = taken.min(axis="columns")
    return taken.div(best.where(np.isfinite(best), 1.0), axis="index")


def profile(ratio: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Computes the steps of one solver's curve.

    Args:
        ratio: (instances,) to the fastest; infinite where it failed.

    Returns:
        (k,) factors tau at which the share rises, ascending from 1 on, and the share from there on.

    >>> profile(np.array([2.0, 1.0, np.inf, 2.0]))
    (array([1., 2.]), array([0.25, 0.75]))
    """
    tau = np.unique(np.concatenate([[1.0], ratio[np.isfinite(ratio)]]))
    return tau, np.searchsorted(np.sort(ratio), tau, side="right") / max(len(ratio), 1)
