"""Draws plans under a budget of memory: ours beside PyTorch's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from remat.views.report import plots
from remat.views.report.cells import unit_of
from remat.views.report.colours import BLUE, GREY, MARKERS, PALETTE, RED
from remat.views.report.section import Figure, Row, View
from remat.words import human_bytes, human_price

Rows = Sequence[Row]


def budgets(rows: Rows) -> tuple[Figure, ...]:
    """Draws what ours avoids, over all models, and the costs, one model and estimator at a time."""
    return (*_avoided(rows), *_by_budget(rows))


def _avoided(rows: Rows) -> tuple[Figure, ...]:
    """Draws what share of PyTorch's recomputation ours avoids at the same saved bytes, budget by budget."""
    legal = [row for row in rows if not row.get("illegal")]
    known = [row for row in legal if plots.is_number(row["budget"], row["pytorch"], row["ours"]) and row["pytorch"] > 0]
    if not known:
        return ()
    traces: list[plots.Trace] = []
    views: list[View] = []
    models = list(dict.fromkeys(row["model"] for row in rows))
    for estimator in reversed(list(dict.fromkeys(row["estimator"] for row in known))):
        first = len(traces)
        for position, model in enumerate(models):
            own = [row for row in known if (row["model"], row["estimator"]) == (model, estimator)]
            fill = PALETTE[position % len(PALETTE)]
            symbol = MARKERS[position % len(MARKERS)]
            trace = plots.points(
                model,
                [row["budget"] for row in own],
                [1 - row["ours"] / row["pytorch"] for row in own],
                [_hover(row) for row in own],
                mode="lines+markers",
                line={"color": fill, "width": 1},
                marker={"color": fill, "symbol": symbol, "size": 9},
            )
            traces += [trace] if own else []
        views.append(View(str(estimator), tuple(range(first, len(traces))), {}))
    figure = plots.figure(
        "Recompute that ours avoids, at the same saved bytes",
        "Line plot: the budget across, the share of PyTorch's recompute cost that our plan of the same saved bytes "
        "avoids up, a line for each model.",
        traces,
        x=plots.axis("PyTorch's activation memory budget (1: recompute nothing)"),
        y=plots.axis("recompute cost avoided", tickformat=".0%"),
        menu="estimator",
        views=views,
    )
    return (figure,)


def _by_budget(rows: Rows) -> tuple[Figure, ...]:
    """Draws recompute cost by budget: PyTorch's, ours at the bytes that PyTorch's saves, ours with the whole budget."""
    traces: list[plots.Trace] = []
    views: list[View] = []
    # A roofline tells plans apart that count the same flops: it comes first.
    pairs = dict.fromkeys((row["model"], row["estimator"]) for row in rows)
    for model, estimator in sorted(pairs, key=lambda pair: pair[1] == "flops"):
        own = [row for row in rows if (row["model"], row["estimator"]) == (model, estimator)]
        first, unit = len(traces), unit_of(own[0])
        costs = [row[key] for row in own for key in ("pytorch", "ours") if plots.is_number(row[key])]
        shown, scale = plots.price_unit(costs, unit)
        for name, key, style in _LINES:
            with_it = [row for row in own if plots.is_number(row["budget"], row.get(key))]
            trace = plots.points(
                name,
                [row["budget"] for row in with_it],
                [row[key] / scale for row in with_it],
                [_hover(row) for row in with_it],
                **style,
            )
            if key == "pytorch":
                symbols = ["square-open" if row.get("illegal") else "square" for row in with_it]
                trace["marker"] = {"color": RED, "symbol": symbols, "size": 8}
            traces += [trace] if with_it else []
        layout = {
            "yaxis.title.text": f"recompute cost ({shown})" if shown else "recompute cost",
            "yaxis.tickformat": "~s" if scale == 1 else "",
        }
        views.append(View(f"{model}, {estimator}", tuple(range(first, len(traces))), layout))
    if not traces:
        return ()
    first_view = views[0].layout
    figure = plots.figure(
        "Recompute cost, by budget",
        "Line plot: the budget across, the recompute cost of PyTorch's plan and of ours up; one model and estimator "
        "at a time.",
        traces,
        x=plots.axis("PyTorch's activation memory budget (1: recompute nothing)"),
        y=plots.axis(first_view["yaxis.title.text"], tickformat=first_view["yaxis.tickformat"]),
        menu="model, estimator",
        views=views,
    )
    return (figure,)


_LINES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("PyTorch; open: not legal", "pytorch", {"mode": "lines+markers", "line": {"color": RED}}),
    (
        "ours, saving no more bytes",
        "ours",
        {"mode": "lines+markers", "line": {"color": BLUE}, "marker": {"color": BLUE, "symbol": "circle", "size": 8}},
    ),
    (
        "ours, with the whole budget",
        "ours_at_budget",
        {
            "mode": "markers",
            "marker": {"color": BLUE, "symbol": "circle-open", "size": 11, "line": {"width": 1.5}},
        },
    ),
    ("bound at these bytes", "bound", {"mode": "lines", "line": {"color": GREY, "dash": "dot", "width": 1.5}}),
)


def _hover(row: Row) -> str:
    unit = unit_of(row)

    def price(key: str, words: str) -> str:
        return f"{words} {human_price(round(row[key]), unit)}" if plots.is_number(row.get(key)) else ""

    return plots.lines(
        f"{row['model']}, budget {row['budget']:g}",
        f"PyTorch's plan saves {human_bytes(row['saved_bytes'])}" if plots.is_number(row.get("saved_bytes")) else "",
        price("pytorch", "PyTorch recomputes"),
        price("ours", "ours, no more bytes:"),
        price("ours_at_budget", "ours, whole budget:"),
        f"PyTorch's plan is not legal: {row['illegal']}" if row.get("illegal") else "",
    )
