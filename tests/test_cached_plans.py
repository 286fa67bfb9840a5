"""What was planned is reported where torch has the compiled graphs in its cache on disk, too."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from depth import deep
from examples import chain
from torch import Tensor, fx, nn
from torch.utils.checkpoint import checkpoint

import remat
from costmodels import MemoryBudget
from remat import Plan, choose
from remat.pytorch import Partitioner
from remat.pytorch.read.places import Place
from remat.pytorch.run.cached_plans import PlanCollector, collecting_plans, store_plans
from remat.pytorch.run.plan_log import Log
from remat.pytorch.run.planned_graph import ChosenPlan, PlannedGraph
from remat.pytorch.seam.cache_notes import keep_note
from remat.pytorch.seam.torch_names import torch_compile


def planned() -> PlannedGraph:
    graph = chain(3)
    rest = ("",) * (len(graph) - 4)
    graph = replace(graph, modules=("", "a", "b", "b", *rest), sources=("", "m.py:1", "m.py:2", "m.py:3", *rest))
    solution = choose(graph)
    return PlannedGraph(graph, ChosenPlan.of(solution), "byte-traffic", 0.5)


BEFORE: list[Place] = [("a", "m.py:1"), ("b", "m.py:2"), ("b", "m.py:3")]


class Cached:
    """What `compile_fx` returns for a graph from the cache: it says which entry that came from."""

    def __init__(self, backward: fx.GraphModule | None) -> None:
        self.serialized_bw_module = self
        self.args: tuple[Any, ...] = ({} if backward is None else vars(backward),)

    def __call__(self) -> None: ...

    def serialize(self) -> Cached:
        return self


def found(before: list[Place], after: list[Place]) -> PlannedGraph:
    backward = fx.symbolic_trace(nn.Identity())
    PlanCollector(before, [planned()]).store_with(backward)
    (again,) = PlanCollector(after).load_from(Cached(backward))
    return again


@pytest.mark.parametrize("note", [b"", b"no note of ours", zlib.compress(pickle.dumps(1))])
def test_a_note_that_cannot_be_read_is_no_note(note: bytes) -> None:
    backward = fx.symbolic_trace(nn.Identity())
    keep_note(backward, note)
    assert PlanCollector(BEFORE).load_from(Cached(backward)) == []


def test_a_note_of_another_graph_is_no_note() -> None:
    backward = fx.symbolic_trace(nn.Identity())
    PlanCollector(BEFORE, [planned()]).store_with(backward)
    assert PlanCollector(BEFORE[1:]).load_from(Cached(backward)) == []


def test_what_cannot_be_pickled_is_not_kept() -> None:
    class Mine(Plan):
        """A class that no other process knows."""

    mine = planned()
    own = Mine(mine.plan.saved, mine.plan.recomputed)
    backward = fx.symbolic_trace(nn.Identity())
    PlanCollector(BEFORE, [replace(mine, chosen=ChosenPlan(own, "me"))]).store_with(backward)
    assert PlanCollector(BEFORE).load_from(Cached(backward)) == []


def test_values_are_put_where_the_model_has_them_now() -> None:
    moved = found(BEFORE, [("a", "m.py:11"), ("c", "m.py:12"), ("c", "m.py:13")]).graph
    assert (moved.modules[:4], moved.sources[:4]) == (("", "a", "c", "c"), ("", "m.py:11", "m.py:12", "m.py:13"))
    twice: list[Place] = [*BEFORE, ("a", "m.py:1")]
    split = found(twice, [*BEFORE, ("a", "m.py:4")]).graph
    assert split.sources[:4] == ("", "", "m.py:2", "m.py:3"), "one line has become two"


def test_nothing_is_found_with_what_was_compiled_anew_or_needs_no_gradients() -> None:
    for compiled in (torch.sin, Cached(None)):
        assert PlanCollector(BEFORE).load_from(compiled) == []


def test_plans_of_regions_are_kept_with_the_graph_around_them() -> None:
    backward = fx.symbolic_trace(nn.Identity())
    with collecting_plans(backward) as graph:
        store_plans([planned()], None)
        store_plans([planned()], backward)
    assert len(PlanCollector(graph.places).load_from(Cached(backward))) == 2


def test_what_was_planned_does_not_change_what_torch_looks_for() -> None:
    """torch hashes a partitioner as it is pickled, and looks for the second graph when the first one is noted."""
    partitioner = Partitioner.of(MemoryBudget(0.5))
    before = pickle.dumps(partitioner)
    partitioner.log.add(planned())
    assert pickle.dumps(partitioner) == before
    assert copy.deepcopy(partitioner).log.report().graphs == ()
    assert len(partitioner.log.report().graphs) == 1


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's cache, in which no run has put anything yet."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


def products() -> tuple[Tensor, Tensor]:
    """Two factors: of products alone, no kernel has to be compiled."""
    return torch.ones(8, 4, requires_grad=True), torch.ones(4, 4, requires_grad=True)


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize(
    ("compiled", "called"),
    [
        (remat.compile, partial(checkpoint, use_reentrant=False)),
        (partial(torch_compile, backend="remat"), lambda function, x: function(x)),
    ],
)
def test_a_step_from_torchs_cache_reports_what_was_planned(compiled: Any, called: Any) -> None:
    x, weight = products()

    def region(x: Tensor) -> Tensor:
        return x @ weight @ weight

    def model(x: Tensor) -> Tensor:
        return called(region, x)

    reports: list[remat.pytorch.Report] = []
    for _ in range(2):
        torch.compiler.reset()
        step = compiled(model)
        step(x).sum().backward()
        reports.append(step.report() if hasattr(step, "report") else remat.last_report())
    first, second = (report.graphs[-1] for report in reports)
    assert not first.from_cache
    assert second.from_cache
    assert first.row | {"from_cache": True} == second.row
    assert first.graph == second.graph
    assert (first.graph.modules, first.graph.sources) == (second.graph.modules, second.graph.sources)
    assert all(second.graph.places)
    assert "cached: planned in an earlier run" in str(reports[1])
    assert max(map(len, str(reports[1]).splitlines())) <= 80


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("settings", ["byte-traffic", "memory-budget:budget=0.5"])
def test_a_step_of_somebody_elses_backend_from_torchs_cache_is_reported(settings: str) -> None:
    x, weight = products()

    def model(x: Tensor) -> Tensor:
        return x @ weight @ weight

    found: list[PlannedGraph] = []
    for _ in range(2):
        torch.compiler.reset()
        with patch("remat.pytorch.run.plan_log._recent", Log(64)):  # as in a process of its own
            step = torch_compile(model, options={"custom_partitioner_fn": Partitioner.of(settings)})
            step(x).sum().backward()
            found += remat.last_report().graphs
    assert [planned.from_cache for planned in found] == [False, True]
    first, second = found
    assert first.row | {"from_cache": True} == second.row
    assert first.plan == second.plan
    assert not any(second.graph.places), "the lines may have moved"


SCRIPT = """
import sys, torch
from torch import nn
import remat

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(8, 24, bias=False), nn.Linear(24, 8, bias=False)

    def forward(self, x):
        # Products alone: no kernel has to be compiled.
        return self.fc2(self.fc1(x))

step = torch.compile(Model(), backend="remat") if sys.argv[1] == "backend" else remat.compile(Model())
for size in (4, 6):
    step(torch.ones(size, 8)).sum().backward()
report = remat.last_report()
print(report.as_frame().drop(columns="from_cache").to_csv(), report.saved_lines)
print([planned.from_cache for planned in report.graphs])
"""


@deep
def test_a_second_process_reports_what_the_first_one_planned(tmp_path: Path) -> None:
    """Also for another size; and lines are those of the file as it is now."""
    (tmp_path / "train.py").write_text(SCRIPT)
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "REMAT_LOG": "plans"}
    said: list[str] = []
    logged: list[list[str]] = []
    for how in ("compile", "compile", "backend"):
        command = [sys.executable, str(tmp_path / "train.py"), how]
        ran = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        said.append(ran.stdout)
        logged.append([line for line in ran.stderr.splitlines() if line.startswith("remat: a graph")])
    assert len(logged[0]) == 2
    assert not any("from torch's cache" in line for line in logged[0])
    assert all("from torch's cache" in line for again in logged[1:] for line in again)
    assert said[0].replace("[False, False]", "[True, True]") == said[1] == said[2]
    (tmp_path / "train.py").write_text(SCRIPT.replace("import remat\n", "import remat\n# a comment\n"))
    ran = subprocess.run([*command], capture_output=True, text=True, check=True, env=environment)
    assert "train.py:13" in said[1]
    assert "train.py:14" in ran.stdout
    assert "False" not in ran.stdout.splitlines()[-1]
