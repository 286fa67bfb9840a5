"""Sums up the rows: a table for each cost model, and the page around them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from experiments.compare_solvers.agreement import disagreements, same_plans
from experiments.compare_solvers.gaps_over_time import gap_rows, gap_titles, gaps, gaps_over_time
from experiments.compare_solvers.performance_profile import WITHIN, coverage, seconds, solved
from experiments.report.markdown import bullets, page, section, table
from remat.views.performance_profile import ratios

_STATUS = ("optimal", "feasible", "refused", "timeout", "error")
_OTHER = ("infeasible", "limit", "no_plan_found")
_LONGEST_NOTE = 160


def solver_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Makes a table with a row for each solver.

    Args:
        frame: rows of one cost model.
    """
    ratio, is_solved = ratios(seconds(frame)), solved(frame)
    gap = gaps(frame)
    rows = []
    for solver, own in frame.groupby("solver"):
        solves = is_solved[own.index]
        known = gap[own.index].dropna()
        rows.append(
            {
                "solver": solver,
                "instances": len(own),
                "solved": int(solves.sum()),
                "certified": int(own["certified"].sum()),
                **{status: int((own["status"] == status).sum()) for status in (*_STATUS, *_OTHER)},
                **_relative(ratio[solver] if solver in ratio else pd.Series(dtype=float)),
                "slowest, s": own["solve_s"][solves].max(),
                "grows as n^": exponent(own["values"][solves], own["solve_s"][solves]),
                "gap, median": known.median() if len(known) else np.nan,
                "gap, worst": known.max() if len(known) else np.nan,
            }
        )
    shown = pd.DataFrame(rows)
    shown = shown.drop(columns=[status for status in _OTHER if not shown[status].any()])
    return shown.sort_values(["solved", "x fastest, mean"], ascending=[False, True], kind="stable", ignore_index=True)


def _relative(ratio: pd.Series) -> dict[str, object]:
    """Says how much slower than the fastest a solver is where it solves: geometric mean, worst, and where that is."""
    finite = ratio[np.isfinite(ratio)]
    if finite.empty:
        return {"x fastest, mean": np.nan, "x fastest, worst": np.nan, "worst on": ""}
    return {
        "x fastest, mean": float(np.exp(np.log(finite).mean())),
        "x fastest, worst": float(finite.max()),
        "worst on": str(finite.idxmax()),
    }


def exponent(values: pd.Series, taken: pd.Series) -> float:
    """Fits k such that seconds grow as values**k: least squares of the logarithms; NaN for fewer than three sizes."""
    if values.nunique() < 3:
        return np.nan
    return float(np.polyfit(np.log(values.astype(float)), np.log(taken.clip(lower=1e-6)), 1)[0])


def readable(shown: pd.DataFrame) -> pd.DataFrame:
    """Turns the cells of a `solver_table` into text."""
    styles = {
        "x fastest, mean": "{:,.1f}",
        "x fastest, worst": "{:,.1f}",
        "slowest, s": "{:.3g}",
        "grows as n^": "{:.1f}",
        "gap, median": "{:.2%}",
        "gap, worst": "{:.2%}",
    }
    return pd.DataFrame(
        {
            column: ["" if pd.isna(cell) else styles.get(column, "{}").format(cell) for cell in shown[column]]
            for column in shown
        },
        dtype="str",
    )


def markdown(frame: pd.DataFrame, command: str, pictures: Mapping[str, str]) -> str:
    """Makes the page of the comparison.

    Args:
        frame: all rows.
        command: that made it.
        pictures: title -> file name, in the page's folder.
    """
    return page(
        "Solvers on the corpus",
        f"`{command}`: {len(frame):,} rows, {frame['instance'].nunique()} instances. {_origin(frame)}",
        bullets(claims(frame)),
        _WORDS,
        *(f"![{title}]({name})" for title, name in pictures.items()),
        *(_cost_model(str(name), rows) for name, rows in frame.groupby("cost_model", sort=False)),
        _reasons(frame),
    )


_WORDS = (
    f"*Solved*: a plan that costs at most {WITHIN:.1%} more than the best bound of any solver, within the time "
    "limit; a solver that keeps the limit itself may need longer to build its model and to stop, and its seconds "
    "say so. *Certified*: proven, and the proof verified without trusting the solver. *x fastest*: seconds of the "
    "solver alone, to those of the fastest, over the instances that it solved, of those that all solvers of the "
    "table were asked to solve; the geometric mean, and the worst. "
    "*Gap*: of its plans to the best bound of any solver. *Gap after*: the mean over all instances that the solver "
    "takes, and 100% on each on which it has not answered yet. *Grows as*: seconds fitted to a power of the number of "
    "values. *Refused*: the solver does not take the problem, and says so. Without a budget, a solver that is not "
    "exact (`lagrangian`, the knapsacks) is one cut by the default flow solver; the pictures leave it out."
)


def _cost_model(name: str, rows: pd.DataFrame) -> str:
    """Makes the section of one cost model."""
    shown, left_out, over_time = readable(solver_table(rows)), coverage(rows), gaps_over_time(rows)
    return section(
        f"`{name}`",
        f"({left_out})" if left_out else "",
        table(list(shown), shown.to_numpy().tolist()),
        table(gap_titles(over_time), gap_rows(over_time)),
    )


def claims(frame: pd.DataFrame) -> list[str]:
    """States what holds for all rows, and what does not."""
    wrong = disagreements(frame)
    if wrong:
        return [f"**The solvers disagree.** {conflict}" for conflict in wrong]
    plans = int(frame["objective"].notna().sum())
    optimal = int((frame["status"] == "optimal").sum())
    same, several = same_plans(frame)
    found = [
        f"All solvers agree: of {plans:,} plans, {optimal:,} are called optimal, and none costs less than any solver's "
        f"bound.",
        f"{int(frame['certified'].sum()):,} answers are certified.",
    ]
    if several:
        found.append(f"Where several plans are certified, all are the same plan: on {same:,} of {several:,} problems.")
    return found


def _origin(frame: pd.DataFrame) -> str:
    """Says where the rows come from: one sentence for each commit, machine and versions."""
    groups = frame.groupby(["commit", "machine", "versions"], sort=False)
    texts = [
        f"{len(rows):,} of commit {commit}, {rows['date'].min()}"
        + ("" if rows["date"].min() == rows["date"].max() else f" to {rows['date'].max()}")
        + f", {machine}; {versions}; limit {_several(rows['time_limit_s'])} s"
        for (commit, machine, versions), rows in groups
    ]
    return ". ".join(texts) + "."


def _several(numbers: pd.Series) -> str:
    return " and ".join(f"{number:g}" for number in sorted(numbers.unique()))


def _reasons(frame: pd.DataFrame) -> str:
    """Lists why there is no plan, or no proof: each reason once, with how often."""
    failed = frame[frame["status"].isin(["refused", "timeout", "error", *_OTHER])]
    if failed.empty:
        return ""
    # Numbers differ from instance to instance, the reason does not.
    reason = failed["note"].str.replace(r"\d+(?:[.,]\d+)*", "…", regex=True).str.slice(0, _LONGEST_NOTE)
    counts = failed.assign(reason=reason).groupby(["solver", "status", "reason"]).size()
    lines = [f"{solver}, {status}, {count:,} x: {why}" for (solver, status, why), count in counts.items()]  # type: ignore[misc]
    return section("Why there is no plan", bullets(lines))
