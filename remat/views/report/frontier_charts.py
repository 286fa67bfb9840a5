"""Draws memory against recompute time: every plan of a frontier, and the bound that none is below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from remat.answer.plan_facts import PlanFacts
from remat.answer.saved_lines import saved_lines
from remat.errors import RematError
from remat.improve.frontier import Frontier
from remat.improve.point import Point
from remat.views.report import plots
from remat.views.report.colours import AMBER, BLUE, GREY, RED, VIOLET
from remat.views.report.content import is_rows
from remat.views.report.section import Figure, Part, Provenance, Row, Section, Table
from remat.words import human_bytes, human_price

_COLUMNS = ("budget_bytes", "saved_bytes", "cost", "bound", "claimed_bound", "is_vertex", "solver", "plan")
_OPTIONAL = {"claimed_bound", "plan"}
_LANDMARKS = (
    {"symbol": "cross-open", "size": 13, "color": RED, "line": {"width": 2.5}},
    {"symbol": "x-open", "size": 11, "color": VIOLET, "line": {"width": 2.5}},
)
_FACTS = ("saved_activations", "recomputed_ops")
"""What is known of a plan where its graph is."""
_LINES = 3
"""Of the lines of the model from which most is saved, how many are named."""


@dataclass(frozen=True)
class Curve:
    """Holds a frontier, from a graph or from a document.

    Attributes:
        name: of the graph.
        estimator: what prices recomputing.
        unit: of the costs.
        points: a row each, with `_COLUMNS`; of a graph with `_FACTS` and "lines", too.
        landmarks: plans to compare with, as rows of the same kind; `solver` says which they are.
        is_exact: the line through the vertices is a proven bound, too. Else only the bounds of the points are.
        host: the device that may offload to its host; "" if nothing is offloaded.
    """

    name: str
    estimator: str
    unit: str
    points: tuple[Row, ...]
    is_exact: bool
    landmarks: tuple[Row, ...] = ()
    host: str = ""

    @classmethod
    def of(cls, frontier: Frontier, name: str, estimator: str) -> Curve:
        """Takes the points of a frontier."""
        points, landmarks = (
            tuple(_known(frontier, point) for point in some) for some in (frontier.points, frontier.landmarks)
        )
        is_exact = frontier.clock is None and all(edge.is_exact for edge in frontier.edges)
        host = frontier.clock.device.name if frontier.clock else ""
        return cls(name, estimator, frontier.unit, points, is_exact, landmarks, host)

    @classmethod
    def from_document(cls, document: Mapping[str, Any], path: str) -> Curve:
        """Reads what `remat frontier --json` prints. A hull that is not said to be exact counts as inexact.

        Raises:
            RematError: a point lacks what a point has.
        """
        landmarks = document.get("landmarks", [])
        if landmarks and not is_rows(landmarks):
            raise RematError(f"{path}: landmarks of a frontier must be rows, as points are, got {landmarks!r:.40}")
        for position, point in enumerate((*document["points"], *landmarks)):
            missing = [key for key in _COLUMNS if key not in point and key not in _OPTIONAL]
            wrong = [key for key in ("budget_bytes", "saved_bytes", "cost", "bound") if not _is_count(point.get(key))]
            if missing or wrong:
                raise RematError(
                    f"{path}: points[{position}] of a frontier must have the whole numbers budget_bytes, saved_bytes, "
                    f"cost and bound, and is_vertex and solver; {', '.join(missing or wrong)} "
                    f"{'is missing' if missing else 'is no such number'}; write it with `remat frontier --json`"
                )
        points, beside = (
            tuple({key: point[key] for key in _COLUMNS if key in point} for point in some)
            for some in (document["points"], landmarks)
        )
        name, estimator, unit, host = (str(document.get(key, "")) for key in ("graph", "estimator", "unit", "offload"))
        return cls(name, estimator, unit, points, document.get("is_exact") is True, beside, host)

    @property
    def priced(self) -> str:
        """What its costs are."""
        if self.host:
            return "added time"
        return "recompute time" if self.unit == "ns" else "recompute cost"

    @property
    def vertices(self) -> list[Row]:
        """The vertices of the hull, from the fewest bytes on."""
        return sorted((point for point in self.points if point["is_vertex"]), key=lambda point: point["saved_bytes"])

    def bound(self) -> list[tuple[int, int]]:
        """Returns (budget, bound) of the line that no plan is below.

        Of an exact hull, through the vertices. Otherwise what is known at each budget: a bound at one
        budget holds at every smaller one.
        """
        known = self.vertices if self.is_exact else self.points
        return sorted({(point["saved_bytes" if self.is_exact else "budget_bytes"], point["bound"]) for point in known})


def _known(frontier: Frontier, point: Point) -> Row:
    row = {column: getattr(point, column) for column in _COLUMNS} | {"plan": point.plan.digest}
    if frontier.graph is None:
        return row
    facts = PlanFacts.of(frontier.graph, point.plan)
    row |= {fact: len(getattr(facts, fact)) for fact in _FACTS}
    return row | {"lines": saved_lines([(frontier.graph, point.plan)])[:_LINES]}


def section(curve: Curve, provenance: Sequence[Provenance] = (), facts: str = "") -> Section:
    """Makes the plot and the table of one frontier."""
    rows = [
        {key: value for key, value in _row(curve, point).items() if value is not None}
        for point in (*curve.landmarks, *curve.points)
    ]
    part = Part(
        f"Saved bytes against {curve.priced if curve.host else 'recompute cost'}",
        _words(curve),
        (_figure(curve),) if curve.points else (),
        (Table("Plans on, and near, the frontier", rows),),
    )
    text = f"{facts} The costs are estimates, by {curve.estimator or 'an unnamed estimator'}; nothing was run."
    if curve.host:
        text += (
            f" Values may wait on the host of {curve.host}: added is the time of what runs twice, and what copies add "
            f"beside kernels, on a simulated timeline. What is on the host is not among the saved bytes."
        )
    return Section("Frontier", text.strip(), (part,), tuple(provenance))


def _row(curve: Curve, point: Row) -> Row:
    cost, bound = point["cost"], point["bound"]
    return {
        "saved_bytes": point["saved_bytes"],
        "budget_bytes": point["budget_bytes"],
        "cost": cost,
        "bound": bound,
        "gap": (cost - bound) / cost if cost else 0.0,
        **{fact: point.get(fact) for fact in _FACTS},
        "found by": "hull vertex" if point["is_vertex"] else point["solver"],
        "plan": str(point["plan"])[:12] if "plan" in point else None,
        "unit": curve.unit,
    }


def _words(curve: Curve) -> str:
    if not curve.points:
        return "There are no plans in it."
    ends = curve.vertices or list(curve.points)
    proven = sum(point["cost"] == point["bound"] for point in curve.points)
    span = " to ".join(
        f"{human_bytes(end['saved_bytes'])} at {human_price(end['cost'], curve.unit)}" for end in (ends[0], ends[-1])
    )
    hull = "" if curve.host else f", {len(curve.vertices)} of them vertices of the convex hull"
    return f"From {span}. {len(curve.points)} plans{hull}; {proven} are proven optimal for their budget. " + (
        "No plan is below the line." if curve.is_exact else "No plan is below the steps."
    )


def _figure(curve: Curve) -> Figure:
    every = (*curve.points, *curve.landmarks)
    byte_unit, byte_scale = plots.byte_unit(point["saved_bytes"] for point in every)
    unit, scale = plots.price_unit((point["cost"] for point in every), curve.unit)

    def spread(points: Sequence[Row], name: str, **style: Any) -> plots.Trace:
        x, y = ([point[key] / size for point in points] for key, size in (("saved_bytes", byte_scale), ("cost", scale)))
        return plots.points(name, x, y, [_hover(curve, point) for point in points], **style)

    bound = curve.bound()
    floor = plots.points(
        "proven bound",
        [budget / byte_scale for budget, _ in bound],
        [least / scale for _, least in bound],
        None,
        mode="lines",
        line={"color": GREY, "width": 1.5, "shape": "linear" if curve.is_exact else "vh"},
        fill="tozeroy",
        fillcolor="rgba(128,128,128,0.12)",
    )  # fmt: skip
    between = [point for point in curve.points if not point["is_vertex"]]
    small = {"symbol": "diamond", "size": 7, "color": AMBER}
    large = {"symbol": "circle", "size": 9, "color": BLUE}
    traces = [floor]
    named = "plans between them" if curve.vertices else "plans"
    traces += [spread(between, named, marker=small)] if between else []
    traces += [spread(curve.vertices, "hull vertices, optimal", marker=large)] if curve.vertices else []
    for mark, point in zip(_LANDMARKS, curve.landmarks, strict=False):
        traces.append(spread([point], point["solver"], marker=mark))
    name = curve.priced
    title = f"{name} ({unit})"
    return plots.figure(
        f"{curve.name or 'frontier'}: saved activations against {name}",
        f"Scatter plot of {len(curve.points)} plans: saved bytes across, {name} up. In the grey area there is no plan, "
        "and that is proven.",
        traces,
        x=plots.axis(f"saved activations ({byte_unit})"),
        y=plots.axis(title, tickformat="~s" if scale == 1 and unit == curve.unit else ""),
    )


def _hover(curve: Curve, point: Row) -> str:
    cost, bound = point["cost"], point["bound"]
    gap = (cost - bound) / cost if cost else 0.0
    is_landmark = any(point is mark for mark in curve.landmarks)
    by = point["solver"] if is_landmark else f"budget {human_bytes(point['budget_bytes'])}, by {point['solver']}"
    return plots.lines(
        f"saves {human_bytes(point['saved_bytes'])}",
        f"{'adds' if curve.host else 'recompute'} {human_price(cost, curve.unit)}",
        f"at least {human_price(bound, curve.unit)}, {'proven optimal' if not gap else f'gap {gap:.2%}'}",
        "hull vertex" if point["is_vertex"] else by,
        f"{point['saved_activations']:,} activations saved" if "saved_activations" in point else "",
        f"{point['recomputed_ops']:,} operators run twice" if "recomputed_ops" in point else "",
        f"plan {str(point['plan'])[:12]}" if "plan" in point else "",
        *point.get("lines", ()),
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
