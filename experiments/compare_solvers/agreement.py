"""Checks that the solvers agree: a plan of one may refute what another proves or claims."""

from __future__ import annotations

import pandas as pd

_WRONG = ("InvalidPlan:", "CertificateRejected:")
"""A note that begins so says that `remat.solve` has raised at a wrong answer."""


def disagreements(frame: pd.DataFrame) -> list[str]:
    """Lists claims that cannot be true at once, one line each, and answers that did not pass their check.

    One rule is enough: no plan may cost less than any solver's bound. An optimal plan's bound is its cost, so two
    solvers that call different costs optimal break it, and so does a heuristic below an exact solver's optimum.
    """
    found = [
        f"{row['instance']}, {row['cost_model']}: the answer of {row['solver']} is wrong: {row['note']}"
        for row in frame.to_dict("records")
        if row["note"].startswith(_WRONG)
    ]
    for (instance, _, cost_model), rows in frame.groupby(["instance", "graph", "cost_model"], sort=False):
        found += [f"{instance}, {cost_model}: {conflict}" for conflict in _conflicts(rows.to_dict("records"))]
    return found


def _conflicts(rows: list[dict]) -> list[str]:  # type: ignore[type-arg]
    found: list[str] = []
    plans = [row for row in rows if not pd.isna(row["objective"])]
    bounds = [row for row in rows if not pd.isna(row["bound"])]
    if not plans:
        return found
    cheapest = min(plans, key=lambda row: row["objective"])
    found += [
        f"{_who(row)} says that no plan costs less than {row['bound']}, but {_who(cheapest)} has one of "
        f"{cheapest['objective']}"
        for row in bounds
        if row["bound"] > cheapest["objective"]
    ]
    found += [
        f"{_who(row)} says that there is no plan, but {_who(cheapest)} has one"
        for row in rows
        if row["status"] == "infeasible"
    ]
    return found


def _who(row: dict) -> str:  # type: ignore[type-arg]
    return f"{row['solver']} ({row['commit']})"


def same_plans(frame: pd.DataFrame) -> tuple[int, int]:
    """Counts the problems whose certified plans are all the same plan, and those with two or more certified plans."""
    proven = frame[frame["certified"] & (frame["plan"] != "")]
    plans = proven.groupby(["instance", "graph", "cost_model"])["plan"].agg(["nunique", "size"])
    several = plans[plans["size"] > 1]
    return int((several["nunique"] == 1).sum()), len(several)
