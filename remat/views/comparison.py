"""Defines the table that `remat.compare` returns, and computes performance profiles from it.

A performance profile says how often a solver is within a factor of the fastest. Source: Dolan and Moré, *Benchmarking
optimization software with performance profiles* (2002). On instance p, solver s takes time t(p, s), infinite if it
fails, and r(p, s) = t(p, s) / min over s of t(p, s). Then

    rho(s, tau) = share of all instances p with r(p, s) <= tau

At tau = 1 this is the share on which s is the fastest, and for large tau the share that it solves at all. An instance
that no solver solves counts against all of them.
"""

# pandas ships partial types: what its methods return is often unknown to pyright.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from remat.errors import RematError
from remat.words import human_bytes, human_price, human_seconds, spoken_gap

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

# The columns. Int64 is pandas' integer that can be missing: a float would round above 2**53.
_DTYPES = {
    "graph": "str",
    "instance": "str",
    "values": "int64",
    "cost_model": "str",
    "unit": "str",
    "budget_bytes": "Int64",
    "solver": "str",
    "exact": "bool",
    "objective": "Int64",
    "bound": "Int64",
    "gap": "float64",
    "termination": "str",
    "certified": "str",
    "proven": "bool",
    "saved_tensors": "Int64",
    "saved_bytes": "Int64",
    "recomputed_ops": "Int64",
    "pose_time_s": "float64",
    "solve_time_s": "float64",
    "error": "str",
}
# The required columns.
_NEEDED = ("graph", "cost_model", "unit", "solver", "termination")
_LONGEST_STYLED = 200


class Comparison(pd.DataFrame):
    """Holds one row per graph, cost model and solver, as a DataFrame.

    Columns:
        graph, instance, values: name of the graph, its name in the corpus or "", and its number of values.
        cost_model, unit: as users type it, with the options that differ from the defaults; the unit of its prices.
        budget_bytes: a limit of saved, live or all memory; missing without a limit, or if it is a share of a peak.
        solver: as users type it, with the options that differ from the defaults.
        exact: whether the solver claims optimality for every problem that it supports.
        objective, bound, gap: cost of the plan, lower bound on the cost of every plan, and (objective - bound) /
            objective.
        termination: "optimal", "feasible", "infeasible", "limit", "no_plan_found", or "refused" (see `error`).
        certified: the evidence of optimality, in words.
        proven: whether the proof was verified without trusting the solver.
        saved_tensors, saved_bytes: activations that the plan saves, and their memory. Inputs and parameters, which are
            alive anyway, are not counted; a shared storage counts once.
        recomputed_ops: operators that run a second time, without views, which are free.
        pose_time_s, solve_time_s: wall time of the cost model, and of the solver without the checks.
        error: why there is no plan, "" if there is one.
    """

    @classmethod
    def of(cls, rows: Sequence[dict[str, Any]]) -> Comparison:
        """Makes a table of rows; a missing column of a row becomes a missing value."""
        # Column by column: a frame of all rows would convert integers to floats if one is missing.
        cells = {name: [row.get(name) for row in rows] for name in _DTYPES}
        return cls({name: pd.array(cells[name], dtype=dtype) for name, dtype in _DTYPES.items()})

    @classmethod
    def load(cls, path: str | Path) -> Comparison:
        """Reads a table that `to_csv` wrote (a name that ends in ".csv"), or that `remat compare --json` printed.

        Raises:
            RematError: the file contains something else.
        """
        try:
            if str(path).endswith(".csv"):
                table = pd.read_csv(path, dtype=cast(Any, _DTYPES))
                rows = cls(table.fillna({name: "" for name in ("certified", "error") if name in table}))
            else:
                rows = cls.of(json.loads(Path(path).read_bytes()))
            lacking = sorted(set(_NEEDED) - set(rows.columns[rows.notna().any()]))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:  # json and pandas raise ValueErrors
            raise RematError(f"{path} must be CSV or JSON with the columns of remat.compare, got: {error}") from None
        if lacking:
            raise RematError(
                f"{path} must have the columns {', '.join(_NEEDED)} with values, but lacks {', '.join(lacking)}"
            )
        return rows

    @property
    def _constructor(self) -> type[Comparison]:
        return Comparison

    def readable(self) -> pd.DataFrame:
        """Returns the table for people: text cells in readable units; `error` only if there is one."""
        plain = pd.DataFrame(self).reset_index(drop=True)
        view = pd.DataFrame({title: show(plain) for title, needs, show in _VIEW if needs <= set(plain)}, dtype="str")
        return view if "error" not in view or any(view["error"]) else view.drop(columns="error")

    def texts(self) -> list[dict[str, str]]:
        return self.readable().to_dict(orient="records")

    def records(self) -> list[dict[str, Any]]:
        """Returns the rows as plain dictionaries, for JSON; missing values are None."""
        plain = pd.DataFrame(self).astype(object)
        return plain.where(plain.notna(), None).to_dict(orient="records")

    def best(self) -> list[bool]:
        """Returns for each row whether its objective is the least one for its graph and cost model."""
        if not {"graph", "cost_model", "objective"} <= set(self):
            return [False] * len(self)
        plain = pd.DataFrame(self)
        least = plain.groupby(["graph", "cost_model"])["objective"].transform("min")
        return (plain["objective"] == least).fillna(False).tolist()

    def profile(self) -> pd.DataFrame:
        """Computes performance profiles: how often a solver is near the fastest.

        Returns:
            one row per step of each curve: cost_model, solver, factor, and the share of the graphs for which the solver
                has found the best plan within that factor of the fastest one's time.
        """
        plain = pd.DataFrame(self)
        plain["taken"] = plain["solve_time_s"].clip(lower=1e-6).where(self.best(), np.inf)
        steps: list[tuple[Any, ...]] = []
        for model, rows in plain.groupby("cost_model", sort=False):
            ratio = ratios(rows.pivot(index="graph", columns="solver", values="taken").dropna())
            curves = {solver: profile(ratio[solver].to_numpy()) for solver in ratio}
            steps += [(model, solver, *step) for solver, curve in curves.items() for step in zip(*curve, strict=True)]
        return pd.DataFrame(steps, columns=["cost_model", "solver", "factor", "share"])

    def styled(self) -> Styler:
        """Styles the table for notebooks: readable units, the best objective of each graph and cost model in bold."""
        view = self.readable()
        css = pd.DataFrame("text-align: left", view.index, view.columns)
        css[[title for title in view if title in _NUMBERS]] = "text-align: right"
        if "objective" in view:
            css.loc[self.best(), "objective"] += "; font-weight: bold; background: #ffe3b8; color: black"
        style = view.style
        style.format(escape="html")
        style.hide(axis="index")
        style.apply(css.reindex_like, axis=None)
        return style

    def _repr_html_(self) -> str | None:
        return self.styled().to_html() if len(self) <= _LONGEST_STYLED else super()._repr_html_()


def _prices(column: str) -> _View:
    def show(frame: pd.DataFrame) -> list[str]:
        rows = zip(frame[column], frame["unit"], strict=True)
        return ["" if pd.isna(price) else human_price(int(price), unit) for price, unit in rows]

    return column, {column, "unit"}, show


def _cells(title: str, column: str, show: Callable[[Any], str] = str) -> _View:
    return title, {column}, lambda frame: ["" if pd.isna(cell) else show(cell) for cell in frame[column]]


def _optimality(frame: pd.DataFrame) -> list[str]:
    rows = zip(frame["proven"], frame["termination"], strict=True)
    return ["proven" if proven else "claimed" if ended == "optimal" else "" for proven, ended in rows]


_View = tuple[str, set[str], Callable[[pd.DataFrame], list[str]]]

# The columns in a notebook: title, source columns, and the function that formats the cells.
_VIEW: tuple[_View, ...] = (
    _cells("graph", "graph"),
    _cells("values", "values", "{:,}".format),
    _cells("cost model", "cost_model"),
    _cells("solver", "solver"),
    _cells("exact", "exact", lambda exact: "exact" if exact else "heuristic"),
    _prices("objective"),
    _prices("bound"),
    _cells("gap", "gap", spoken_gap),
    _cells("ended", "termination"),
    ("optimality", {"proven", "termination"}, _optimality),
    _cells("certified", "certified"),
    _cells("saved tensors", "saved_tensors", "{:,}".format),
    _cells("saved memory", "saved_bytes", human_bytes),
    _cells("recomputed ops", "recomputed_ops", "{:,}".format),
    _cells("posed in", "pose_time_s", human_seconds),
    _cells("solved in", "solve_time_s", human_seconds),
    _cells("error", "error"),
)
# The titles of columns that are aligned to the right.
_NUMBERS = {title for title, needs, _ in _VIEW if {_DTYPES[name] for name in needs} & {"int64", "Int64", "float64"}}


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
