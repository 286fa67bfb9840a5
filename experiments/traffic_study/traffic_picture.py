"""Draws what `experiments.traffic_study.compare_strategies` counts: a panel for each model, a row for each strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from experiments.traffic_study.traffic_report import DEFAULT
from remat.pictures import write

LESS, MORE, SAME = "#1f6fb2", "#c8501e", "#777777"
_ROW = 0.17
"""Inches for each strategy."""

_WORDS = 7.5
"""Points; the picture is so narrow that they can be read on a telephone."""


def picture(models: dict[str, Any], path: Path) -> None:
    """Draws the bytes that each strategy moves beside PyTorch's default; in numbers, what it saves.

    Every model has the same axis, so that lengths can be compared.
    """
    from matplotlib.figure import Figure

    strategies = dict.fromkeys(row["strategy"] for about in models.values() for row in about["rows"])
    others = [name for name in strategies if name != DEFAULT]
    figure = Figure(figsize=(6.4, (_ROW * len(others) + 0.75) * len(models) + 0.8), layout="constrained")
    panels = list(figure.subplots(len(models), squeeze=False, sharex=True).flat)
    ends: list[float] = []
    for panel, (name, about) in zip(panels, models.items(), strict=True):
        ends += _panel(panel, {row["strategy"]: row for row in about["rows"]}, others)
        panel.set_title(name, fontsize=10, loc="left")
    room = max(ends) - min(ends) or 1
    panels[0].set_xlim(min(ends) - 0.05 * room, max(ends) + 0.18 * room)  # to the right there are numbers
    figure.suptitle(
        "Bytes that a training step moves, beside\nPyTorch's default, by TorchInductor's count", fontsize=11
    )
    write(figure, path)


def _panel(axes: Any, rows: dict[str, Any], others: list[str]) -> list[float]:
    """Draws one model: a line from PyTorch's default to each strategy, and its numbers. Returns where lines end."""
    default, right = rows[DEFAULT], axes.get_yaxis_transform()
    ends = [0.0]
    for place, name in enumerate(others):
        if (row := rows.get(name)) is None:
            continue
        moved, saved = (row[key] / default[key] - 1 for key in ("bytes", "saved_bytes"))
        colour = SAME if abs(moved) < 0.0005 else LESS if moved < 0 else MORE
        axes.plot([0, moved], [place, place], color=colour, lw=1.5, solid_capstyle="butt")
        axes.plot([moved], [place], marker="o" if row["legal"] else "x", color=colour, ms=4.5, ls="")
        look = {"va": "center", "fontsize": _WORDS}
        text = _share(moved, 1) + ("" if row["legal"] else ", not legal")
        axes.annotate(text, (max(moved, 0), place), (6, 0), textcoords="offset points", color=colour, **look)
        axes.text(1.01, place, _share(saved, 0), transform=right, **look)
        ends.append(moved)
    axes.set_title("saved", fontsize=_WORDS, loc="right", color=SAME, x=1.09)
    axes.axvline(0, color=SAME, lw=0.8, zorder=0)
    axes.set_yticks(range(len(others)), others, fontsize=_WORDS)
    axes.set_ylim(len(others) - 0.4, -0.6)
    axes.xaxis.set_major_formatter(lambda share, _: _share(share, 0))
    axes.tick_params(axis="x", labelsize=_WORDS, labelbottom=True)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return ends


def _share(share: float, digits: int) -> str:
    """Writes a difference with its sign; one that rounds to nothing has none."""
    return f"{share:+.{digits}%}" if round(share, digits + 2) else "0%"
