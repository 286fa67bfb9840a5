"""Chooses the plots of a list of rows by its columns. Rows with other columns get a table and no plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from experiments.report.budget_charts import budgets
from experiments.report.error_charts import against
from experiments.report.timing_charts import beside, sizes_of_problems, times
from experiments.report.traffic_charts import by_strategy
from remat.views.report.section import Figure, Row

Rows = Sequence[Row]


class Chart(NamedTuple):
    """Names a plot for rows that have certain columns.

    Attributes:
        needs: the columns, in every row.
        draw: the figures.
    """

    needs: frozenset[str]
    draw: Callable[[Rows], tuple[Figure, ...]]


_NAMES = frozenset({"model", "estimator", "strategy", "step", "statement", "partitioner"})
"""Columns by which rows are told apart; a file may have anything in them."""


def figures(rows: Rows) -> tuple[Figure, ...]:
    """Draws the plots that rows of these columns have; none if nobody made one for them."""
    if not rows:
        return ()
    rows = [{**row, **{key: str(row[key]) for key in _NAMES & row.keys()}} for row in rows]
    common = set(rows[0]).intersection(*map(set, rows))
    return next((chart.draw(rows) for chart in CHARTS if chart.needs <= common), ())


CHARTS: tuple[Chart, ...] = (
    Chart(frozenset({"model", "estimator", "budget", "pytorch", "ours"}), budgets),
    Chart(
        frozenset({"model", "pytorch_one_budget_s", "ours_whole_frontier_s"}),
        beside(
            "model",
            ("pytorch_one_budget_s", "ours_whole_frontier_s"),
            ("PyTorch, one budget", "remat, the whole frontier"),
        ),
    ),
    Chart(frozenset({"model", "strategy", "bytes"}), by_strategy),
    Chart(
        frozenset({"predicted_bytes", "inductor_bytes"}),
        against("inductor_bytes", "predicted_bytes", ("counted by Inductor", "predicted")),
    ),
    Chart(
        frozenset({"simulated_bytes", "inductor_bytes"}),
        against("inductor_bytes", "simulated_bytes", ("Inductor's estimate", "simulated")),
    ),
    Chart(
        frozenset({"simulated_bytes", "measured_bytes"}),
        against("measured_bytes", "simulated_bytes", ("measured", "simulated")),
    ),
    Chart(frozenset({"values", "problem", "solver", "prices"}), sizes_of_problems),
    Chart(frozenset({"model", "torch_s", "remat_s"}), beside("model", ("torch_s", "remat_s"), ("PyTorch", "remat"))),
    Chart(frozenset({"step", "median_s"}), times("step", "median_s", ("fastest_s", "slowest_s"))),
    Chart(frozenset({"statement", "median_s"}), times("statement", "median_s", ("fastest_s", "slowest_s"))),
    Chart(frozenset({"partitioner", "total_s"}), times("partitioner", "total_s", ("fastest_s", "slowest_s"))),
)
"""The first chart whose columns are there draws the rows."""
