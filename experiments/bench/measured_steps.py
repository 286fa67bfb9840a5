"""Measures our plans beside what users of PyTorch get in one line: `python -m experiments.bench.measured_steps`.

Each way to train a model has a process of its own. All of them take their steps in turns, so that other work on the
machine slows all of them down alike. PyTorch's ways are `torch.compile` at its default and at memory budgets, and with
every layer checkpointed; ours is `remat.compile` with `MemoryBudget(of="peak")`, of the peak that was measured for each
of these. Times are medians of whole steps. Peaks are those of torch's allocator, above what was held before the step.
Predictions stand beside both. Norms of gradients are compared.

On a machine with a GPU its models are measured, otherwise those for two cores of a CPU.
"""

# pandas, and a few functions of torch, have partial types.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import remat
from costmodels import MemoryBudget
from experiments.models.measured_models import BUDGETED, CASES, CHECKPOINTED, Case
from experiments.report.charts import beside_one_liners, chart
from experiments.report.markdown import bullets
from experiments.report.result_table import ResultTable, Row
from remat.improve.step_predictor import StepPredictor
from remat.predict.time.known_devices import device_called, find_device
from remat.predict.time.roofline import Roofline
from remat.pytorch.measure.ceilings import measured_device
from remat.pytorch.measure.saved import peak_bytes
from remat.pytorch.measure.torch_budgets import legal_plans, torchs_plans
from remat.pytorch.seam.torch_names import torch_compile
from remat.pytorch.seam.torch_settings import partitioner_settings

OURS = "ours at the peak of "
# Each way takes so many turns, of so many timed steps; where all of that takes long, at least three turns.
_ROUNDS, _STEPS, _LONG_S = 7, 3, 100.0


class Step:
    """Trains one step of a model in one way, again and again.

    Args:
        case: the model.
        way: one of PyTorch's ways, or ours.
        limit: of the peak in bytes, for ours.
    """

    def __init__(self, case: Case, way: str, limit: int | None) -> None:
        torch.manual_seed(0)
        torch.set_float32_matmul_precision("highest")
        self._device = torch.device(case.device)
        with self._device:
            model, self._args = case.make()
        self._model = model.train()
        self._way, self._autocast, self._is_ours = way, case.autocast, limit is not None
        if way == CHECKPOINTED:
            checkpoint_layers(self._model)
        self._step: Any = torch_compile(self._loss, dynamic=False)
        if limit is not None:
            self._step = self._ours(limit, Roofline(device=device_of(case.device)))

    def _ours(self, limit: int, prices: Roofline) -> Any:
        budget = MemoryBudget(limit, of="peak", estimator=prices)
        return remat.compile(self._loss, cost_model=budget, dynamic=False)

    def first(self) -> Row:
        """Compiles the step, and returns what it computes."""
        start = time.perf_counter()
        try:
            with partitioner_settings(activation_memory_budget=self._budget):
                loss = self._train()
            self._wait()
            first_s = time.perf_counter() - start
            gradients = [p.grad for p in self._model.parameters() if p.grad is not None]
            norm = torch.stack([gradient.float().norm() for gradient in gradients]).norm().item()
            return {"first_s": round(first_s, 1), "loss": loss.item(), "gradient_norm": norm}
        finally:
            self._release()  # other ways take their first steps at the same time

    def peak(self) -> Row:
        """Measures the most bytes that the step holds above what is held before it."""
        self._train()  # what libraries allocate for themselves at first lasts; several graphs are planned again
        self._forget()
        taken = peak_bytes(self._train, self._device)
        self._release()
        return {"peak_bytes": taken}

    def seconds(self) -> list[float]:
        """Times steps, each until the device has finished, after one that is not timed; leaves no memory taken."""
        times: list[float] = []
        for _ in range(_STEPS + 1):
            self._forget()
            self._wait()
            start = time.perf_counter()
            self._train()
            self._wait()
            times.append(time.perf_counter() - start)
        self._release()
        return times[1:]

    def predicted(self) -> Row:
        """Predicts the peak, unless there are several graphs, and the time of the step."""
        if self._is_ours:
            pairs = [(planned.graph, planned.plan) for planned in self._step.report().graphs]
        else:
            with partitioner_settings(activation_memory_budget=self._budget):
                # With a device, the forward pass that captures the graph is fake: it takes no memory.
                graphs = torchs_plans(self._loss, *self._args, budgets=[self._budget], device=self._device)
            pairs = [(graph, *legal_plans(graph, plans).values()) for graph, plans in graphs]
        device = find_device(device_of(self._device.type))
        ns, peaks = 0.0, list[int]()
        for graph, plan in pairs:
            predictor, saved = StepPredictor.of(graph, device), remat.Choice.from_plan(graph, plan).saved
            peaks.append(predictor.peak(saved))
            ns += predictor.ns(saved)
        return {"modelled_s": ns / 1e9, "predicted_peak_bytes": peaks[0] if len(peaks) == 1 else None}

    @property
    def _budget(self) -> float:
        return float(self._way.removeprefix(BUDGETED)) if self._way.startswith(BUDGETED) else 1.0

    def _loss(self, *args: Tensor) -> Tensor:
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._autocast):
            return self._model(*args)

    def _train(self) -> Tensor:
        self._forget()
        loss = self._step(*self._args)
        loss.backward()
        return loss.detach()

    def _forget(self) -> None:
        self._model.zero_grad(set_to_none=True)

    # Only after a turn: a step that asks the driver for its memory again takes longer.
    def _release(self) -> None:
        self._forget()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


def checkpoint_layers(model: nn.Module) -> None:
    """Puts `torch.utils.checkpoint` around each module of every list of modules that do not hold further lists."""
    for parent in model.modules():
        if isinstance(parent, nn.ModuleList) and not any(
            isinstance(m, nn.ModuleList) for p in parent for m in p.modules()
        ):
            for layer in parent:
                layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def device_of(kind: str) -> Any:
    """Returns whose figures times are modelled by: a GPU's data sheet by its name, or what was measured of this CPU."""
    return measured_device("cpu") if kind == "cpu" else device_called(torch.cuda.get_device_name()) or "h100"


def _work(pipe: Any, make: type[Step], case: Any, way: str, limit: int | None) -> None:
    step = None
    for name in iter(pipe.recv, None):
        try:
            step = step or make(case, way, limit)
            pipe.send((getattr(step, name)(), ""))
        except Exception as error:  # the other ways go on
            pipe.send((None, " ".join(f"{type(error).__name__}: {error}".split())[:200]))


class Worker:
    """Asks the process of one way to train; the arguments are those of `Step`, of which `make` is a subclass."""

    def __init__(self, case: Any, way: str, limit: int | None = None, make: type[Step] = Step) -> None:
        context = multiprocessing.get_context("spawn")
        self.way, self.limit, self.error = way, limit, ""
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_work, args=(other, make, case, way, limit), daemon=True)
        self._process.start()
        other.close()

    def begin(self, name: str) -> None:
        """Asks for a method of `Step`."""
        self._pipe.send(name)

    def end(self) -> Any:
        """Returns what the method returned; None if it failed, and then `error` says why."""
        try:
            result, error = self._pipe.recv()
        except EOFError:
            result, error = None, "the process died"
        self.error = self.error or error
        return result

    def ask(self, name: str) -> Any:
        """Calls a method of `Step`, and waits for its result."""
        self.begin(name)
        return self.end()

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.join()


def measured(case: Case) -> Iterator[Row]:
    """Measures a model: a row for each way to train it."""
    if case.device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("needs a GPU; none is here")
    with ended_at_last() as workers:
        rows = started([Worker(case, way) for way in case.rivals], workers)
        if case.has_ours:
            peaks = {way: row["peak_bytes"] for way, row in rows.items() if not row["error"]}
            rows |= started([Worker(case, f"{OURS}{way}", peak) for way, peak in peaks.items()], workers)
        yield from timed_in_turns(rows, workers)


@contextmanager
def ended_at_last() -> Generator[list[Worker]]:
    """Gives a list, and ends the processes of all workers in it at the end of the block."""
    workers: list[Worker] = []
    try:
        yield workers
    finally:
        for worker in workers:
            worker.close()


def timed_in_turns(rows: dict[str, dict[str, Any]], workers: Sequence[Worker]) -> Iterator[Row]:
    """Times the steps of all ways in turns, and predicts them; yields their rows with both."""
    running = [worker for worker in workers if not worker.error]
    times: dict[str, list[float]] = {worker.way: [] for worker in running}
    begin = time.monotonic()
    for turn in range(_ROUNDS):
        if turn >= 3 and time.monotonic() - begin > _LONG_S:
            break
        for worker in running:
            times[worker.way] += [] if worker.error else worker.ask("seconds") or []
    predicted = _side_by_side("predicted", running)
    for worker in running:
        rows[worker.way] |= predicted[worker.way] | {"error": worker.error}
    for way, row in rows.items():
        yield {"way": way, **row, "step_s": statistics.median(times[way]) if times.get(way) else None}


def started(new: list[Worker], workers: list[Worker]) -> dict[str, dict[str, Any]]:
    """Compiles the steps of new workers, and measures their peaks by turns."""
    workers += new
    rows = _side_by_side("first", new)
    for worker in new:
        if "OutOfMemoryError" in worker.error:  # alone it may have room
            worker.error = ""
            rows[worker.way] = dict(worker.ask("first") or {})
    for worker in new:
        rows[worker.way] |= {"peak_bytes": None} | ({} if worker.error else worker.ask("peak") or {})
        rows[worker.way] |= {"limit_bytes": worker.limit, "error": worker.error}
    return rows


def _side_by_side(name: str, workers: Sequence[Worker]) -> dict[str, dict[str, Any]]:
    """Calls a method of `Step` that needs a core of its own, for as many workers at once as there are cores for."""
    rows: dict[str, dict[str, Any]] = {}
    at_once = max(1, (os.cpu_count() or 1) // 2)
    for start in range(0, len(workers), at_once):
        batch = workers[start : start + at_once]
        for worker in batch:
            worker.begin(name)
        for worker in batch:
            rows[worker.way] = dict(worker.end() or {})
    return rows


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says how ours compare with PyTorch's ways at the same peak, and how good the predictions are."""
    pairs = [pair for case in dict.fromkeys(row["case"] for row in rows) for pair in _pairs(rows, case)]
    lines: list[str] = []
    if pairs:
        for name, what in (("step", "step_s"), ("peak", "peak_bytes")):
            errors = {f"{own['case']}, {own['way']}": float(own[what] / rival[what] - 1) for own, rival in pairs}
            ordered = sorted(errors.items(), key=lambda error: error[1])
            (best, least), (worst, most) = ordered[0], ordered[-1]
            limit, over = (0.02, "more than 2 % above") if what == "step_s" else (0.0, "above")
            lines.append(
                f"{name} of ours against PyTorch's way at the same peak, {len(errors)} points: "
                f"{statistics.median(errors.values()):+.1%} in the median, best {least:+.1%} ({best}), worst "
                f"{most:+.1%} ({worst}); {over} PyTorch's: {sum(error > limit for error in errors.values())}"
            )
    ranks = {
        case: rank for case in dict.fromkeys(row["case"] for row in rows) if (rank := _rank(rows, case)) is not None
    }
    if ranks:
        told = "; ".join(f"{case} {rank:+.2f}" for case, rank in ranks.items())
        lines.append(f"rank correlation (Spearman) of modelled and measured steps: {told}")
    known = [row for row in rows if row.get("predicted_peak_bytes") and row["peak_bytes"]]
    if errors := [float(row["predicted_peak_bytes"] / row["peak_bytes"] - 1) for row in known]:
        lines.append(
            f"predicted peaks: {statistics.median(map(abs, errors)):.1%} off in the median, "
            f"{max(errors, key=abs):+.1%} at worst, of {len(errors)}"
        )
    norms = [norm for case in ranks for norm in _norms(rows, case)]
    if norms:
        lines.append(f"norms of gradients: at most {max(norms):.1e} from that of PyTorch's first way")
    lines += [f"{row['case']}, {row['way']}: {row['error']}" for row in rows if row["error"]]
    return [bullets(lines)]


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws measured peaks against overheads for the models on a GPU for which ours were measured."""
    cases = [case for case in dict.fromkeys(row["case"] for row in rows) if "(cuda)" in case and [*_pairs(rows, case)]]
    lines = (len(cases) + 1) // 2
    with chart(path, (10, 4 * lines), lines, 2) as panels:
        for axes, case in zip(panels.flat, cases, strict=False):
            own = [row for row in rows if row["case"] == case and row["step_s"]]
            (default,) = (row["step_s"] for row in own if row["way"] == "PyTorch's default")
            points = [(row["way"], row["peak_bytes"] / 1e9, 100 * (row["step_s"] / default - 1)) for row in own]
            ours = [point for way, *point in points if way.startswith(OURS)]
            beside_one_liners(axes, case.removesuffix(" (cuda)"), ours, points)
            axes.set_xlabel("measured peak, GB")


def _pairs(rows: Sequence[dict[str, Any]], case: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    own = {row["way"]: row for row in rows if row["case"] == case and row["step_s"]}
    for way, row in own.items():
        if way.startswith(OURS) and (rival := own.get(way.removeprefix(OURS))) is not None:
            yield row, rival


def _norms(rows: Sequence[dict[str, Any]], case: str) -> list[float]:
    first, *others = [row["gradient_norm"] for row in rows if row["case"] == case and row["step_s"]]
    return [abs(norm / first - 1) for norm in others]


def _rank(rows: Sequence[dict[str, Any]], case: str) -> float | None:
    own = [row for row in rows if row["case"] == case and row["step_s"]]
    if len(own) < 3:
        return None
    modelled, measured = (pd.Series([row[column] for row in own]) for column in ("modelled_s", "step_s"))
    return modelled.corr(measured, method="spearman")


TABLE = ResultTable(
    "experiments.bench.measured_steps",
    "Measured steps beside what PyTorch gives in one line",
    cases=lambda: CASES,
    key=lambda case: f"{case.name} ({case.device})",
    measure=measured,
    summary=summary,
    draw=draw,
)

if __name__ == "__main__":
    TABLE.command()
