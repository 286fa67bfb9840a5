"""Makes the page of `experiments.accuracy.traffic_error`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from experiments.models.held_out import MENDED
from experiments.report.markdown import bullets, cited, page, section, table

_ABOUT = {
    "zoo": "The models on which the rules of `remat.predict.kernels` were checked while they were written.",
    "held-out": (
        "Models that no rule was written for: `experiments/models/held_out`. They were written down before any of them "
        "was compared. Each plan is one of autograd's saves, PyTorch's default, a cut, the fewest saved bytes, or "
        "random. Inductor is asked about each model under its first plan, through Dynamo and AOTAutograd; about the "
        "other plans by the joint graph alone, if that gave the same kernels."
    ),
}
_ABOUT_TRITON = {
    "zoo": "The models on which the rules were checked while they were written, captured on a CPU.",
    "captured": "The same models, captured for an H100 that is not there: attention has another name, and saves less.",
    "corpus": "Graphs of the corpus, captured on a CPU at the sizes at which people train.",
    "large": "Larger ones, under two plans each, since a count takes a minute: autograd's saves, and a cut.",
    "held-out": (
        "Models that no rule for Triton was written for, nor mended after, captured on a CPU, under two plans each: "
        "autograd's saves, and PyTorch's default. Some were compared with kernels for CPUs before."
    ),
}
_TITLES = {
    "zoo": "The zoo",
    "captured": "The zoo, captured for a GPU",
    "corpus": "The corpus",
    "large": "The corpus: large graphs",
    "held-out": "Held out",
}
_WHOSE = {
    "cpu": "TorchInductor's count, for CPUs",
    "triton": "TorchInductor's Triton schedule, without a device",
}


def markdown(report: dict[str, Any]) -> str:
    """Makes the page: what was found, model by model, then plan by plan."""
    parts = {name: report[name] for name in _TITLES if name in report}
    backend = report["backend"]
    abouts = _ABOUT if backend == "cpu" else _ABOUT_TRITON
    plans = [
        (
            row["model"],
            row["plan"],
            row["predicted_bytes"],
            row["inductor_bytes"],
            f"{100 * row['error']:+.1f} %",
            row["predicted_kernels"],
            row["inductor_kernels"],
        )
        for found in parts.values()
        for row in found["rows"]
    ]
    headings = ("model", "plan", "predicted bytes", "Inductor's", "error", "predicted kernels", "Inductor's")
    return page(
        f"Predicted memory traffic against {_WHOSE[backend]}",
        f"{cited(report['provenance'], 'experiments.accuracy.traffic_error')}. An error is that of the bytes that the "
        "kernels of both passes read and write, calls of libraries included; it is negative where the prediction is "
        "too low.",
        *(section(_TITLES[name], abouts[name], *_part(found)) for name, found in parts.items()),
        section("Every plan", table(headings, plans)),
    )


def _part(found: dict[str, Any]) -> Iterator[str]:
    """Makes the blocks of the page about one part."""
    yield _overall(found["overall"]) if found["overall"] else ""
    if found["summary"]:
        yield table(_HEADINGS, map(_cells, found["summary"]))
    mended = [f"{about['model']}: {MENDED[about['model']]}" for about in found["summary"] if about["model"] in MENDED]
    if mended:
        yield "Held out no longer (*), since a rule was written or mended after they were compared:"
        yield bullets(mended)
    if found["failed"]:
        yield "Failed:"
        yield bullets(f"{name}: {why}" for name, why in found["failed"].items())


def _overall(found: dict[str, Any]) -> str:
    return (
        f"{found['models']} models, {found['plans']} plans: {found['exact']} to the byte, {found['within_1_percent']} "
        f"within 1 %, {found['within_6_percent']} within 6 %; median error {100 * found['median_error']:.1f} %, "
        f"nine in ten within {100 * found['p90_error']:.1f} %, the worst {100 * found['worst_error']:.1f} % "
        f"({found['worst_model']}, {found['worst_plan']})."
    )


_HEADINGS = ("model", "values", "plans", "median error", "worst", "where", "within 1 %", "rank correlation")
_HEADINGS += ("Inductor's bytes, from", "to")


def _cells(about: dict[str, Any]) -> tuple[object, ...]:
    correlation = about["rank_correlation"]
    return (
        about["model"] + (" (*)" if about["model"] in MENDED else ""),
        about["values"],
        about["plans"],
        f"{100 * about['median_error']:.1f} %",
        f"{100 * about['worst_error']:+.1f} %",
        about["worst_plan"] if about["worst_error"] else "",
        f"{100 * about['within_1_percent']:.0f} %",
        "" if correlation is None else f"{correlation:.3f}",
        *about["inductor_bytes"],
    )
