"""A long search ends at its time limit, and at Ctrl-C, with the best so far, and says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import answer, run
from examples import chain, cosines
from torch import nn

import remat
from costmodels import MemoryBudget
from remat import Corpus, Graph, InvalidOption, TerminationReason
from remat.improve.one_liners import one_liners
from remat.improve.progress import (
    OutOfTime,
    count_prediction,
    ending_at_ctrl_c,
    ending_within,
    is_over,
    predicting_at_most,
    predictions_left,
)
from remat.plugin import Termination
from remat.predict.buffers import StepMemory, memory_of
from remat.views.report_page import Page
from solvers.cpsat import CPSAT
from solvers.cpsat_backend import run_search

GRAPH = Corpus.open().graph("small-gpt-fused-attention")
TINY = Corpus.open().graph("qehvi-4")
SMALLER = Corpus.open().graph("small-layernorm-gelu-mlp")


def interrupting(after: int, looked_at: list[int]) -> Callable[[int, tuple[int, ...]], None]:
    """A `progress` that presses Ctrl-C once a search has looked at some plans, and writes down how far it got."""

    def progress(count: int, score: tuple[int, ...]) -> None:
        looked_at.append(count)
        if count == after:
            os.kill(os.getpid(), signal.SIGINT)

    return progress


def test_ctrl_c_ends_a_search_with_the_best_so_far() -> None:
    looked_at: list[int] = []
    with ending_at_ctrl_c() as ended:
        found = remat.step_frontier(GRAPH, 4, device="h100", progress=interrupting(40, looked_at))
        assert ended()
    assert looked_at == [*range(1, 41)]
    assert found.termination.limit == "interrupt"
    assert "best so far" in str(found.termination.detail)
    assert not is_over()


def test_a_time_limit_ends_a_search_with_the_best_so_far() -> None:
    found = remat.step_frontier(GRAPH, 4, device="h100", time_limit_s=1e-9)
    assert found.termination.limit == "time"
    assert "best so far" in found.termination.detail
    (point,) = found.points
    assert point.peak_bytes == remat.timeline(GRAPH, point.plan, device="h100").peak_bytes
    with pytest.raises(InvalidOption, match="time_limit_s must be a positive number"):
        remat.step_frontier(GRAPH, time_limit_s=-1)


def test_a_search_that_ends_at_once_still_has_a_plan_within_a_limit_that_a_one_liner_keeps() -> None:
    limit = min(memory_of(GRAPH).peak(saved) for _, saved in one_liners(GRAPH))
    found = remat.choose(GRAPH, MemoryBudget(limit, of="peak"), time_limit_s=1e-9)
    assert remat.timeline(GRAPH, found.plan).peak_bytes <= limit
    assert found.termination.limit == "time"


def test_the_second_ctrl_c_leaves_at_once() -> None:
    def pressed_twice() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    with ending_at_ctrl_c() as ended:
        with pytest.raises(KeyboardInterrupt):
            pressed_twice()
        assert ended()
    before = signal.getsignal(signal.SIGINT)
    assert before is signal.default_int_handler


def test_a_frontier_and_a_comparison_keep_what_is_done() -> None:
    curve, done = remat.frontier(TINY), list[int]()
    with ending_at_ctrl_c():
        stopped = curve.refine(8, progress=interrupting(2, done))
    assert len(stopped.points) == len(curve.points) + 2
    assert len(curve.refine(8).points) == len(curve.points) + 8
    with ending_at_ctrl_c():
        frame = remat.compare([TINY, GRAPH], solvers=["ortools", "scipy"], progress=interrupting(1, []))
    assert len(frame) == 1


def test_the_largest_batch_so_far_comes_with_a_warning() -> None:
    tried: list[int] = []

    def step(batch: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        tried.append(batch)
        return nn.Linear(4, 4), (torch.ones(batch, 4),)

    with pytest.warns(UserWarning, match="the time limit stopped the search: the best so far: a batch of 1 fits"):
        assert remat.largest_batch(step, "100KB", time_limit_s=1e-9) == 1
    assert tried == [1]

    def interrupted(batch: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        if batch == 8:
            os.kill(os.getpid(), signal.SIGINT)
        return step(batch)

    with (
        ending_at_ctrl_c(),
        pytest.warns(UserWarning, match=r"Ctrl-C stopped the search: the best so far: a batch of 8 fits"),
    ):
        assert remat.largest_batch(interrupted, "100KB") == 8


def test_a_command_says_that_it_prints_the_best_so_far(tmp_path: Path) -> None:
    GRAPH.save(tmp_path / "graph.json")
    line = "frontier", tmp_path / "graph.json", "--against", "step", "--time-limit", "0.001"
    assert "the time limit stopped the search: the best so far" in run(*line).stdout
    assert answer(*line)["termination"]["limit"] == "time"


@pytest.mark.parametrize("command", ["solve", "compare", "frontier", "forecast"])
def test_what_may_take_long_has_a_time_limit(command: str) -> None:
    assert "--time-limit" in run(command, "--help").stdout


@pytest.mark.parametrize("graph", [SMALLER, chain(60)], ids=["knows its calls", "does not"])
def test_a_time_limit_is_one_for_the_whole_search_for_a_peak(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer plans are looked at, and the best of them is taken."""
    looked_at: list[int] = []
    some: list[int] = []
    half, seconds = MemoryBudget(0.5, of="peak", estimator="flops"), count()
    whole = remat.choose(graph, half, progress=lambda number, _: looked_at.append(number))
    assert whole.termination.limit is None
    monkeypatch.setattr("remat.improve.progress.time.monotonic", lambda: float(next(seconds)))
    found = remat.choose(graph, half, time_limit_s=8, progress=lambda number, _: some.append(number))
    assert 2 * len(some) < len(looked_at)
    assert found.objective >= whole.objective
    assert (found.termination.limit, found.is_proven) == ("time", False)


def test_ctrl_c_ends_a_search_of_cp_sat() -> None:
    """OR-Tools would otherwise end this one search itself, and Python would hear of it when all is done, or never."""
    problem = MemoryBudget(0.3).pose(Corpus.open().graph("gpt2-small"))

    def run_pressed(backend: Any, program: Any) -> int:
        def press(_: str) -> None:
            if not pressed:
                pressed.append(1)
                os.kill(os.getpid(), signal.SIGINT)

        backend.log_callback = press
        backend.parameters.log_search_progress, backend.parameters.log_to_stdout = True, False
        return run_search(backend, program)

    for ends in (True, False):
        pressed: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("solvers.cpsat.run_search", run_pressed)
            if ends:
                with ending_at_ctrl_c():
                    found = CPSAT().search(problem)
                assert found.termination.limit == "interrupt"
            else:
                with pytest.raises(KeyboardInterrupt):
                    CPSAT().search(problem)
        assert pressed


def test_a_comparison_keeps_no_row_that_ctrl_c_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(problem: Any, *_: Any, **__: Any) -> Any:
        if len(problem) < len(found.plan.saved):  # the one that loads the solver
            return None
        os.kill(os.getpid(), signal.SIGINT)
        while not is_over():
            time.sleep(0.001)
        return replace(found, termination=Termination(TerminationReason.FEASIBLE, 0, limit="interrupt"))

    found = remat.solve(MemoryBudget(1.0).pose(TINY), "lagrangian")
    file = tmp_path / "rows.json"
    with monkeypatch.context() as patch, ending_at_ctrl_c():
        patch.setattr("remat.views.compare.solve", interrupted)
        assert len(remat.compare(TINY, "memory-budget:budget=1.0", ["lagrangian"], path=file)) == 1
    assert json.loads(file.read_text())["rows"] == {}
    again = remat.compare(TINY, "memory-budget:budget=1.0", ["lagrangian"], path=file)
    assert again["objective"].tolist() == [found.objective]


@pytest.mark.parametrize("program", ["remat", "other"])
def test_ctrl_c_while_the_command_is_imported_prints_one_line(program: str, tmp_path: Path) -> None:
    """Another program that imports `remat` has the error that Python raises."""
    script = """
import os, signal, sys
class Pressing:
    def find_spec(name, path, target=None):
        if name == "remat.proof.solve":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Pressing)
from remat.cli import main
"""
    (tmp_path / program).write_text(script)
    environment = os.environ | {"PYTHONPATH": str(Path(remat.__file__).parents[1])}
    command = [sys.executable, str(tmp_path / program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert ("KeyboardInterrupt" in done.stderr) == (program == "other")
    if program == "remat":
        assert (done.returncode, done.stderr) == (130, "stopped by Ctrl-C\n")


def test_a_page_ends_its_frontiers_within_a_time_limit(tmp_path: Path) -> None:
    GRAPH.save(tmp_path / "graph.json")
    counts = []
    for limit in (1e-9, None):
        (section,) = Page.of([tmp_path / "graph.json"], refine=4, time_limit_s=limit).sections
        counts.append(section.tables[0][1].count("<tr"))
    assert counts == [counts[1] - 4, counts[1]]


def test_a_frontier_with_a_host_has_a_point_however_short_the_time_is() -> None:
    with ending_within(1e-9):
        assert len(remat.frontier(cosines(), estimator="roofline:device=h100", offload="h100").points) == 1


def test_a_forecast_ends_its_searches_within_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 1)), torch.ones(4, 8)
    left: list[tuple[str, bool]] = []
    whole = remat.choose

    def noted(graph: Graph, model: Any, **options: Any) -> Any:
        left.append((model.name, options["time_limit_s"] is None))
        return whole(graph, model, **options)

    monkeypatch.setattr("remat.pytorch.ahead.forecasting.choose", noted)
    models = [MemoryBudget(0.5, of="peak"), MemoryBudget(1.0)]
    assert len(remat.forecast(model, x, cost_models=models, time_limit_s=3600).plans) == 4
    assert left == [("byte-traffic", True), ("memory-budget", False), ("memory-budget", False)]
    with pytest.raises(InvalidOption, match="time_limit_s must be a positive number"):
        remat.forecast(model, x, time_limit_s=0)


def test_a_fraction_of_a_peak_that_no_search_could_keep_is_no_proven_optimum() -> None:
    """The smallest peak so far takes the place of the fraction; that a plan is the best of that peak proves nothing."""
    found = remat.choose(GRAPH, MemoryBudget(0.01, of="peak"), time_limit_s=1e-9)
    assert found.objective == found.bound
    assert (found.termination.reason, found.termination.limit) == (TerminationReason.FEASIBLE, "time")
    assert not found.is_proven


SCRIPT = """
import os, signal, sys
from remat.improve.step_search import StepPlans
whole = StepPlans._try_low_plans
def pressed(self):
    whole(self)
    os.kill(os.getpid(), signal.SIGINT)
StepPlans._try_low_plans = pressed
from remat.cli import main
sys.argv = ["remat", "frontier", sys.argv[1], "--against", "step", "--budgets", "2", "--json"]
main()
"""


def test_ctrl_c_in_a_shell_prints_the_best_so_far_and_ends_with_130(tmp_path: Path) -> None:
    GRAPH.save(tmp_path / "graph.json")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "graph.json")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 130, done.stderr
    assert "stopped by Ctrl-C: what is printed, if anything, is the best so far" in done.stderr
    assert json.loads(done.stdout)["termination"]["limit"] == "interrupt"


def test_without_a_time_limit_a_search_makes_a_number_of_predictions_that_depends_on_the_graph_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("remat.improve.step_search._VALUES", 0)
    monkeypatch.setattr("remat.improve.step_search._PREDICTIONS", 8)
    limit = int(0.8 * memory_of(SMALLER).peak(next(saved for _, saved in one_liners(SMALLER))))
    predicted = list[int]()
    for options in ({}, {}, {"time_limit_s": 300}):
        new_graph = replace(SMALLER, meta={**SMALLER.meta})
        masks = set[bytes]()
        kernels = StepMemory.kernels_and_timeline

        def counted(step: StepMemory, saved: Any, masks: set[bytes] = masks, of: Any = kernels) -> Any:
            masks.add(saved.tobytes())
            return of(step, saved)

        with monkeypatch.context() as patch:
            patch.setattr(StepMemory, "kernels_and_timeline", counted)
            found = remat.choose(new_graph, MemoryBudget(limit, of="peak"), **options)
        assert not found.termination.limit
        predicted.append(len(masks))
    assert predicted[0] == predicted[1] <= 8 + len([*one_liners(SMALLER)])
    assert predicted[2] > predicted[0]


def test_predictions_are_counted_unless_a_time_limit_counts() -> None:
    with predicting_at_most(100):
        count_prediction(60)
        assert predictions_left(20) == 2
        with pytest.raises(OutOfTime):
            count_prediction(60)
        assert not is_over(), "this is no time limit"
    assert predictions_left(20) == float("inf")
    with ending_within(100), predicting_at_most(0):
        count_prediction(60)
