"""Reports the plan of each graph of a compiled model; figures are computed when a report is first read."""

from __future__ import annotations

import html
import io
import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Column, Table

from remat.answer.saved_lines import SavedLine, saved_lines
from remat.pytorch.run.planned_graph import NO_OWN_BUDGET, ChosenPlan, PlannedGraph
from remat.words import counted, human_bytes, spoken_gap

if TYPE_CHECKING:
    import pandas as pd  # pyright: ignore[reportMissingTypeStubs]  # pandas ships none

_WIDTH = 80
# The most lines of a model that are listed.
_SHOWN = 5
# The words by which remarks and checks say that a budget is not kept.
_MISSED = re.compile("was asked for|no plan was found that keeps it")
_STYLE: dict[str, Any] = {"box": None, "pad_edge": False, "header_style": "bold", "collapse_padding": True}


@dataclass(frozen=True)
class HeldMemory:
    """Holds what all calls that were alive at the same time saved together, by their plans, when it was most.

    Attributes:
        default_bytes: what they would save by PyTorch's default plans.
        limit_bytes: the budget of `bytes`; None if it limits the peak, or if a share of each graph is no share of all.
        calls: the number of calls of each graph that were alive, by the key of the graph.
    """

    bytes: int
    default_bytes: int
    limit_bytes: int | None
    calls: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Report:
    """Compares the plan of each graph with PyTorch's default plan, and with a plan that recomputes nothing.

    `print` it for a table; `as_frame()` has the sizes in bytes. A plan that recomputes nothing saves about what
    autograd saves, among the values of the joint graph. Peaks are predicted, as by `remat.timeline`.

    Attributes:
        graphs: the graphs in the order in which they were planned, or found in torch's cache on disk with the plan of
            an earlier run; a graph that was planned again has its last plan.
        held_bytes: the most bytes that all calls saved at the same time, by their plans; None without a budget.
        default_held_bytes: what the same calls would save by PyTorch's default plans.
        limit_bytes: the budget of `held_bytes`; None if there is none, or if it is unknown.
        calls: for each graph, how many of its calls were alive then; () if unknown.
        notes: a sentence for each graph that runs without a plan of ours, with the reason.
    """

    graphs: tuple[PlannedGraph, ...]
    held_bytes: int | None = None
    default_held_bytes: int | None = None
    limit_bytes: int | None = None
    calls: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    def as_frame(self) -> pd.DataFrame:
        """Returns a table with a row for each graph.

        The columns:

        - values: the number of values in the graph.
        - saved_bytes, default_saved_bytes, no_recompute_saved_bytes: saved between the passes by this plan, by
          PyTorch's default plan, and by a plan that recomputes nothing.
        - handed_bytes, default_handed_bytes: also saved by these plans, but computed by other graphs.
        - offloaded_bytes: saved on the host; not a part of saved_bytes.
        - copied_bytes: saved in addition, in copies of inputs, such as filters, that the forward pass makes in another
          layout.
        - peak_bytes, default_peak_bytes: the predicted peaks of this plan and of PyTorch's default plan.
        - checked_peak_bytes: the peak by the code that Inductor writes for the plan; missing without a limit of the
          peak.
        - recomputed_ops: how many operators are recomputed. cost_model, chosen_by, is_proven: how the plan was chosen.
        - gap: the most that the plan costs above the best one, as a fraction of its cost; missing if unknown.
        - seconds: how long it took to choose the plan.
        - from_cache: whether the plan is that of an earlier run, from torch's cache.
        - step_ns, default_step_ns, checkpointed_step_ns: the modelled time of a step on the device of the graph, by
          this plan, by PyTorch's default plan, and with every layer checkpointed; missing if no kernels are predicted.
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
                "where a bare nn.Sequential is compiled by its own .compile(): call remat.compile(model); or graph "
                "breaks left nothing to plan: TORCH_LOGS=graph_breaks shows them"
            )
        table = Table(Column("#", min_width=1), **_STYLE)
        offloads = any(planned.plan.offloaded for planned in self.graphs)
        hosted = {"host": "offloaded"} if offloads else {}
        handed = {"handed": "handed"} if any(planned.row["handed_bytes"] for planned in self.graphs) else {}
        sizes = {"saved": "saved", **handed, **hosted, "PyTorch's": "default_saved"}
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
            seconds = "cached" if planned.from_cache else f"{planned.seconds:.{2 if planned.seconds < 10 else 0}f}"
            table.add_row(str(number), *cells, _gap(planned.chosen), seconds, planned.chosen.by)
        headline, told = ([_folded(text) for text in texts] for texts in (self._headline, self._summary))
        return "\n".join([*headline, *_printed(table), *told, *self._lines, *map(_folded, self.notes)])

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    @property
    def _headline(self) -> Iterator[str]:
        """Yields the most important lines: memory, time, whether the budget is kept, and what to do next."""
        rows = [planned.row | planned.steps for planned in self.graphs]
        if len(rows) > 1 and any(self.calls):  # else it is unknown which graphs were alive at the same time
            rows = [row for row, calls in zip(rows, self.calls, strict=True) for _ in range(calls)]
        saved, default = (_total(rows, f"{who}saved_bytes", f"{who}handed_bytes") for who in ("", "default_"))
        if len(rows) > 1 and any(self.calls):  # what one graph makes and another saves counts once
            saved, default = self.held_bytes, self.default_held_bytes
        told = f"saved {_size_and_share(saved, default)} of PyTorch's default"
        if len(rows) == 1:  # the peaks of several graphs cannot be added
            peak, default, checked = (rows[0][f"{which}peak_bytes"] for which in ("", "default_", "checked_"))
            told += f"; peak {_size_and_share(peak, default)} of it"
            if checked and peak and not math.isclose(checked, peak, rel_tol=0.02):
                told += f", as predicted, but {human_bytes(checked)} by Inductor's code"
        else:
            alive = sum(map(bool, self.calls)) or len(self.graphs)
            calls = "" if len(rows) == alive else f"{len(rows)} calls of "
            told += f", in {calls}{counted(alive, 'graph')} together"
        yield told
        step, default, checkpointed = (_total(rows, f"{who}step_ns") for who in ("", "default_", "checkpointed_"))
        ways = {"PyTorch's default": default}
        if checkpointed != default:  # a model without layers has nothing to checkpoint
            ways["every layer checkpointed"] = checkpointed
        if slower := {way: step / ns - 1 for way, ns in ways.items() if step and ns}:
            yield f"step {', '.join(f'{more:+.1%} beside {way}' for way, more in slower.items())}"
        yield from self._verdict
        if self._is_missed:
            yield "next: a smaller batch, a larger budget, or offloading"
        elif step and default and step > 1.05 * default and any(row["recomputed_ops"] for row in rows):
            yield "next: for a faster step, raise the budget; see remat.step_frontier"
        else:
            yield "next: for less memory, lower the budget; see remat.step_frontier"

    @property
    def _misses(self) -> int:
        """Counts the graphs of which a remark or a check says that they miss their budget."""
        return sum(any(_MISSED.search(text) for text in one.messages) for one in self.graphs)

    @property
    def _is_missed(self) -> bool:
        return bool(self._misses) or (self.limit_bytes is not None and (self.held_bytes or 0) > self.limit_bytes)

    @property
    def _verdict(self) -> Iterator[str]:
        """Yields whether the budget is kept, where that is known."""
        # Whether several graphs keep a limit of the peak together, only their check knows.
        alone = [one for one in self.graphs if one.chosen.by in NO_OWN_BUDGET and not one.chosen.together]
        is_known = self.limit_bytes is not None or not alone
        # With a backend by name, each call of a graph has the budget of its own.
        apart = self.held_bytes is None and all(planned.limits_memory for planned in self.graphs)
        if not (apart or self.held_bytes is not None):
            return
        if self._is_missed:
            some = apart and self._misses < len(self.graphs)
            yield f"budget: not kept{f' by {self._misses} of {len(self.graphs)} graphs' if some else ''}, see below"
        elif is_known and not self.notes:
            yield f"budget: kept{' in each call' if apart else ''}"

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
        yield from dict.fromkeys(text for planned in self.graphs for text in planned.messages[1:] if text)

    @property
    def saved_lines(self) -> tuple[SavedLine, ...]:
        """Lists the saved lines of the model, the most bytes first; () if no line or module is known."""
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


def _folded(text: str) -> str:
    return textwrap.fill(text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _printed(table: Table) -> list[str]:
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
