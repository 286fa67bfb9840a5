"""Computes performance profiles: how often a solver is within a factor of the fastest.

Source: Dolan and Moré, *Benchmarking optimization software with performance profiles* (2002). On instance p, solver s
takes time t(p, s), infinite if it fails, and r(p, s) = t(p, s) / min over s of t(p, s). Then

    rho(s, tau) = share of all instances p with r(p, s) <= tau

At tau = 1 this is the share on which s is the fastest, and for large tau the share that it solves at all. An instance
that no solver solves counts against all of them.
"""

# pandas ships partial types: what its methods return is often unknown to pyright.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import NDArray


def ratios(times: pd.DataFrame) -> pd.DataFrame:
    """Divides times (instances x solvers) by the fastest time of each instance; times of failures stay infinite."""
    best = times.min(axis="columns")
    return times.div(best.where(np.isfinite(best), 1.0), axis="index")


def profile(ratio: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Computes the steps of one solver's curve.

    Args:
        ratio: (instances,) time relative to the fastest; infinite if it failed.

    Returns:
        the factors tau (k,) at which the share rises, ascending from 1 on, and the share (k,) from there on.

    >>> profile(np.array([2.0, 1.0, np.inf, 2.0]))
    (array([1., 2.]), array([0.25, 0.75]))
    """
    tau = np.unique(np.concatenate([[1.0], ratio[np.isfinite(ratio)]]))
    return tau, np.searchsorted(np.sort(ratio), tau, side="right") / max(len(ratio), 1)
