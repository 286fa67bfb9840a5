"""Makes tables and claims of `experiments.traffic_study.compare_strategies`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from experiments.report.markdown import bullets, cited, page, section, table

DEFAULT = "PyTorch"
"""The strategy with which all others are compared."""

REFINED = "refined, by inductor"
TRANSFORMERS = ("GPT, attention written out", "GPT, fused attention", "BERT", "nn.TransformerEncoder")
GOAL = 0.95


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
