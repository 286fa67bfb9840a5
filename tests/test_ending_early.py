"""A long search ends at its time limit, and at Ctrl-C, with the best so far, and says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import answer, run
from torch import nn

import remat
from remat import Graph, InvalidOption
from remat.facts.corpus import Corpus
from remat.improve.progress import ending_at_ctrl_c, is_over

GRAPH = Corpus.open().graph("small-gpt-fused-attention")
TINY = Corpus.open().graph("qehvi-4")


def interrupting(after: int, looked_at: list[int]) -> Callable[[int, tuple[int, ...]], None]:
    """A `progress` that presses Ctrl-C once a search has looked at some plans, and writes down how far it got."""

    def progress(count: int, score: tuple[int, ...]) -> None:
        looked_at.append(count)
        if count == after:
            os.kill(os.getpid(), signal.SIGINT)

    return progress


def refined(graph: Graph, **options: Any) -> Any:
    plan = remat.choose(graph).plan
    assert plan is not None
    return remat.refine(graph, plan, **options)


def traffic_frontier(graph: Graph, **options: Any) -> Any:
    return remat.traffic_frontier(graph, 4, **options)


@pytest.mark.parametrize("search", [refined, traffic_frontier])
def test_ctrl_c_ends_a_search_with_the_best_so_far(search: Callable[..., Any]) -> None:
    looked_at: list[int] = []
    with ending_at_ctrl_c() as ended:
        found = search(GRAPH, progress=interrupting(5, looked_at))
        assert ended()
    assert looked_at == [1, 2, 3, 4, 5]
    assert found.termination.limit == "interrupt"
    assert "best so far" in str(found.termination.detail)
    assert not is_over()


@pytest.mark.parametrize("search", [refined, traffic_frontier])
def test_a_time_limit_ends_a_search_with_the_best_so_far(search: Callable[..., Any]) -> None:
    found = search(GRAPH, time_limit_s=1e-9)
    assert found.termination.limit == "time"
    assert "best so far" in found.termination.detail
    whole = search(TINY, time_limit_s=3600)
    assert whole.termination.limit is None
    with pytest.raises(InvalidOption, match="time_limit_s must be a positive number"):
        search(TINY, time_limit_s=-1)


def test_points_so_far_are_a_frontier() -> None:
    first = remat.traffic_frontier(GRAPH, 4, time_limit_s=1e-9)
    (point,) = first.points
    assert point.traffic_bytes == remat.predict_traffic(GRAPH, point.plan).bytes


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

    with pytest.warns(UserWarning, match="the time limit stopped the search: the best so far: 1 fits"):
        assert remat.largest_batch(step, "100KB", time_limit_s=1e-9) == 1
    assert tried == [1]

    def interrupted(batch: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
        if batch == 8:
            os.kill(os.getpid(), signal.SIGINT)
        return step(batch)

    with ending_at_ctrl_c(), pytest.warns(UserWarning, match=r"Ctrl-C stopped the search: the best so far: 8 fits"):
        assert remat.largest_batch(interrupted, "100KB") == 8


LINES = {
    "refine": ["GRAPH", "--objective", "no-worse", "--time-limit", "0.001"],
    "traffic-frontier": ["GRAPH", "--time-limit", "0.001"],
}


@pytest.mark.parametrize("command", LINES)
def test_a_command_says_that_it_prints_the_best_so_far(command: str, tmp_path: Path) -> None:
    GRAPH.save(tmp_path / "graph.json")
    line = [str(tmp_path / "graph.json") if word == "GRAPH" else word for word in LINES[command]]
    assert "the time limit stopped the search: the best so far" in run(command, *line).stdout
    assert answer(command, *line)["termination"]["limit"] == "time"


@pytest.mark.parametrize(
    "command",
    ["solve", "compare", "frontier", "traffic-frontier", "refine", "largest-batch"],
)
def test_what_may_take_long_has_a_time_limit(command: str) -> None:
    assert "--time-limit" in run(command, "--help").stdout


SCRIPT = """
import os, signal, sys
import remat.improve.candidates as pool
whole = pool.PlanPool.add_mixtures
def pressed(self):
    os.kill(os.getpid(), signal.SIGINT)
    whole(self)
pool.PlanPool.add_mixtures = pressed
from remat.cli import main
sys.argv = ["remat", "traffic-frontier", sys.argv[1], "--json"]
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
