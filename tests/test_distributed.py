"""Under torch.distributed all ranks use one plan, and none waits for one that failed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import torch.distributed as dist
from depth import deep

import remat


def two_processes(*scenario: str) -> Any:
    """What `two_ranks.py`, run as two ranks, printed last: of one scenario, or of all that generate no code."""
    program = Path(__file__).with_name("two_ranks.py")
    with TemporaryDirectory() as folder, ExitStack() as ended:
        errors = [Path(folder) / f"errors of rank {rank}" for rank in range(2)]
        ranks: list[subprocess.Popen[str]] = []
        for rank, told in enumerate(errors):
            command = [sys.executable, program, f"{folder}/store", str(rank), *scenario]
            file = ended.enter_context(told.open("w"))
            ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True))
            ended.callback(ranks[-1].kill)  # it may wait for one that failed
        printed, _ = (rank.communicate(timeout=300)[0] for rank in ranks)
        assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(told.read_text()[-3000:] for told in errors)
    return json.loads(printed.splitlines()[-1])


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, Any]]:
    """Of each rank, what happened in each scenario, the quick ones of training among them."""
    return two_processes()


def saved(ranks: list[dict[str, Any]], scenario: str) -> list[int]:
    return [rank[scenario]["saved_bytes"] for rank in ranks]


def test_two_ranks_that_would_choose_differently_save_the_same(ranks: list[dict[str, Any]]) -> None:
    first, second = saved(ranks, "alone")
    assert len({first, second, *saved(ranks, "eager")}) == 3, "it shows whose plan runs, if any"
    assert saved(ranks, "together") == [first, first]
    # A rank whose own plan runs reports how that was found, and whether a budget is kept.
    assert [rank["together"]["chosen by"] for rank in ranks] == [["ortools"], ["another rank"]]


def test_a_rank_without_a_plan_takes_the_other_ones(ranks: list[dict[str, Any]]) -> None:
    alone = saved(ranks, "alone")
    for failed, other in ((0, 1), (1, 0)):
        scenario = f"rank {failed} fails"
        assert saved(ranks, scenario) == [alone[other]] * 2
        note = f"this rank found no plan and takes that of rank {other}: rank {failed} gave up"
        assert note in ranks[failed][scenario]["warnings"]
        assert ranks[other][scenario]["warnings"] == []


def test_if_no_rank_has_a_plan_all_raise_or_all_fall_back(ranks: list[dict[str, Any]]) -> None:
    for rank, seen in enumerate(ranks):
        assert f"rank {rank} gave up" in seen["both fail"]["error"]
        note = f"remat falls back to PyTorch's partitioner: rank {rank} gave up"
        assert note in seen["both fail and fall back"]["warnings"]
    first, second = saved(ranks, "both fail and fall back")
    assert first == second


def test_a_rank_that_cannot_read_its_graph_raises_alone(ranks: list[dict[str, Any]]) -> None:
    assert "rank 1 cannot read it" in ranks[1]["rank 1 cannot read"]["error"]
    assert ranks[0]["rank 1 cannot read"]["saved_bytes"] == saved(ranks, "alone")[0]


def test_an_exchange_leaves_pythons_lock_to_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the Python dispatcher on, as AOTAutograd has it, a collective would hold that lock while it waits."""
    was_on: list[bool] = []

    def exchange(offers: list[Any], mine: Any) -> None:
        was_on.append(torch._C._dispatch_tls_is_dispatch_key_included(torch._C.DispatchKey.PythonDispatcher))
        offers[:] = [mine]

    monkeypatch.setattr("remat.pytorch.run.ranks.several_ranks", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 1)
    monkeypatch.setattr(dist, "all_gather_object", exchange)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    remat.compile(model, codegen=False)(torch.randn(2, 4)).sum().backward()
    assert was_on == [False]


def assert_trained_alike(ranks: list[dict[str, Any]], name: str, least_graphs: int) -> None:
    first, second = (rank[name] for rank in ranks)
    graphs = list(zip(first["plans"], second["plans"], strict=True))
    assert len(graphs) >= least_graphs
    assert all(used_here == used_there for (_, used_here), (_, used_there) in graphs)
    assert any(mine != used for _, (mine, used) in graphs), "rank 1 would have chosen differently"
    assert max(first["error"], second["error"]) < 1e-5


@pytest.mark.parametrize(("name", "least_graphs"), [("DDP in buckets", 3), ("FSDP2", 2)])
def test_data_parallel_training_equals_the_uncompiled_run(
    name: str, least_graphs: int, ranks: list[dict[str, Any]]
) -> None:
    """A graph a bucket, as DDP splits it; a graph a block, as FSDP2 shards it."""
    assert_trained_alike(ranks, name, least_graphs)


def test_stages_of_a_pipeline_keep_one_budget_for_all_their_microbatches(ranks: list[dict[str, Any]]) -> None:
    """Each is planned once, while the other rank waits for its results; gradients are those of the whole model."""
    for rank, seen in enumerate(of["pipeline"] for of in ranks):
        assert seen["planned"] == 1
        assert seen["warnings"] == []
        assert seen["gradients"] == 8
        assert seen["error"] < 1e-5
        assert seen["budget"] / 2 < seen["most"] <= seen["budget"], rank
    first, second = (of["pipeline"]["most"] for of in ranks)
    assert first / 2 < second, "the first rank holds two microbatches, and saves less of each"


@deep
def test_the_page_about_pipelines_trains_as_typed(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs/howto/pipeline.md").read_text()
    stages, _ = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (train,) = re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "stages.py").write_text(stages)
    (tmp_path / "train.py").write_text(train)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600)
    assert told.returncode == 0, told.stderr[-3000:]
    assert told.stdout.count("budget: kept") == 2
    assert "in_flight=2); predicted" in told.stdout


@deep
def test_data_parallel_training_through_inductor_equals_the_uncompiled_run() -> None:
    """The whole model in one graph, and code for it."""
    assert_trained_alike(two_processes("DDP"), "DDP", 1)
