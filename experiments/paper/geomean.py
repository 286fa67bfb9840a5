"""Computes geometric means over the models of a table, whose cases are named "model, method"."""

from __future__ import annotations

import math
from collections.abc import Mapping

from experiments.paper.methods import METHODS, NO
from experiments.paper.row_file import Rows, cell
from experiments.report.markdown import section, table

Means = Mapping[str, tuple[float, int]]
"""The mean of a method's ratios to no-checkpoint, and over how many models, by method."""


def means(values: Mapping[tuple[str, str], float]) -> Means:
    """Computes the means from values by model and method."""
    found: dict[str, tuple[float, int]] = {}
    for method in METHODS:
        ratios = [
            value / values[model, NO]
            for (model, other), value in values.items()
            if other == method and value and values.get((model, NO))
        ]
        if ratios and method != NO:
            found[method] = math.exp(sum(map(math.log, ratios)) / len(ratios)), len(ratios)
    return found


def measured(rows: Rows, device: str, size: str, figure: str) -> Means:
    """Computes the means of a figure over the rows of one setting."""
    values: dict[tuple[str, str], float] = {}
    for row in rows.of(device, size):
        model, _, method = row.case.partition(", ")
        value = row.figures.get(figure)
        if not row.kind and isinstance(value, int | float):
            values[model, method] = value
    return means(values)


def block(title: str, published: Mapping[str, str], columns: Mapping[str, Means]) -> str:
    """Makes a section with a line for each method and a column for each setting that has any; "" without a figure."""
    kept = {name: found for name, found in columns.items() if found}
    if not kept and not published:
        return ""
    methods = [method for method in METHODS if method in published or any(method in found for found in kept.values())]
    rows = [
        (method, published.get(method, ""), *(_cell(found.get(method)) for found in kept.values()))
        for method in methods
    ]
    return section(title, table(("method", "published", *kept), rows))


def _cell(mean: tuple[float, int] | None) -> str:
    return "" if mean is None else f"{cell(mean[0])} of {mean[1]} models"
