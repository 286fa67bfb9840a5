"""Makes the page of `experiments.accuracy.peak_error`."""

from __future__ import annotations

from typing import Any

from experiments.report.markdown import bullets, cited, page, section, table


def markdown(report: dict[str, Any]) -> str:
    """Makes the page of the errors, of the steps that ran, and of every pass."""
    summary = [
        (
            part,
            "of the graph" if against == "in_order_bytes" else "its own",
            numbers["passes"],
            *(f"{100 * numbers[key]:.1f} %" for key in ("median_error", "90 % below", "worst_error")),
            numbers["worst_case"],
        )
        for name, numbers in report["summary"].items()
        for part, _, against in (name.partition(", "),)
    ]
    runs = [
        (
            run["model"],
            run["plan"],
            run["simulated_bytes"],
            run["measured_bytes"],
            _ratio(run["simulated_bytes"], run["measured_bytes"]),
            run["lower_bound_bytes"],
        )
        for run in report["runs"]
    ]
    return page(
        "Simulated peak memory against TorchInductor's estimate",
        f"{cited(report['provenance'], 'experiments.accuracy.peak_error')}.",
        table(("pass", "Inductor's order", "passes", "median error", "90 % below", "worst", "where"), summary),
        section("Whole steps, run", table(("model", "plan", "simulated", "measured", "ratio", "lower bound"), runs))
        if runs
        else "",
        section("Every pass, in bytes", table(_HEADINGS, map(_cells, report["rows"]))),
        section("Failed", bullets(f"{name}: {why}" for name, why in report["failed"].items()))
        if report["failed"]
        else "",
    )


_HEADINGS = ("model", "plan", "pass", "simulated", "Inductor, in order", "ratio", "Inductor, its order", "ratio")


def _cells(row: dict[str, Any]) -> tuple[object, ...]:
    simulated, references = row["simulated_bytes"], (row["in_order_bytes"], row["inductor_bytes"])
    compared = (value for reference in references for value in (reference, _ratio(simulated, reference)))
    return (row["model"], row["plan"], "backward" if row["backward"] else "forward", simulated, *compared)


def _ratio(simulated: int, reference: int) -> str:
    return f"{simulated / max(reference, 1):.2f}"
