"""Sums up and writes down what `experiments.bench.gpu_plans` found."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from experiments.report.markdown import bullets, cell, cited, page, section, table
from remat.words import human_bytes

Row = Mapping[str, Any]


def fewer(row: Row) -> float:
    """Returns by how much fewer bytes ours moves than PyTorch's at a budget, as a fraction."""
    return 1 - row["ours"]["traffic_bytes"] / row["pytorch"]["traffic_bytes"]


def room(row: Row) -> float:
    """Returns by how much fewer bytes any plan could move at most, as a fraction of PyTorch's."""
    return 1 - row["floor_bytes"] / row["pytorch"]["traffic_bytes"]


def below(model: Row) -> list[Row]:
    """Lists a model's rows at budgets from 0.1 to 0.9."""
    return [row for row in model["rows"] if row["budget"] < 1]


def summarized(models: Sequence[Row]) -> dict[str, Any]:
    """Counts on how many models and budgets each claim holds."""
    rows = [(model["name"], row) for model in models for row in below(model)]
    if not rows:
        return {}
    gains = [fewer(row) for _, row in rows]
    best, worst = max(rows, key=lambda pair: fewer(pair[1])), min(rows, key=lambda pair: fewer(pair[1]))
    everything = [row for model in models for row in model["rows"]]
    wrong = [
        abs(row[whose]["predicted_bytes"] / row[whose]["traffic_bytes"] - 1) for row in everything for whose in _BOTH
    ]
    return {
        "models": len(models),
        "budgets of PyTorch's, 0.1 to 0.9": len(rows),
        "there ours moves more, or saves more": sum(_is_worse(row) for row in everything),
        "there ours moves fewer bytes": sum(gain > 0 for gain in gains),
        "fewer bytes moved at the same saved bytes, median": statistics.median(gains),
        "fewer bytes moved, median of the models' medians": statistics.median(
            statistics.median(fewer(row) for row in below(model)) for model in models
        ),
        "largest": f"{fewer(best[1]):.1%} ({best[0]} at {best[1]['budget']})",
        "smallest": f"{fewer(worst[1]):.1%} ({worst[0]} at {worst[1]['budget']})",
        "fewer bytes at PyTorch's default, median": statistics.median(
            fewer(row) for model in models for row in model["rows"] if row["budget"] == 1
        ),
        "what any plan could gain at most, by the floor, median": statistics.median(room(row) for _, row in rows),
        "PyTorch's plan is not legal": sum(bool(row["illegal"]) for row in everything),
        "operations that ours computes again, of PyTorch's, median": statistics.median(again := _again(rows)),
        "the same, largest": max(again),
        "ours computes more operations again than PyTorch's": sum(ratio > 1 for ratio in again),
        **{
            f"fewer saved bytes than PyTorch's default, moving {_at_most(extra)}, median": statistics.median(
                _less(model, extra) for model in models
            )
            for extra in (0.0, 0.01, 0.05)
        },
        "prediction off by at most": max(wrong),
        "predicted to the byte": f"{sum(error == 0 for error in wrong)} of {len(wrong)}",
    }


_BOTH = ("pytorch", "ours")


def _again(rows: Iterable[tuple[str, Row]]) -> list[float]:
    """Lists how many operations ours computes again, of PyTorch's, where PyTorch's plan does any."""
    return [
        row["ours"]["recomputed_flops"] / row["pytorch"]["recomputed_flops"]
        for _, row in rows
        if row["pytorch"]["recomputed_flops"]
    ]


def _is_worse(row: Row) -> bool:
    return any(row["ours"][what] > row["pytorch"][what] for what in ("saved_bytes", "traffic_bytes"))


def _at_most(extra: float) -> str:
    return f"{extra:.0%} more" if extra else "no more"


def _less(model: Row, extra: float) -> float:
    """Returns by how much fewer bytes are saved than by PyTorch's default, under a limit on the traffic."""
    (default,) = (row["pytorch"]["saved_bytes"] for row in model["rows"] if row["budget"] == 1)
    (found,) = (least["saved_bytes"] for least in model["least"] if least["extra_traffic"] == extra)
    return 1 - found / default if default else 0.0


def markdown(document: Row) -> str:
    """Makes the page with the tables for people who read the repository."""
    models: Sequence[Row] = document["models"]
    return page(
        "Saved memory against traffic, beside PyTorch's budgets, for a GPU",
        f"{cited(document['provenance'], 'experiments.bench.gpu_plans')}. Bytes moved are those of TorchInductor's "
        f"Triton schedule for {document['device']}, without a device; nothing was run. The graphs are stored ones, "
        "captured for CPUs.",
        bullets(f"{claim}: {_shown(number)}" for claim, number in document["summary"].items()),
        section("Each model", _each(models)),
        section("Fewest saved bytes at little traffic", _least(models)),
        *(section(model["name"], _budgets(model)) for model in models),
    )


def _shown(number: object) -> str:
    return f"{number:.1%}" if isinstance(number, float) else cell(number)


def _each(models: Iterable[Row]) -> str:
    headings = ["model", "values", "median fewer", "least", "most", "at the default", "at most by the floor, median"]
    rows: list[list[object]] = []
    for model in models:
        gains = [fewer(row) for row in below(model)]
        (default,) = (fewer(row) for row in model["rows"] if row["budget"] == 1)
        floor = statistics.median(room(row) for row in below(model))
        shares = (statistics.median(gains), min(gains), max(gains), default, floor)
        rows.append([model["name"], model["values"], *(f"{share:.1%}" for share in shares)])
    return table(headings, rows)


def _least(models: Iterable[Row]) -> str:
    headings = ["model", "default saves", "aggressive: saved", "moved", "no more traffic", "1% more", "5% more"]
    rows: list[list[object]] = []
    for model in models:
        (default,) = (row["pytorch"] for row in model["rows"] if row["budget"] == 1)
        aggressive = model["aggressive"]
        rows.append(
            [
                model["name"],
                human_bytes(default["saved_bytes"]),
                f"{aggressive['saved_bytes'] / max(default['saved_bytes'], 1) - 1:+.1%}",
                f"{aggressive['traffic_bytes'] / default['traffic_bytes'] - 1:+.1%}",
                *(f"{0 - _less(model, extra):+.1%}" for extra in (0.0, 0.01, 0.05)),
            ]
        )
    return table(headings, rows)


def _budgets(model: Row) -> str:
    headings = ["budget", "PyTorch saves", "moves", "ours saves", "moves", "fewer", "at most", "found by", "not legal"]
    return table(
        headings,
        [
            [
                row["budget"],
                row["pytorch"]["saved_bytes"],
                row["pytorch"]["traffic_bytes"],
                row["ours"]["saved_bytes"],
                row["ours"]["traffic_bytes"],
                f"{fewer(row):.1%}",
                f"{room(row):.1%}",
                row["ours"]["source"],
                row["illegal"],
            ]
            for row in model["rows"]
        ],
    )
