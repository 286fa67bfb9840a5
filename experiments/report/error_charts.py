"""Draws predictions against what was counted or measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from experiments.report.bars_and_axes import byte_axis
from remat.views.report import plots
from remat.views.report.colours import BLUE, GREY, RED
from remat.views.report.section import Figure, Row
from remat.words import human_bytes

Rows = Sequence[Row]


def against(truth: str, guess: str, words: tuple[str, str]) -> Callable[[Rows], tuple[Figure, ...]]:
    """Makes a chart of predictions against what was counted."""

    def draw(rows: Rows) -> tuple[Figure, ...]:
        known = [row for row in rows if plots.is_positive(row[truth], row[guess])]
        return (_predicted(known, truth, guess, words),) if known else ()

    return draw


def _predicted(rows: Rows, truth: str, guess: str, words: tuple[str, str]) -> Figure:
    counts = [row[key] for row in rows for key in (truth, guess)]
    x_axis, y_axis = (byte_axis(word, counts) for word in words)
    ends = [10 ** min(end, 308) for end in x_axis["range"]]  # not beyond the largest float
    groups = {"forward pass": (BLUE, "circle"), "backward pass": (RED, "diamond")}
    split = [(name, [row for row in rows if row.get("backward") is (name == "backward pass")]) for name in groups]
    split = [(name, own) for name, own in split if own] or [("plans", list(rows))]
    traces = [
        plots.points(
            "equal",
            ends,
            ends,
            None,
            mode="lines",
            line={"color": GREY, "width": 1, "dash": "dot"},
        )
    ]
    for name, own in split:
        fill, symbol = groups.get(name, (BLUE, "circle"))
        hover = [
            plots.lines(
                row.get("model", ""),
                row.get("plan", ""),
                f"{words[0]} {human_bytes(row[truth])}",
                f"{words[1]} {human_bytes(row[guess])} ({row[guess] / row[truth] - 1:+.2%})",
            )
            for row in own
        ]
        x, y = ([row[key] for row in own] for key in (truth, guess))
        style = {"symbol": symbol, "size": 7, "color": fill, "opacity": 0.7}
        traces.append(plots.points(name, x, y, hover, marker=style))
    exact = sum(row[truth] == row[guess] for row in rows)
    return plots.figure(
        f"{words[1].capitalize()} beside {words[0]}",
        f"Log-log scatter plot of {len(rows)} rows: {words[0]} across, {words[1]} up, in bytes, with the line on "
        f"which both are equal. {exact} of the rows are equal to the byte.",
        traces,
        x=x_axis,
        y=y_axis,
        height=460,
    )
