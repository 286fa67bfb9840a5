"""Measures steps that offload on a GPU: `python -m experiments.bench.measured_copies`.

A step has a budget of saved bytes, a share of what PyTorch's default plan saves. It is kept in three ways: by
recomputing alone; with copies to the host in the stream of the kernels; and with copies in a stream of their own,
beside the kernels. PyTorch's default stands beside them. Each way has a process of its own, and they take their steps
in turns (`experiments.bench.measured_steps`). Copies are then read from a profile of one step: `copied` is the time
that copies take, `hidden` the part of it in which kernels run, `link` the bytes in a second of all copies together.
"""

# torch's profiler has partial types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.autograd import DeviceType  # pyright: ignore[reportPrivateImportUsage]
from torch.profiler import ProfilerActivity, profile

import remat
from costmodels import MemoryBudget
from experiments.bench.measured_steps import Step, Worker, device_of, ended_at_last, started, timed_in_turns
from experiments.models.measured_models import CASES, DEFAULT, Case
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable, Row
from remat.predict.time.roofline import Roofline

ALONE, IN_STREAM, BESIDE = "recomputed alone", "copies in the kernels' stream", "copies in their own stream"
SHARES = {"Llama 2 7B, 6 of 32 layers": 40}
"""Cases by name, and the budget in percent of what PyTorch's default plan saves."""


class CopiedStep(Step):
    """Trains in one way; the limit is the budget of saved bytes in percent."""

    def _ours(self, limit: int, prices: Roofline) -> Any:
        # A CPU's profile has no link to a host: there, only the way through the code can be tried.
        link = False if self._way == ALONE else device_of("cuda") if torch.cuda.is_available() else "h100"
        budget = MemoryBudget(f"{limit}%", estimator=prices, offload=link)
        return remat.compile(self._loss, cost_model=budget, dynamic=False, copy_stream=self._way == BESIDE)

    def predicted(self) -> Row:
        """Says what is kept where; predicts the peak, and the time with copies beside the kernels."""
        (planned,) = self._step.report().graphs
        # Copies in the kernels' stream are never hidden.
        line = remat.offload_timeline(planned.graph, planned.plan, device_of("cuda"))
        hidden_ns = 0 if self._way == BESIDE else line.hidden_ns
        return {
            "saved_bytes": planned.facts.saved_bytes,
            "host_bytes": planned.facts.offloaded_bytes,
            "predicted_peak_bytes": planned.row["peak_bytes"],
            "modelled_s": (line.ns + hidden_ns) / 1e9,
            "modelled_hidden_s": (line.hidden_ns - hidden_ns) / 1e9,
        }

    def profiled(self) -> Row:
        """Profiles one step, and compares the spans of its copies with those of its kernels."""
        self._train()
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as recorded:
            self._train()
            self._wait()
        spans: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
        for event in recorded.profiler.kineto_results.events():  # type: ignore[union-attr]
            if event.device_type() == DeviceType.CUDA and "Memset" not in event.name():
                is_copy = "Memcpy" in event.name() and "DtoD" not in event.name()
                spans[is_copy].append((event.start_ns(), event.start_ns() + event.duration_ns()))
        self._release()
        copies, kernels = _union(spans[True]), _union(spans[False])
        hidden = sum(max(0, min(e, f) - max(s, b)) for s, e in copies for b, f in kernels)
        copied = sum(end - start for start, end in copies)
        return {"copies": len(spans[True]), "copied_s": copied / 1e9, "hidden_s": hidden / 1e9}


def _union(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def measured(case: Case) -> Iterator[Row]:
    """Measures a step in all ways: a row for each."""
    with ended_at_last() as workers:
        rows = started([Worker(case, DEFAULT)], workers)
        ours = [Worker(case, way, SHARES[case.name], CopiedStep) for way in (ALONE, IN_STREAM, BESIDE)]
        rows |= started(ours, workers)
        for row in timed_in_turns(rows, workers):
            worker = next((one for one in ours if one.way == row["way"] and not one.error), None)
            copies = {} if worker is None else worker.ask("profiled") or {}
            if copies.get("copied_s"):
                copies["link_bytes_per_s"] = 2 * row["host_bytes"] / copies["copied_s"]
            error = row["error"] or (worker.error if worker else "")
            yield {name: value for name, value in row.items() if name != "limit_bytes"} | copies | {"error": error}


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says what each way adds to PyTorch's default step, and how much of the copies is hidden."""
    default = {row["case"]: row["step_s"] for row in rows if row["way"] == DEFAULT}
    lines: list[str] = []
    for row in rows:
        if row["way"] != DEFAULT and row["step_s"]:
            added = row["step_s"] / default[row["case"]] - 1
            hidden = f", {row['hidden_s'] / row['copied_s']:.0%} of the copies hidden" if row.get("copied_s") else ""
            lines.append(
                f"{row['case']}, {row['way']}: {row['peak_bytes'] / 1e9:.2f} GB, step {added:+.1%} beside PyTorch's "
                f"default{hidden}"
            )
    return [bullets(lines)]


TABLE = ResultTable(
    "experiments.bench.measured_copies",
    "Steps that offload, measured on a GPU",
    cases=lambda: [case for case in CASES if case.name in SHARES],
    key=lambda case: case.name,
    measure=measured,
    summary=summary,
)

if __name__ == "__main__":
    TABLE.command()
