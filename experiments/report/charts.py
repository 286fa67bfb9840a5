"""Draws the charts that several pages of results share; they can be read at a width of 400 pixels."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

Points = Sequence[tuple[float, float]]


def beside_one_liners(axes: Any, title: str, ours: Points, rivals: Sequence[tuple[str, float, float]]) -> None:
    """Draws peaks (GB) against overheads (%): ours as a line, and as points PyTorch's ways, whose names come first."""
    from remat.improve.frontier_plot import plot_one_liners

    axes.plot(*zip(*sorted(ours), strict=True), "o-", color="#1f5f99", label="remat, at the same peak")
    plot_one_liners(axes, rivals)
    axes.set(title=title, ylabel="step time above PyTorch's default, %")
    axes.legend(fontsize=9)


@contextmanager
def chart(path: Path, size: tuple[float, float] = (6.4, 3.9), *shape: int) -> Generator[Any]:
    """Makes the axes of a chart, or of several in lines and columns; they are written at the end."""
    from remat.pictures import Picture, write

    figure = Picture(figsize=size, layout="constrained")
    yield figure.subplots(*shape)
    for axes in figure.axes:
        axes.grid(alpha=0.3)
    write(figure, path)


def draw_dots(values: Mapping[str, Mapping[str, float]], path: Path, **axis: Any) -> None:
    """Draws a line for each name, the first one at the top, and on it a point for each label."""
    with chart(path) as axes:
        for (label, found), style in zip(values.items(), "os^D", strict=False):
            axes.plot([*found.values()], [*found], style, label=label)
        axes.invert_yaxis()
        axes.set(**axis)
        axes.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.4, 1.15), ncols=4, frameon=False)


def draw_errors(errors: Mapping[str, Sequence[float]], what: str, path: Path) -> None:
    """Draws for each group which share of its predictions is off by at most so much."""
    with chart(path) as axes:
        for (name, found), style in zip(errors.items(), ("-", "--", "-.", ":"), strict=False):
            off = 100 * np.sort(np.abs(np.array(found)))
            axes.step([*off, 100], [*np.arange(1, len(off) + 1) / len(off), 1], style, where="post", label=name)
        axes.set_xscale("symlog", linthresh=0.1)
        ticks = (0, 0.1, 1, 10, 100)
        axes.set_xticks(ticks, [f"{tick}%" for tick in ticks])
        axes.set(xlim=(0, 100), ylim=(0, 1.03), xlabel=f"error of {what}: at most", ylabel="share of the predictions")
        axes.legend(fontsize=9)
