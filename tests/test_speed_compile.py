"""The benchmark of compilation measures what it says: every model, both choices, each time. Nothing is timed here."""

from __future__ import annotations

import inspect
from unittest.mock import patch

import pytest
import torch
from depth import deep

from experiments.bench import speed_compile
from experiments.bench.speed_compile import COLD, MODELS, Race, compared, paired, race
from experiments.bench.speed_compile_case import WHO, compiled, first_choice, timed_choices
from experiments.bench.speed_total import in_turns
from experiments.bench.stack import at_depth, depths
from experiments.models.cases import CASES
from remat.pytorch.seam.torch_partitioner import torchs_choice


def test_every_model_of_the_zoo_races() -> None:
    assert set(CASES) < set(MODELS)
    assert set(COLD) <= set(CASES)


@pytest.mark.parametrize("name", ["pointwise chain", "graph break", "symbolic batch"])
@pytest.mark.parametrize("ours_first", [False, True])
def test_both_choices_run_once_on_every_joint_graph(name: str, ours_first: bool) -> None:
    calls = list[int]()

    def spy(joint_graph: torch.fx.Graph, node_info: object) -> list[torch.fx.Node]:
        calls.append(len(joint_graph.nodes))
        return torchs_choice(joint_graph, node_info)

    with patch.object(speed_compile, "torchs_choice", spy):
        result = race(CASES[name], ours_first=ours_first, codegen=False)
    assert result.graphs == len(calls) == (3 if name == "graph break" else 1)
    assert result.nodes == sum(calls)
    assert min(result.torch_s, result.remat_s, result.torch_cpu_s, result.remat_cpu_s) > 0


def test_ratios_are_between_medians() -> None:
    races = [Race(1, 9, 4.0, 2.0, 4.0, 1.0), Race(1, 9, 6.0, 3.0, 6.0, 2.0), Race(1, 9, 50.0, 3.0, 8.0, 2.0)]
    row = compared(races)
    assert (row["torch_s"], row["remat_s"], row["ratio"], row["cpu_ratio"]) == (6.0, 3.0, 2.0, 3.0)
    assert (row["torch_s_fastest"], row["torch_s_slowest"]) == (4.0, 50.0)


def test_pairs_are_compared_pair_by_pair() -> None:
    drifting = [(10.0, 9.0), (20.0, 18.0), (30.0, 31.0), (40.0, 37.0)]
    assert paired(drifting) == {"saved_cpu_s": 1.5, "pairs_faster": 3, "chance": 5 / 16}


def test_compilations_start_at_depths_spread_over_a_chunk_of_the_stack() -> None:
    assert depths(4) == [0, 34, 68, 102]
    above, *deeper = (at_depth(depth, lambda: len(inspect.stack(0))) for depth in depths(4))
    assert [frames - above for frames in deeper] == [34, 68, 102]


@deep
def test_whole_compilations_take_turns_and_are_told_apart() -> None:
    torchs, ours = in_turns(layers=1, pairs=2)
    assert (torchs["partitioner"], ours["partitioner"]) == WHO
    assert torchs["steps"] == ours["steps"] == 2
    assert min(torchs["choose_s"], ours["choose_s"]) > 0
    assert ours["cpu_ratio"] == torchs["cpu_s"] / ours["cpu_s"]
    assert 0 <= ours["pairs_faster"] <= 2


@pytest.mark.parametrize("who", WHO)
def test_each_partitioner_is_timed_where_it_chooses(who: str) -> None:
    torch.compiler.reset()
    seconds: list[float] = []
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    with timed_choices(seconds):
        compiled(who, model, codegen=False)(torch.randn(2, 4)).sum().backward()
    assert len(seconds) == 1
    torch.compiler.reset()
    assert first_choice(who, COLD[0])["choose_s"] > 0
