"""A budget for calls in flight counts what all of them hold, and a pipeline is planned in the orders of torch."""

from __future__ import annotations

import itertools
import random
import warnings
from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from commands import answer, run
from depth import deep_except
from torch import Tensor, nn
from torch.distributed.pipelining import schedules

import remat
from costmodels import MemoryBudget, RecomputeTime
from experiments.accuracy.skipped_kernels import no_cpu_kernels
from remat import Choice, Graph, GraphBuilder, InvalidOption, Plan
from remat.predict.in_flight import accumulated_bytes, argument_bytes, peak_in_flight
from remat.predict.memory import simulate
from remat.predict.pipeline_schedule import PipelineSchedule
from remat.problem.feasibility import forced_values
from remat.pytorch.measure.saved import peak_bytes, saved_activations
from remat.pytorch.run import shared_budget

WIDTH, ROWS = 32, 256
GRADIENT = torch.ones(ROWS, WIDTH)
"""Of a result: the argument of a backward pass, which no peak counts."""


class Block(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)).sin())


def stage(blocks: int = 2) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(blocks)))


def calls_of_one_step(seed: int, calls: int) -> Graph:
    """All forward passes, one call after the other, and then all backward passes; each result is one of its call."""
    g, read = GraphBuilder(), list[list[str]]()
    for call in range(calls):
        dice = random.Random(seed)
        layers, kept = [g.input(f"x{call}", bytes=10)], list[str]()
        for i in range(7):
            branch = [dice.choice(layers[-4:])] if dice.random() < 0.5 else []
            slow, size, flops = dice.random() < 0.3, dice.randint(1, 100), dice.randint(1, 1000)
            name = f"f{i}_{call}"
            layers.append(g.op("mm", layers[-1], *branch, name=name, bytes=size, flops=flops, compute_bound=slow))
            if dice.random() < 0.7:
                kept.append(layers[-1])
        g.output(layers[-1])
        read.append(kept)
    for call in range(calls):
        dice = random.Random(seed)
        d = g.tangent(f"d{call}", bytes=5)
        for i, value in enumerate(reversed(read[call])):
            d = g.op("mm", d, value, name=f"b{i}_{call}", bytes=dice.randint(1, 100), compute_bound=True)
        g.gradient(g.op("mm", d, name=f"g_{call}", bytes=0, compute_bound=True))
    return g.build()


@pytest.mark.parametrize("seed", deep_except([3], range(4)))
@pytest.mark.parametrize("calls", [2, 3])
def test_a_peak_with_calls_in_flight_is_that_of_so_many_calls_in_one_graph(calls: int, seed: int) -> None:
    """Of every plan; and plans for limits keep them, with bounds that hold."""
    one, many = calls_of_one_step(seed, 1), calls_of_one_step(seed, calls)
    problem = RecomputeTime("flops").pose(one)
    free = np.flatnonzero(~problem.cannot_save.mask & ~problem.cannot_recompute.mask)
    found: dict[bytes, tuple[int, int]] = {}
    for bits in itertools.product([False, True], repeat=len(free)):
        saved = forced_values(problem).not_recomputable.copy()
        saved[free] |= bits
        choice = Choice.from_saved(problem, saved)
        plan = choice.plan(problem)
        saved_in_all, recomputed_in_all = (
            tuple(f"{name[:-1]}{call}" for call in range(calls) for name in names)
            for names in (plan.saved, plan.recomputed)
        )
        peak = simulate(many, Plan(saved_in_all, recomputed_in_all)).peak_bytes
        assert peak == peak_in_flight(one, simulate(one, plan), calls)
        found[choice.key] = peak, choice.cost(problem)
    peaks = sorted({peak for peak, _ in found.values()})
    for limit in peaks[len(peaks) // 2 :: 7]:
        budget = MemoryBudget(f"{limit} B", of="peak", estimator="flops", in_flight=calls)
        solution = remat.choose(one, budget)
        assert solution.plan is not None
        peak, cost = found[Choice.from_plan(problem, solution.plan).key]
        assert peak <= limit
        assert cost == solution.objective
        least = min(cost for peak, cost in found.values() if peak <= limit)
        assert solution.bound is not None
        assert solution.bound <= least <= cost


def test_gradients_of_parameters_count_once_and_arguments_with_each_call() -> None:
    g = GraphBuilder()
    w, x = g.input("w", bytes=7, parameter=True), g.input("x", bytes=50)
    y = g.op("mm", w, x, name="y", bytes=100, compute_bound=True)
    g.output(g.op("mm", y, name="out", bytes=20, compute_bound=True))
    d = g.tangent("d", bytes=20)
    g.gradient(g.op("mm", d, y, name="dw", bytes=7, compute_bound=True))
    g.gradient(g.op("mm", d, y, name="dx", bytes=50, compute_bound=True))
    graph = g.build()
    line = simulate(graph, Plan(("y",), ()))
    assert (accumulated_bytes(graph), argument_bytes(graph)) == (7, 50)
    assert [peak_in_flight(graph, line, calls) for calls in (1, 3)] == [177, 177 + 2 * (100 + 20) + 7]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "two"])
def test_the_number_of_calls_in_flight_is_checked(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match=r"MemoryBudget.in_flight must be a whole number of at least 1, got"):
        MemoryBudget(in_flight=wrong)


def test_a_size_is_for_all_calls_and_a_share_for_each() -> None:
    graph = remat.capture(stage(), torch.randn(ROWS, WIDTH))
    size = MemoryBudget(0.5).pose(graph).budget_bytes
    assert size is not None
    assert MemoryBudget(3 * size + 2, in_flight=3).pose(graph).budget_bytes == size
    assert MemoryBudget(0.5, in_flight=3).pose(graph).budget_bytes == size
    regions = {"0": 3 * size, "1": "50%"}
    one, three = (MemoryBudget(1.0, regions=regions, in_flight=calls).pose(graph) for calls in (1, 3))
    assert [row.bytes for row in three.rows] == [one.rows[0].bytes // 3, one.rows[1].bytes]
    assert (MemoryBudget(2**20) + MemoryBudget(2**20, in_flight=4)).calls_in_flight == 4


def train(step: Any, inputs: Sequence[Tensor], in_flight: int) -> None:
    """Runs the microbatches as a stage of 1F1B does: the oldest one ends first."""
    alive = deque[Tensor]()
    for x in inputs:
        alive.append(step(x))
        if len(alive) == in_flight:
            one = alive.popleft()
            one.backward(GRADIENT)
            del one
    while alive:
        one = alive.popleft()
        one.backward(GRADIENT)
        del one


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of values of each graph that was planned."""
    planned, search = list[int](), shared_budget.search

    def watched(graph: Graph, *args: Any, **kwargs: Any) -> Any:
        planned.append(len(graph))
        return search(graph, *args, **kwargs)

    monkeypatch.setattr(shared_budget, "search", watched)
    return planned


def test_calls_in_flight_keep_a_budget_of_saved_memory_and_are_planned_once(searched: list[int]) -> None:
    model, inputs = stage(), [torch.randn(ROWS, WIDTH) for _ in range(6)]
    budget = 500_000
    step = remat.compile(model, cost_model=MemoryBudget(budget, in_flight=3), codegen=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(3):
            train(step, inputs, 3)
    assert len(searched) == 1
    kept = saved_activations(step, model, inputs[0])[1].bytes
    assert budget / 6 < kept <= budget / 3
    assert "budget: kept" in str(step.report())
    with pytest.warns(UserWarning, match="the budget of 500000 bytes .* is exceeded in this step: 4 calls are alive"):
        train(step, inputs, 4)


def test_calls_in_flight_keep_a_limit_of_the_peak(searched: list[int]) -> None:
    """With gradients that earlier microbatches left, as torch's allocator counts it."""
    model, inputs = stage(), [torch.randn(ROWS, WIDTH) for _ in range(6)]
    limit = 900_000
    step = remat.compile(model, cost_model=MemoryBudget(limit, of="peak", in_flight=3))

    def run() -> None:
        train(step, inputs, 3)

    with no_cpu_kernels(), warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for _ in range(2):
            model.zero_grad(set_to_none=True)
            run()
        model.zero_grad(set_to_none=True)
        peak = peak_bytes(run, torch.device("cpu"))
    assert 0.7 * limit <= peak <= limit
    assert len(searched) == 1
    with no_cpu_kernels(), pytest.warns(UserWarning, match=r"4 calls .* counts only 3, so the limit may be exceeded"):
        train(step, inputs, 4)


class InTwoGraphs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = stage(1), stage(1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x)


@pytest.mark.parametrize("of", ["saved", "peak"])
def test_calls_in_flight_keep_a_limit_where_a_stage_has_two_graphs(of: Any) -> None:
    """What two calls of both graphs hold is counted together."""
    model, inputs = InTwoGraphs(), [torch.randn(ROWS, WIDTH) for _ in range(4)]
    limit = {"saved": 400_000, "peak": 750_000}[of]
    step = remat.compile(model, cost_model=MemoryBudget(limit, of=of, in_flight=2), codegen=of == "peak")
    with no_cpu_kernels(), warnings.catch_warnings():
        for _ in range(2):  # the first step is planned graph by graph
            model.zero_grad(set_to_none=True)
            train(step, inputs, 2)
        warnings.simplefilter("error", UserWarning)
        model.zero_grad(set_to_none=True)
        train(step, inputs, 2)
        model.zero_grad(set_to_none=True)
        if of == "peak":
            taken = peak_bytes(lambda: train(step, inputs, 2), torch.device("cpu"))
        else:
            taken = 2 * saved_activations(step, model, inputs[0])[1].bytes
    assert 0.6 * limit <= taken <= limit
    assert "budget: kept" in str(step.report())


def test_a_device_counts_the_calls_in_flight_and_warns_of_more() -> None:
    model, inputs = stage(), [torch.randn(ROWS, WIDTH) for _ in range(3)]
    budget = MemoryBudget(2_500_000, of="device", in_flight=2)
    told = remat.forecast(stage(), inputs[0], optimizer=torch.optim.AdamW, cost_models=[budget])
    alone = remat.forecast(stage(), inputs[0], cost_models=[MemoryBudget(0.5)])
    twice = remat.forecast(stage(), inputs[0], cost_models=[MemoryBudget(0.5, in_flight=2)])
    (plan,), graph = {twice.plans[-1].plan}, remat.capture(stage(), inputs[0])
    line = remat.timeline(graph, plan)
    more = line.at_forward_end + accumulated_bytes(graph) + argument_bytes(graph)
    assert twice.plans[-1].passes_bytes == alone.plans[-1].passes_bytes + more
    assert told.plans[-1].peak_bytes <= 2_500_000
    step = remat.compile(model, cost_model=budget, codegen=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        train(step, inputs, 2)
    with pytest.warns(UserWarning, match=r"3 calls .* counts only 2, so .* MemoryBudget\(..., in_flight=3\)"):
        train(step, inputs, 3)


def torchs_order(schedule: str, stages: int, ranks: int, microbatches: int) -> list[list[tuple[int, bool]]]:
    """What each rank runs: the stage, and whether it is a backward pass."""

    def one(index: int) -> Any:
        return SimpleNamespace(
            group_size=ranks,
            group_rank=index % ranks,
            num_stages=stages,
            stage_index=index,
            stage_index_to_group_rank={i: i % ranks for i in range(stages)},
            has_backward=True,
            is_first=index == 0,
            is_last=index == stages - 1,
            device=torch.device("cpu"),
            group=None,
            submod=None,
        )

    theirs: Any
    if schedule == "interleaved-1f1b":
        own = [one(index) for index in range(0, stages, ranks)]
        theirs = schedules.ScheduleInterleaved1F1B(own, microbatches, loss_fn=abs)
    else:
        kind: Any = {"1f1b": schedules.Schedule1F1B, "gpipe": schedules.ScheduleGPipe}[schedule]
        theirs = kind(one(0), microbatches, loss_fn=abs)
    forward, backward = schedules._ComputationType.FORWARD, schedules._ComputationType.FULL_BACKWARD
    return [
        [
            (action.stage_index, action.computation_type == backward)
            for action in theirs.pipeline_order[rank]
            if action is not None and action.computation_type in (forward, backward)
        ]
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved-1f1b"])
def test_the_order_of_each_rank_is_that_of_torch(schedule: Any) -> None:
    """And so is what is refused. Counting in that order gives the microbatches in flight."""
    counted = 0
    for ranks, own, microbatches in itertools.product(
        range(1, 6), range(1, 4) if schedule == "interleaved-1f1b" else [1], range(1, 13)
    ):
        try:
            theirs = torchs_order(schedule, own * ranks, ranks, microbatches)
        except ValueError:
            with pytest.raises(InvalidOption, match="microbatches must be"):
                PipelineSchedule(schedule, own * ranks, ranks, microbatches)
            continue
        ours = PipelineSchedule(schedule, own * ranks, ranks, microbatches)
        assert [ours.actions(rank) for rank in range(ranks)] == theirs
        for stage_number in range(own * ranks):
            held = most = 0
            for other, is_backward in theirs[stage_number % ranks]:
                held += (other == stage_number) * (-1 if is_backward else 1)
                most = max(most, held)
            assert ours.in_flight(stage_number) == most
            counted += 1
        if schedule == "1f1b":
            assert [ours.in_flight(i) for i in range(ranks)] == [min(ranks - i, microbatches) for i in range(ranks)]
    assert counted > 100


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"schedule": "1f1"}, r"schedule must be one of 1f1b, interleaved-1f1b, gpipe, got '1f1'; did you mean '1f1b'"),
        ({"ranks": 1}, r"ranks must be the number of stages \(2\) in the schedule '1f1b', got 1: leave it out"),
        ({"ranks": 3, "schedule": "interleaved-1f1b"}, r"ranks must divide the number of stages \(2\), got 3"),
        ({"microbatches": 1}, r"microbatches must be at least the number of stages \(2\) .* got 1"),
        ({"microbatches": 0}, r"microbatches must be a whole number of at least 1, got 0"),
        ({"memory": "much"}, r"memory must be"),
    ],
)
def test_a_pipeline_that_torch_cannot_run_is_refused(asked: dict[str, Any], told: str) -> None:
    stages = [(stage(1), (torch.randn(4, WIDTH),))] * 2
    with pytest.raises(InvalidOption, match=told):
        remat.plan_pipeline(stages, **{"memory": "1GB", "microbatches": 4} | asked)


def two_stages() -> list[Any]:
    return [(stage(), (torch.randn(ROWS, WIDTH),)) for _ in range(2)]


def test_earlier_stages_hold_more_microbatches_and_recompute_more() -> None:
    tight = remat.plan_pipeline(two_stages(), "1.5MB", microbatches=4)
    loose = remat.plan_pipeline(two_stages(), "1GB", microbatches=4)
    assert [one.in_flight for one in tight.stages] == [2, 1]
    assert all(one.fits and one.peak_bytes <= 1_500_000 for one in tight.stages if one.peak_bytes)
    saved = [one.saved_bytes or 0 for one in tight.stages]
    assert 0 < saved[0] < saved[1]
    assert [one.extra_time for one in loose.stages] == [0, 0]
    first = tight.stages[0]
    assert isinstance(first.cost_model, MemoryBudget)
    assert (first.cost_model.of, first.cost_model.in_flight) == ("peak", 2)
    assert first.extra_time is not None
    assert first.extra_time > 0
    small = remat.plan_pipeline(two_stages(), "100kB", microbatches=4)
    assert not any(one.fits or one.cost_model for one in small.stages)
    assert "what every plan holds takes" in small.stages[0].why


def test_messages_and_the_results_that_a_step_joins_count() -> None:
    wide = [two_stages()[0], (nn.Sequential(two_stages()[1][0], nn.Linear(WIDTH, 1024)), two_stages()[1][1])]
    narrow, both = (remat.plan_pipeline(stages, "100MB", microbatches=8).stages for stages in (two_stages(), wide))
    rows = two_stages()[1][1][0].shape[0]
    more = both[1].peak_bytes - narrow[1].peak_bytes  # type: ignore[operator]
    assert more >= 2 * 8 * rows * (1024 - WIDTH) * 4
    assert both[0].peak_bytes == narrow[0].peak_bytes


def test_the_stages_of_one_rank_share_its_memory() -> None:
    stages = [(stage(1), (torch.randn(ROWS, WIDTH),)) for _ in range(4)]
    planned = remat.plan_pipeline(stages, "2.5MB", microbatches=4, schedule="interleaved-1f1b", ranks=2)
    assert [one.rank for one in planned.stages] == [0, 1, 0, 1]
    assert [one.in_flight for one in planned.stages] == [
        PipelineSchedule("interleaved-1f1b", 4, 2, 4).in_flight(i) for i in range(4)
    ]
    for rank in range(2):
        peaks = {one.peak_bytes for one in planned.stages if one.rank == rank}
        assert len(peaks) == 1
    assert all(one.fits for one in planned.stages)


MODULE = """
import torch
from torch import nn

def stages():
    block = lambda: nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    return [(block(), (torch.randn(32, 16),)), (block(), (torch.randn(32, 16),))]
"""


def test_the_command_prints_each_stage(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stages_of_mine.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    asked = ("forecast", "stages_of_mine:stages", "--pipeline", "1f1b", "--memory", "1MB")
    (first, second) = answer(*asked, "--microbatches", "4")
    assert (first["in_flight"], second["in_flight"], first["fits"]) == (2, 1, True)
    assert first["cost_model"].endswith(",of=peak,in_flight=2")
    printed = run(*asked, "--microbatches", "4").output
    assert printed.startswith("stage  rank  in flight  saves of each")
    assert first["cost_model"] in printed
    wrong = run(*asked, code=2).output
    assert "--pipeline needs --memory and --microbatches" in wrong
