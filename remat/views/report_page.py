"""Makes an HTML page of graphs and comparisons of solvers: pictures, tables, and the origin of the numbers.

    Page.of(["gpt2.json.gz", "solvers.json"]).save("report.html")

The page is self-contained: it has no script, and needs no network.
"""

# pandas ships partial types: what its methods return is often unknown to pyright.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remat.answer.registry import DEFAULT_ESTIMATOR, QUICK_BUDGET_SOLVER, find_estimator, find_solver
from remat.answer.solver import Solver, check_time_limit
from remat.errors import InvalidOption
from remat.facts.argument_checks import checked_path
from remat.facts.files import write_file
from remat.facts.graph import Graph
from remat.improve.frontier import Frontier, frontier
from remat.improve.point import Point
from remat.improve.progress import Progress, ending_within, limit_for
from remat.words import human_bytes, human_price, spoken_gap

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from remat.views.comparison import Comparison

_ENOUGH_GRAPHS = 3


@dataclass(frozen=True)
class Section:
    """Holds the part of the page about one file."""

    name: str  # of the file
    kind: str  # "Frontier" or "Solver comparison"
    facts: Mapping[str, str]  # the origin of the file
    # (alternative text, data URL) of each.
    pictures: tuple[tuple[str, str], ...]
    tables: tuple[tuple[str, str], ...]  # (caption, HTML) of each


@dataclass(frozen=True)
class Page:
    """Holds a report. The same files give the same bytes."""

    title: str
    sections: tuple[Section, ...]  # one per file, in the order of the files

    @classmethod
    def of(
        cls,
        paths: Iterable[str | Path],
        *,
        title: str = "remat report",
        estimator: str = DEFAULT_ESTIMATOR,
        refine: int = 16,
        solver: str | Solver = QUICK_BUDGET_SOLVER,
        time_limit_s: float | None = None,
        progress: Progress | None = None,
    ) -> Page:
        """Reads files of results.

        Args:
            paths: graph files; or comparisons of solvers, as `remat compare --json` prints them or `Comparison.to_csv`
                writes them.
            title: the heading of the report.
            estimator: the estimator of recompute time in the frontiers.
            refine: the number of budgets to solve between the ends of each frontier.
            solver: the solver of these budgets; it must support byte budgets.
            time_limit_s: wall time in seconds, after which no further budget is solved. The ends of every frontier are
                computed nevertheless.
            progress: as for `remat.Frontier.refine`.

        Raises:
            InvalidOption: there is no path.
            UnknownName: no estimator has this name.
            NotInstalled: matplotlib is missing.
            OSError: a file cannot be read.
            RematError: a file is neither a graph nor a comparison, or it is damaged.
        """
        find_estimator(estimator)
        check_time_limit(time_limit_s)
        chosen = find_solver(solver)

        def curve_of(graph: Graph) -> Frontier:
            ends = frontier(graph, estimator=estimator)
            return ends.refine(refine, chosen, time_limit_s=limit_for(chosen, time_limit_s), progress=progress)

        with ending_within(time_limit_s):
            sections = tuple(_section(Path(path), estimator, curve_of) for path in paths)
        if not sections:
            raise InvalidOption("paths must name at least one graph file or comparison of solvers, got none")
        return cls(title, sections)

    def html(self) -> str:
        from jinja2 import Environment

        template = (files("remat.views") / "report_page.html").read_text(encoding="utf-8")
        environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        return environment.from_string(template).render(title=self.title, sections=self.sections)

    def save(self, path: str | Path) -> int:
        """Writes the page, and returns its size in bytes."""
        # A name in JSON may contain a lone surrogate, which UTF-8 cannot encode.
        data = self.html().encode(errors="backslashreplace")
        write_file(checked_path(path), data)
        return len(data)


def frontier_rows(curve: Frontier, points: Iterable[Point]) -> list[dict[str, str]]:
    """Formats points of a frontier for people, one row per point."""
    return [
        {
            "saved": human_bytes(point.saved_bytes),
            "recompute" if curve.clock is None else "added": human_price(point.cost, curve.unit),
            "at least": human_price(point.bound, curve.unit),
            "gap": "proven" if point.is_proven else spoken_gap(point.gap),
            "by": "hull vertex" if point.is_vertex else point.solver,
        }
        for point in points
    ]


def _section(path: Path, estimator: str, curve_of: Callable[[Graph], Frontier]) -> Section:
    data = path.read_bytes()
    facts = {"SHA-256": hashlib.sha256(data).hexdigest()}
    if path.suffix == ".csv" or data.lstrip()[:1] == b"[":
        from remat.views.comparison import Comparison

        runs = Comparison.load(path)
        table = ("Runs of solvers", _html(runs.texts()))
        return Section(path.name, "Solver comparison", facts, tuple(_profiles(runs)), (table,))
    graph = Graph.load(path)
    curve = curve_of(graph)
    facts |= {"values": f"{len(graph):,}", "estimator": estimator}
    facts |= {name: str(text) for name, text in graph.meta.items() if text not in (None, "")}
    text = "Saved activations against recompute time. No plan lies in the grey area: that is proven."
    table = ("Plans of the frontier", _html(frontier_rows(curve, (*curve.references, *curve.points))))
    return Section(path.name, "Frontier", facts, ((text, _picture(curve.plot())),), (table,))


# A performance profile for each cost model with three or more graphs.
def _profiles(runs: Comparison) -> Iterator[tuple[str, str]]:
    from remat.pictures import Picture

    graphs: dict[Any, int] = runs.groupby("cost_model")["graph"].nunique().to_dict()
    for model, steps in runs.profile().groupby("cost_model", sort=False):
        if graphs[model] < _ENOUGH_GRAPHS:
            continue
        figure = Picture(figsize=(7, 3.5), layout="constrained")
        axes = figure.subplots()
        for solver, curve in steps.groupby("solver"):
            axes.step(
                [*curve["factor"], 2 * steps["factor"].max()],
                [*curve["share"], curve["share"].max()],
                where="post",
                label=solver,
            )
        axes.set_xscale("log")
        axes.set_ylim(0, 1.05)
        axes.set_xlabel("time, as a multiple of the fastest solver's")
        axes.set_ylabel("share of the graphs")
        axes.set_title(str(model), fontsize=11)
        axes.legend()
        yield (
            f"How often each solver has found the best plan within a multiple of the fastest time, under {model}.",
            _picture(figure),
        )


def _html(rows: Sequence[Mapping[str, str]]) -> str:
    import pandas as pd

    frame: pd.DataFrame = pd.DataFrame([dict(row) for row in rows])
    with pd.option_context("display.max_colwidth", None):
        return frame.to_html(index=False, border=0, escape=True)


# A picture as a data URL cannot run scripts, whatever names it contains.
def _picture(figure: Figure) -> str:
    from remat.pictures import encode

    return f"data:image/svg+xml;base64,{base64.b64encode(encode(figure, 'svg')).decode()}"
