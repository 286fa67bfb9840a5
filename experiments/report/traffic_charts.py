"""Draws the bytes that a training step moves under each strategy: beside PyTorch's, and absolute."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.report.bars_and_axes import bars, categories
from experiments.report.strategy_colours import colour, marker
from remat.views.report import plots
from remat.views.report.section import Figure, Row, View
from remat.words import human_bytes

Rows = Sequence[Row]


def by_strategy(rows: Rows) -> tuple[Figure, ...]:
    """Draws bytes of each strategy, as a multiple of PyTorch's on the same model, and absolute, model by model."""
    return (*_beside_pytorch(rows), _bytes_by_strategy(rows))


def _beside_pytorch(rows: Rows) -> tuple[Figure, ...]:
    default = {
        row["model"]: row["bytes"] for row in rows if row["strategy"] == "PyTorch" and plots.is_positive(row["bytes"])
    }
    if not default:
        return ()
    traces: list[plots.Trace] = []
    for strategy in dict.fromkeys(row["strategy"] for row in rows):
        own = [row for row in rows if row["strategy"] == strategy and row["model"] in default]
        own = [row for row in own if plots.is_positive(row["bytes"])]
        trace = plots.points(
            strategy,
            [row["bytes"] / default[row["model"]] for row in own],
            [plots.text(row["model"]) for row in own],
            [_moved(row, default[row["model"]]) for row in own],
            marker={
                "symbol": marker(strategy),
                "size": 10,
                "color": colour(strategy),
                "line": {"width": 1.5, "color": colour(strategy)},
            },
        )
        # Fifteen strategies on one line hide each other; a click in the legend brings the others back.
        traces.append(trace | ({} if strategy in _SHOWN else {"visible": "legendonly"}))
    return (
        plots.figure(
            "Bytes moved, beside PyTorch's default",
            "Dot plot: a line for each model, the bytes that a step moves as a multiple of those of PyTorch's "
            "default plan across, a marker for each strategy. Left of 1 is fewer.",
            traces,
            x=plots.axis("bytes moved in a step / PyTorch's default", rangemode="normal"),
            y=categories(list(default)),
            height=160 + 34 * len(default),
        ),
    )


_SHOWN = {"PyTorch", "classic cut", "multi-read cut", "refined, by model", "refined, by inductor"}


def _moved(row: Row, default: float | None) -> str:
    return plots.lines(
        row["strategy"],
        row["model"],
        f"moves {human_bytes(row['bytes'])}" + (f", {row['bytes'] / default:.3f} of PyTorch's" if default else ""),
        f"saves {human_bytes(row['saved_bytes'])}" if plots.is_positive(row.get("saved_bytes")) else "",
        f"{row['kernels']} kernels" if row.get("kernels") is not None else "",
        "not legal" if row.get("legal") is False else "",
    )


def _bytes_by_strategy(rows: Rows) -> Figure:
    models = list(dict.fromkeys(row["model"] for row in rows))
    unit, scale = plots.byte_unit(row["bytes"] for row in rows if plots.is_positive(row["bytes"]))
    traces: list[plots.Trace] = []
    for model in models:
        own = [row for row in rows if row["model"] == model and plots.is_positive(row["bytes"])]
        default = next((row["bytes"] for row in own if row["strategy"] == "PyTorch"), None)
        traces.append(
            bars(
                model,
                [row["strategy"] for row in own],
                [row["bytes"] / scale for row in own],
                [_moved(row, default) for row in own],
                marker={"color": [colour(row["strategy"]) for row in own]},
            )
        )
    strategies = list(dict.fromkeys(row["strategy"] for row in rows))
    return plots.figure(
        "Bytes moved, by strategy",
        f"Bar chart: bytes that a step moves, in {unit}, a bar for each strategy, one model at a time.",
        traces,
        x=plots.axis(f"bytes moved in a step ({unit})"),
        y=categories(strategies),
        height=130 + 26 * len(strategies),
        showlegend=False,
        menu="model",
        views=[View(str(model), (i,), {}) for i, model in enumerate(models)],
    )
