"""Makes tables, claims and the picture of `experiments.traffic_study.compare_strategies`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.report.markdown import bullets, cited, page, section, table
from remat.pictures import write

DEFAULT = "PyTorch"
"""The strategy with which all others are compared."""

REFINED = "refined, by inductor"
TRANSFORMERS = ("GPT, attention written out", "GPT, fused attention", "BERT", "nn.TransformerEncoder")
GOAL = 0.95

_MARKERS = {
    "autograd's saves": ("P", "#777777"),
    DEFAULT: ("s", "#c8501e"),
    "PyTorch, aggressive": ("s", "#e8a07e"),
    "classic cut": ("^", "#2e8b57"),
    "classic cut, aggressive": ("^", "#93c9a8"),
    "multi-read cut": ("D", "#b8860b"),
    "multi-read cut, aggressive": ("D", "#e0c070"),
    "shared write": ("v", "#8a5fb0"),
    "shared write, aggressive": ("v", "#c3a8da"),
    "shared write, saving no more": ("<", "#8a5fb0"),
    "shared write, saving no more, aggressive": ("<", "#c3a8da"),
    "refined, by model": ("o", "#5aa0d8"),
    REFINED: ("o", "#1f5f99"),
}

_ILLEGAL = "a plan that is not legal"


def summary(models: dict[str, Any]) -> dict[str, Any]:
    """Sums up the goal, model by model, and how often it was met."""
    pairs = {name: pair for name, about in models.items() if (pair := _pair(about["rows"]))}
    return {
        "goal": f"refined moves at most {GOAL:.0%} of PyTorch's default on {', '.join(TRANSFORMERS)}; "
        "never more on any model; saves no more bytes; has no more kernels",
        "models": len(models),
        "refined": len(pairs),
        "refined / PyTorch, bytes": {
            name: round(ours["bytes"] / theirs["bytes"], 4) for name, (ours, theirs) in pairs.items()
        },
        "transformers that miss the goal": [
            name
            for name, (ours, theirs) in pairs.items()
            if name in TRANSFORMERS and ours["bytes"] > GOAL * theirs["bytes"]
        ],
        "refined moves more": _where(pairs, "bytes"),
        "refined saves more": _where(pairs, "saved_bytes"),
        "refined has more kernels": _where(pairs, "kernels"),
    }


def _pair(rows: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    by_name = {row["strategy"]: row for row in rows}
    return (by_name[REFINED], by_name[DEFAULT]) if by_name.keys() >= {REFINED, DEFAULT} else None


def _where(pairs: dict[str, Any], column: str) -> list[str]:
    return [name for name, (ours, theirs) in pairs.items() if ours[column] > theirs[column]]


def markdown(models: dict[str, Any]) -> str:
    """Makes the page of what holds for all models, and of one table of them."""
    origin = next(iter(models.values()))["provenance"]
    commits = ", ".join(dict.fromkeys(about["provenance"]["commit"] for about in models.values()))
    failed = [f"{name}: {who}: {why}" for name, about in models.items() for who, why in about["failed"].items()]
    return page(
        "Bytes that a training step moves, by TorchInductor's count",
        f"{cited(origin | {'commit': commits}, 'experiments.traffic_study.compare_strategies')}. MB are 10^6 bytes. "
        "Random weights (seed 0). Kernels are those of TorchInductor's scheduler on CPU, calls of libraries included; "
        "nothing is timed. In bold: the fewest bytes among the legal plans that save no more than PyTorch's default.",
        bullets(f"{claim}: {_text(found)}" for claim, found in summary(models).items()),
        table(_HEADINGS, [cells for about in models.values() for cells in _rows(about["rows"])]),
        section("Failed", bullets(failed)) if failed else "",
    )


_HEADINGS = ("model", "strategy", "moved, MB", "to PyTorch's", "forward, MB", "kernels", "saved, MB", "predicted, MB")
_HEADINGS += ("chosen in, s", "")


def _text(found: Any) -> str:
    if isinstance(found, dict):
        return ", ".join(f"{name} {number:.3f}" for name, number in found.items())
    return ", ".join(found) or "none" if isinstance(found, list) else str(found)


def _rows(rows: list[dict[str, Any]]) -> Iterator[tuple[str, ...]]:
    default = next(row for row in rows if row["strategy"] == DEFAULT)
    frugal = [row for row in rows if row["legal"] and row["saved_bytes"] <= default["saved_bytes"]]
    fewest = min(row["bytes"] for row in frugal)
    for row in rows:
        best = row in frugal and row["bytes"] == fewest
        moved = _megabytes(row["bytes"])
        yield (
            row["model"],
            row["strategy"],
            f"**{moved}**" if best else moved,
            f"{row['bytes'] / default['bytes']:.3f}",
            _megabytes(row["forward_bytes"]),
            str(row["kernels"]),
            _megabytes(row["saved_bytes"]),
            _megabytes(row["predicted_bytes"]),
            "" if row["choosing_s"] is None else f"{row['choosing_s']:.2f}",
            row["note"],
        )


def _megabytes(count: int | None) -> str:
    return "" if count is None else f"{count / 1e6:.2f}"


def picture(models: dict[str, Any], path: Path) -> None:
    """Draws bytes moved against bytes saved: a panel for each model, one legend below them."""
    from matplotlib.figure import Figure

    columns = min(len(models), 3)
    lines = -(-len(models) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.1 * lines + 1.4), layout="constrained")
    panels = list(figure.subplots(lines, columns, squeeze=False).flat)
    handles: dict[str, Any] = {}
    for panel, (name, about) in zip(panels, models.items(), strict=False):
        handles |= _panel(panel, about["rows"])
        panel.set_title(name, fontsize=10)
    for panel in panels[len(models) :]:
        panel.set_visible(False)
    for panel in panels[max(len(models) - columns, 0) : len(models)]:
        panel.set_xlabel("saved activations (MB)")
    figure.supylabel("moved in a step, by Inductor's count (MB)", fontsize=10)
    ordered = {name: handles[name] for name in (*_MARKERS, _ILLEGAL) if name in handles}
    figure.legend(ordered.values(), ordered.keys(), loc="outside lower center", ncols=min(columns + 1, 4), fontsize=9)
    write(figure, path)


def _panel(axes: Any, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Draws the strategies of one model, with thin lines at PyTorch's default; returns what the legend lists."""
    default = next(row for row in rows if row["strategy"] == DEFAULT)
    axes.axhline(default["bytes"] / 1e6, lw=0.8, color="#bbbbbb", zorder=0)
    axes.axvline(default["saved_bytes"] / 1e6, lw=0.8, color="#bbbbbb", zorder=0)
    axes.grid(alpha=0.3)
    handles: dict[str, Any] = {}
    for row in rows:
        name, point = row["strategy"], ([row["saved_bytes"] / 1e6], [row["bytes"] / 1e6])
        marker, color = _MARKERS[name]
        # Many strategies agree: those that are drawn later are smaller, or hollow.
        size, fill = (5, "full") if name == REFINED else (10 if name.startswith("refined") else 7, "none")
        (handles[name],) = axes.plot(*point, marker, ms=size, color=color, ls="", fillstyle=fill, mew=1.4)
        if not row["legal"]:
            (handles[_ILLEGAL],) = axes.plot(*point, "x", ms=9, color="#b00020", ls="")
    return handles
