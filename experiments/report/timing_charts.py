"""Draws times: two of each row beside each other, or one with its extremes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from experiments.report.bars_and_axes import bars, categories
from experiments.report.strategy_colours import colour, marker
from remat.views.report import plots, solver_charts
from remat.views.report.cells import human_seconds
from remat.views.report.colours import BLUE, GREY
from remat.views.report.section import Figure, Row

Rows = Sequence[Row]


def beside(label: str, needs: tuple[str, str], names: tuple[str, str]) -> Callable[[Rows], tuple[Figure, ...]]:
    """Makes a chart of two times of each row, side by side: by size if the rows have `nodes`, else as bars."""

    def draw(rows: Rows) -> tuple[Figure, ...]:
        known = [row for row in rows if plots.is_positive(*(row[key] for key in needs))]
        if not known:
            return ()
        sized = len(known) > 5 and all(plots.is_positive(row.get("nodes")) for row in known)
        return ((_by_size if sized else _by_bar)(known, label, needs, names),)

    return draw


def _pair_hover(row: Row, label: str, needs: tuple[str, str], names: tuple[str, str], own: str) -> str:
    times = [f"{name} {human_seconds(row[key])}" for name, key in zip(names, needs, strict=True)]
    return plots.lines(own, row[label], *times, f"{row['nodes']} nodes" if "nodes" in row else "")


def _by_size(rows: Rows, label: str, needs: tuple[str, str], names: tuple[str, str]) -> Figure:
    traces = [
        plots.points(
            name,
            [row["nodes"] for row in rows],
            [row[key] for row in rows],
            [_pair_hover(row, label, needs, names, name) for row in rows],
            marker={"symbol": marker(name), "size": 8, "color": colour(name), "opacity": 0.75},
        )
        for name, key in zip(names, needs, strict=True)
    ]
    return plots.figure(
        f"{names[0]} beside {names[1]}, by size",
        f"Log-log scatter plot of {len(rows)} rows: nodes of the graph across, seconds of {' and '.join(names)} up.",
        traces,
        x=plots.log_axis("nodes of the graph", [row["nodes"] for row in rows], tickformat="~s"),
        y=plots.log_axis("time (s)", [row[key] for row in rows for key in needs]),
    )


def _by_bar(rows: Rows, label: str, needs: tuple[str, str], names: tuple[str, str]) -> Figure:
    traces = [
        bars(
            name,
            [row[label] for row in rows],
            [row[key] for row in rows],
            [_pair_hover(row, label, needs, names, name) for row in rows],
            marker={"color": colour(name)},
        )
        for name, key in zip(names, needs, strict=True)
    ]
    return plots.figure(
        f"{names[0]} beside {names[1]}",
        f"Bar chart: seconds of {' and '.join(names)}, for each of {len(rows)} rows.",
        traces,
        x=plots.axis("time (s)"),
        y=categories([str(row[label]) for row in rows]),
        height=150 + 60 * len(rows),
    )


def times(label: str, time: str, ends: tuple[str, str]) -> Callable[[Rows], tuple[Figure, ...]]:
    """Makes a chart of one time of each row, with the fastest and the slowest run where they are known."""

    def draw(rows: Rows) -> tuple[Figure, ...]:
        known = [row for row in rows if plots.is_positive(row[time])]
        return (_timed(known, label, time, ends),) if known else ()

    return draw


def _timed(rows: Rows, label: str, time: str, ends: tuple[str, str]) -> Figure:
    least, most = ([row[end] if plots.is_positive(row.get(end)) else row[time] for row in rows] for end in ends)
    hover = [
        plots.lines(
            row[label], f"median {human_seconds(row[time])}", f"from {human_seconds(low)} to {human_seconds(high)}"
        )
        for row, low, high in zip(rows, least, most, strict=True)
    ]
    trace = plots.points(
        "median",
        [row[time] for row in rows],
        [plots.text(row[label]) for row in rows],
        hover,
        marker={"size": 11, "color": [colour(str(row[label]), BLUE) for row in rows]},
        error_x={
            "type": "data",
            "symmetric": False,
            "array": [high - row[time] for high, row in zip(most, rows, strict=True)],
            "arrayminus": [row[time] - low for low, row in zip(least, rows, strict=True)],
            "color": GREY,
            "thickness": 1.5,
        },
    )
    wide = max(most) > 20 * min(least)
    return plots.figure(
        "Times, from the fastest run to the slowest",
        f"Dot plot: the median time in seconds of {len(rows)} rows, with a line from the fastest to the slowest run.",
        [trace],
        x=plots.log_axis("time (s)", [*least, *most]) if wide else plots.axis("time (s)"),
        y=categories([str(row[label]) for row in rows]),
        height=130 + 40 * len(rows),
        showlegend=False,
    )


def sizes_of_problems(rows: Rows) -> tuple[Figure, ...]:
    """Draws rows of `experiments.bench.speed` as a comparison of solvers, by the size of the problem and its prices."""
    return solver_charts.charts(
        [
            {
                "instance": f"{row['problem']:,} values",
                "cost_model": f"{row['prices']} prices",
                "values": row["problem"],
                "status": "optimal" if row.get("objective") is not None else "refused",
                "objective": row.get("objective"),
                "bound": row.get("objective"),  # the benchmark refuses any other answer
                **{key: row.get(key) for key in ("solver", "pose_s", "solve_s", "certify_s", "total_s", "note")},
            }
            for row in rows
            if plots.is_positive(row["problem"])
        ]
    )
