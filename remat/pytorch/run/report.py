"""Says what was chosen for each graph of a compiled model: `step.report()`, and `remat.last_report()`.

What was planned is noted when torch compiles. What it is compared with is worked out when a report is first read.
"""

from __future__ import annotations

import functools
import html
import io
import itertools
import logging
import os
import re
import textwrap
import warnings
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from rich.console import Console
from rich.table import Column, Table
from torch import nn

from remat.answer.saved_lines import SavedLine, saved_lines
from remat.facts.graph import Graph
from remat.pytorch.run import ranks
from remat.pytorch.run.planned_graph import TOGETHER, ChosenPlan, PlannedGraph
from remat.words import human_bytes, spoken_gap

if TYPE_CHECKING:
    import pandas as pd  # pyright: ignore[reportMissingTypeStubs]  # pandas ships none

_LOGGER = logging.getLogger("remat")
_LOGGER.addHandler(logging.NullHandler())
# How many graphs `remat.last_report()` remembers.
_RECENT = 64
_WIDTH = 80
# How many lines of a model are named.
_SHOWN = 5
# What remarks and checks say of a budget that is not kept.
_MISSED = re.compile("was asked for|no plan was found that keeps it")
_STYLE: dict[str, Any] = {"box": None, "pad_edge": False, "header_style": "bold", "collapse_padding": True}


@dataclass(frozen=True, eq=False)
class Report:
    """Says what was chosen for each graph, beside PyTorch's default, and saving all that the backward pass reads.

    `print` it for a table; sizes in bytes are in `as_frame()`. Without recomputing, that is about what autograd
    keeps, in operators of the joint graph. Peaks are predicted, as by `remat.timeline`.

    Attributes:
        graphs: in the order in which they were planned, or found in torch's cache on disk with the plan of an earlier
            run; of one that was planned again, the last plan.
        held_bytes: the most that all calls saved at the same time, by their plans; None if there is no budget.
        limit_bytes: the budget of what all calls save; None if it is none, a fraction, or one of the peak.
        notes: graphs without a plan of ours, each with the reason.
    """

    graphs: tuple[PlannedGraph, ...]
    held_bytes: int | None = None
    limit_bytes: int | None = None
    notes: tuple[str, ...] = ()

    def as_frame(self) -> pd.DataFrame:
        """Returns a row for each graph.

        The columns: values (of the graph); saved_bytes, default_saved_bytes, no_recompute_saved_bytes (kept between the
        passes by this plan, by PyTorch's default, and where nothing runs twice); handed_bytes, default_handed_bytes
        (kept as well, but made by other graphs); offloaded_bytes (kept on the host meanwhile, and not among
        saved_bytes); copied_bytes (kept besides, in copies that the forward pass makes of inputs in another layout, as
        of filters); peak_bytes, default_peak_bytes (predicted, of the device under this plan and PyTorch's default);
        checked_peak_bytes (of the device by the code that Inductor writes for the plan; missing where no limit of the
        peak was checked); recomputed_ops; cost_model; chosen_by; gap (above the best at most, as a part of the cost;
        missing if unknown); is_proven; seconds (that choosing took); from_cache (in an earlier run, for torch has kept
        the compiled graph); step_ns, default_step_ns, checkpointed_step_ns (modelled, on the device of the graph: by
        this plan, by PyTorch's default, and with every layer checkpointed; missing where no kernels are predicted).
        """
        import pandas as pd  # pyright: ignore[reportMissingTypeStubs]

        return pd.DataFrame([planned.row | planned.steps for planned in self.graphs])

    def __str__(self) -> str:
        if not self.graphs and self.notes:
            return "\n".join(self.notes)
        if not self.graphs:
            return (
                "no graph was planned. Nothing was called with gradients yet; or torch.compile is switched off; or it "
                "took what it had compiled before, for an equal model; or it compiles none of this model, as "
                "where a bare nn.Sequential is compiled by its own .compile(): call remat.compile(model)"
            )
        table = Table(Column("graph", min_width=5), **_STYLE)
        offloads = any(planned.plan.offloaded for planned in self.graphs)
        hosted = {"host": "offloaded"} if offloads else {}
        handed = {"handed": "handed"} if any(planned.row["handed_bytes"] for planned in self.graphs) else {}
        sizes = {
            "saved": "saved",
            **handed,
            **hosted,
            "PyTorch's": "default_saved",
        }
        if len(sizes) == 2:  # with a further column, 80 characters are too few
            sizes["no recompute"] = "no_recompute_saved"
        for heading in (*sizes, "peak", "PyTorch's", "gap", "s"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("chosen by", overflow="fold")
        for number, planned in enumerate(self.graphs, 1):
            row = {**planned.row}
            for who in ("", "default_"):  # what is kept either way is comparable
                if row[f"{who}saved_bytes"] is not None:
                    row[f"{who}saved_bytes"] += row[f"{who}handed_bytes"]
            cells = [_size(row[f"{size}_bytes"]) for size in (*sizes.values(), "peak", "default_peak")]
            seconds = "cached" if planned.from_cache else f"{planned.seconds:.2f}"
            table.add_row(str(number), *cells, _gap(planned.chosen), seconds, planned.chosen.by)
        glance, told = ([_folded(text) for text in texts] for texts in (self._glance, self._summary))
        return "\n".join([*glance, *_printed(table), *told, *self._lines, *map(_folded, self.notes)])

    def _repr_html_(self) -> str:
        """Returns the same text for a notebook."""
        return f"<pre>{html.escape(str(self))}</pre>"

    @property
    def _glance(self) -> Iterator[str]:
        """Yields what one look should tell: memory, time, whether the budget is kept, what to do next."""
        rows = [planned.row | planned.steps for planned in self.graphs]
        saved, default = (_total(rows, f"{who}saved_bytes", f"{who}handed_bytes") for who in ("", "default_"))
        told = f"saved {_size_and_share(saved, default)} of PyTorch's default"
        if len(rows) == 1:  # peaks of several graphs do not add up
            told += f"; peak {_size_and_share(rows[0]['peak_bytes'], rows[0]['default_peak_bytes'])} of it"
        yield told
        step, default, checkpointed = (_total(rows, f"{who}step_ns") for who in ("", "default_", "checkpointed_"))
        ways = {"PyTorch's default": default, "every layer checkpointed": checkpointed}
        if slower := {way: step / ns - 1 for way, ns in ways.items() if step and ns}:
            yield f"step {', '.join(f'{more:+.1%} beside {way}' for way, more in slower.items())}"
        missed = any(_MISSED.search(text) for one in self.graphs for text in one.told)
        missed |= self.limit_bytes is not None and (self.held_bytes or 0) > self.limit_bytes
        # Whether several graphs keep a limit of the peak together, only their check knows.
        alone = [one for one in self.graphs if one.chosen.by in TOGETHER and not one.chosen.together]
        is_known = self.limit_bytes is not None or not alone
        if self.held_bytes is not None and (missed or (is_known and not self.notes)):
            yield f"budget: {'not kept, see below' if missed else 'kept'}"
        if missed:
            yield "next: a smaller batch, a larger budget, or offloading"
        elif step and default and step > 1.05 * default and any(row["recomputed_ops"] for row in rows):
            yield "next: for a faster step, raise the budget; remat.frontier shows what that gains"

    @property
    def _summary(self) -> Iterator[str]:
        yield f"by {', '.join(dict.fromkeys(planned.cost_model for planned in self.graphs))}; predicted: peaks, steps"
        if any(planned.from_cache for planned in self.graphs):
            yield "cached: planned in an earlier run; torch had the graph in its cache on disk"
        for number, planned in enumerate(self.graphs, 1):
            if planned.chosen.check:
                yield f"graph {number}: {planned.chosen.check}"
            if copied := planned.row["copied_bytes"]:
                kept = human_bytes(copied)
                yield f"graph {number}: {kept} are kept beside what is saved, in copies of inputs in another layout"
        if len(self.graphs) > 1:
            yield "each row is about one call of its graph"
        if any(planned.row["handed_bytes"] for planned in self.graphs):
            yield "handed: made by other graphs, and kept for this one; a part of what is saved"
        if self.held_bytes:
            held = human_bytes(self.held_bytes)
            yield f"all calls together saved at most {held} at once"
        yield from dict.fromkeys(text for planned in self.graphs for text in planned.told[1:] if text)

    @property
    def saved_lines(self) -> tuple[SavedLine, ...]:
        """Lists the lines of the model whose values all graphs save, the largest first; () where no line is known."""
        return saved_lines((planned.graph, planned.plan) for planned in self.graphs)

    @property
    def _lines(self) -> list[str]:
        lines = self.saved_lines
        if not lines:
            return []
        table = Table(*(Column(heading, justify="right") for heading in ("saved", "values")), "line", **_STYLE)
        table.add_column("module", overflow="fold")
        room = 60 - max(len(line.line) for line in lines[:_SHOWN])
        for line in lines[:_SHOWN]:
            table.add_row(
                human_bytes(line.bytes), str(line.values), line.line or "unknown", line.modules_told(room) or "-"
            )
        if rest := lines[_SHOWN:]:
            count = str(sum(line.values for line in rest))
            table.add_row(human_bytes(sum(line.bytes for line in rest)), count, f"{len(rest)} more")
        return _printed(table)

    def __repr__(self) -> str:
        return f"<Report of {len(self.graphs)} graphs>"


class CompiledStep(Protocol):
    """Describes what `remat.compile` returns, which is called as the model is."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model."""
        ...

    def report(self) -> Report:
        """Returns what was chosen for each graph that was compiled up to now."""
        ...


class Log:
    """Notes what is planned; of a graph that is planned again, the last plan."""

    _numbers = itertools.count()

    def __init__(self, capacity: int | None = None) -> None:
        self._planned: OrderedDict[tuple[int, str], PlannedGraph] = OrderedDict()
        self._notes = deque[str](maxlen=capacity)
        self._capacity, self._number = capacity, next(self._numbers)

    def __reduce__(self) -> tuple[Any, ...]:
        """Makes copies empty, so that torch hashes the same for every graph when it makes the keys of its caches."""
        return Log, (self._capacity,)

    @staticmethod
    def begin(graph: Graph) -> None:
        """Logs that the search for a plan begins, since it may take seconds under a budget."""
        _LOGGER.info("planning a graph of %s values", f"{len(graph):,}")

    def add(self, planned: PlannedGraph) -> None:
        """Notes a plan that a graph runs, here and for `remat.last_report()`, and logs it."""
        key = self._number, ranks.key_of_graph(planned.graph)
        for log in (self, _recent):
            log.keep(key, planned)
        if _LOGGER.isEnabledFor(logging.INFO):
            _LOGGER.info("%s", planned)

    def keep(self, key: tuple[int, str], planned: PlannedGraph) -> None:
        """Keeps a plan, instead of an earlier one with the same key; the oldest is forgotten if there are too many."""
        self._planned[key] = planned
        self._planned.move_to_end(key)
        if self._capacity is not None and len(self._planned) > self._capacity:
            self._planned.popitem(last=False)

    def note(self, text: str) -> None:
        """Notes a graph that runs without a plan of ours, and why, as `add` notes a plan."""
        for log in (self, _recent):
            log.keep_note(text)
        _LOGGER.info("%s", text)

    def keep_note(self, text: str) -> None:
        """Keeps a note; the oldest is forgotten if there are too many."""
        self._notes.append(text)

    def report(self, held_bytes: Callable[[], int] | None = None, limit_bytes: int | None = None) -> Report:
        """Returns what was noted up to now.

        Args:
            held_bytes: says what all calls saved at once.
            limit_bytes: the budget of that.
        """
        held = None if held_bytes is None else held_bytes()
        return Report(tuple(self._planned.values()), held, limit_bytes, tuple(self._notes))


_recent = Log(_RECENT)


def report_again(planned: PlannedGraph) -> None:
    """Notes for `remat.last_report()` what was planned in an earlier run, unless it was noted in this one."""
    if all(other.graph != planned.graph for other in _recent.report().graphs):
        _recent.add(planned)


def reporting(
    step: Callable[..., Any],
    model: Callable[..., Any],
    log: Log,
    held_bytes: Callable[[], int] | None = None,
    limit_bytes: int | None = None,
) -> CompiledStep:
    """Gives a compiled model its `report`; not where the model has a `report` of its own.

    Args:
        step: what became of the model; changed in place, unless it is a function that torch left as it was.
        model: the module or function.
        log: what is planned for it.
        held_bytes: says what all its calls saved at once.
        limit_bytes: the budget of that.
    """
    if step is model and not isinstance(step, nn.Module):  # torch's switch for "do not compile" is set
        step = functools.wraps(step)(functools.partial(step))
    if not hasattr(model, "report"):
        # In the dictionary: torch would set the attribute of a compiled module on the module inside.
        vars(step)["report"] = functools.partial(log.report, held_bytes, limit_bytes)
    return cast(CompiledStep, step)


def log_what_is_asked_for(setting: str) -> None:
    """Reads the environment variable REMAT_LOG: with "plans", each plan is a line on standard error.

    Warns of any other word.
    """
    if not setting:
        return
    if setting != "plans":
        told = f'the environment variable REMAT_LOG must be "plans", or not set, got {setting!r}: nothing is logged'
        warnings.warn(told, stacklevel=2)
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("remat: %(message)s"))
    _LOGGER.addHandler(handler)
    _LOGGER.setLevel(logging.INFO)
    _LOGGER.propagate = False  # else a program with a log of its own prints each line twice


log_what_is_asked_for(os.environ.get("REMAT_LOG", ""))


def last_report() -> Report:
    """Returns a report of the last 64 graphs that were planned in this process, by any backend.

    Use it for steps that were compiled by `torch.compile(model, backend="remat")`, or by somebody else's code.
    """
    return _recent.report()


def _folded(text: str) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _printed(table: Table) -> list[str]:
    """Writes a table in lines of up to 80 letters."""
    text = io.StringIO()
    Console(width=_WIDTH, file=text, markup=False).print(table)
    return [line.rstrip() for line in text.getvalue().splitlines()]


def _total(rows: list[dict[str, Any]], *columns: str) -> float | None:
    counts = [row[column] for row in rows for column in columns]
    return None if None in counts else sum(counts)


def _size_and_share(count: float | None, default: float | None) -> str:
    return "unknown" if count is None else f"{human_bytes(int(count))}, {f'{count / default:.0%}' if default else '-'}"


def _size(count: int | None) -> str:
    return "" if count is None else human_bytes(count)


def _gap(chosen: ChosenPlan) -> str:
    if chosen.is_proven:
        return "proven"
    return "" if chosen.gap is None else spoken_gap(chosen.gap, 1).removesuffix(" useful bound")  # "no", in a column
