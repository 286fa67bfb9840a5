"""Run by `test_distributed.py` in two processes, which choose differently, or fail, one or both of them.

Prints, from rank 0, what happened on every rank, scenario by scenario. For data parallel training, on different
batches, compiled and not, that is: how many values each joint graph would save by the rank's own plan and does save by
the common one; and the largest relative difference of losses and gradients from the run that is not compiled.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.parallel import DistributedDataParallel

import remat
from costmodels import ByteTraffic, MemoryBudget
from remat import Graph, LimitReached, Plan, Problem, Solution
from remat.errors import InvalidGraph
from remat.plugin import Solver
from remat.pytorch.measure.saved import saved_activations
from remat.pytorch.run import partitioner, ranks, shared_budget


class Stack(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).sigmoid().tanh().exp().sin()).square().sum()


@dataclasses.dataclass(frozen=True)
class GivesUp(Solver):
    """Finds nothing, as a solver with a time limit may on one rank alone."""

    name: ClassVar[str] = "gives-up"

    def _solve(self, problem: Problem, *, time_limit_s: float | None) -> Solution:
        raise LimitReached(f"rank {dist.get_rank()} gave up")


def solver(failing: tuple[int, ...]) -> str | Solver:
    return GivesUp() if dist.get_rank() in failing else "ortools"


def gradients(step: Callable[..., Any], model: Stack, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    step(x).backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def trained(**settings: Any) -> dict[str, Any]:
    """Trains a step, in a mode of the rank's own; what is saved, or the error, and the warnings."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model, x = Stack(), torch.randn(8, 16)
    mode: Any = "conservative" if dist.get_rank() == 0 else "aggressive"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            step = remat.compile(model, cost_model=ByteTraffic(mode=mode), codegen=False, **settings)
            torch.testing.assert_close(gradients(step, model, x), gradients(model, model, x))
            seen: dict[str, Any] = {"saved_bytes": saved_activations(step, model, x)[1].bytes}
            seen["chosen by"] = [planned.chosen.by for planned in step.report().graphs]
        except Exception as error:
            seen = {"error": str(error)}
    return seen | {"warnings": [str(w.message) for w in caught if "rank" in str(w.message)]}


def alone() -> dict[str, Any]:
    """What each rank would do by itself."""
    with patch.object(ranks, "several_ranks", lambda: False):
        return trained()


def unreadable() -> dict[str, Any]:
    """Rank 1 cannot even read its graph."""

    def fails(*_args: object) -> Any:
        raise InvalidGraph("rank 1 cannot read it")

    with patch.object(partitioner, "extract", fails if dist.get_rank() == 1 else partitioner.extract):
        return trained()


def eager() -> dict[str, Any]:
    """What is saved where nothing is compiled: no plan saves the same."""
    model = Stack()
    return {"saved_bytes": saved_activations(model, model, torch.randn(8, 16))[1].bytes}


Compile = Callable[[Any], Any]
WIDTH = 544
"""A layer is then 1.1 MiB: in buckets of one MiB each layer has its own, and DDP splits the graph between them."""


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.linear(self.norm(x)).sigmoid().tanh().exp().sin()


class Net(nn.Module):
    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual(width) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def replicated(model: nn.Module, compile: Compile, **options: Any) -> Any:
    return compile(DistributedDataParallel(model, **options))


def sharded(model: Net, compile: Compile) -> nn.Module:
    """Block by block, as FSDP2 asks for: its hooks are no part of any graph."""
    for i, block in enumerate(model.blocks):
        model.blocks[i] = fully_shard(compile(block))
    return fully_shard(model)


def train(blocks: int, width: int, wrap: Callable[..., Any], compile: Compile, **options: Any) -> list[Tensor]:
    """Losses and gradients of three steps."""
    torch.compiler.reset()
    torch.manual_seed(0)
    model = Net(blocks, width)
    step = wrap(model, compile, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1 + dist.get_rank())
    seen: list[Tensor] = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = step(torch.randn(4, width)).square().mean()
        loss.backward()
        gradients: list[Any] = [parameter.grad for parameter in model.parameters()]
        seen += [loss.detach(), *(g.full_tensor() if hasattr(g, "full_tensor") else g.clone() for g in gradients)]
        optimizer.step()
    return seen


def compared(
    blocks: int, width: int, wrap: Callable[..., Any], codegen: bool = False, **options: Any
) -> dict[str, Any]:
    """Trains with and without a compiler; the ranks would choose differently."""
    mode: Any = "aggressive" if dist.get_rank() == 0 else "conservative"
    plans: list[tuple[int, int]] = []
    agreed = ranks.agreed_plan

    def watched(mine: Plan | Exception, graph: Graph | None) -> Plan | Exception:
        plan = agreed(mine, graph)
        assert isinstance(mine, Plan)
        assert isinstance(plan, Plan)
        plans.append((len(mine.saved), len(plan.saved)))
        return plan

    def compile(model: Any) -> Any:
        return remat.compile(model, cost_model=ByteTraffic(mode=mode), codegen=codegen)

    with patch.object(ranks, "agreed_plan", watched):
        ours = train(blocks, width, wrap, compile, **options)
    theirs = train(blocks, width, wrap, lambda model: model, **options)
    error = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(ours, theirs, strict=True))
    return {"plans": plans, "error": error}


class Watched(nn.Module):
    """Counts what autograd keeps alive between the passes of a compiled stage, without parameters and arguments."""

    def __init__(self, step: Any) -> None:
        super().__init__()
        self.step, self.most = step, 0
        self._alive: Counter[int] = Counter()
        self._sizes: dict[int, int] = {}

    def forward(self, x: Tensor) -> Tensor:
        always = {tensor.untyped_storage().data_ptr() for tensor in (x, *self.parameters())}

        def pack(tensor: Tensor) -> Callable[[], Tensor]:
            address = tensor.untyped_storage().data_ptr()

            def kept() -> Tensor:
                return tensor

            if address not in always:
                self._alive[address] += 1
                self._sizes[address] = tensor.untyped_storage().nbytes()
                self.most = max(self.most, sum(self._sizes[one] for one, times in self._alive.items() if times))
                weakref.finalize(kept, self._alive.subtract, [address])
            return kept

        with saved_tensors_hooks(pack, lambda kept: kept()):
            return self.step(x)


def pipeline() -> dict[str, Any]:
    """Trains two stages by 1F1B, each compiled within one budget for the microbatches that it holds."""
    torch.compiler.reset()
    torch.manual_seed(0)
    rank, microbatches, budget = dist.get_rank(), 6, 40_000
    stages = [nn.Sequential(Residual(32), Residual(32)) for _ in range(2)]
    x, y = torch.randn(2, microbatches * 64, 32)
    reference = copy.deepcopy(nn.Sequential(*stages))
    nn.functional.mse_loss(reference(x), y).backward()
    planned: list[int] = []
    search = shared_budget.search

    def counted(graph: Graph, *args: Any, **options: Any) -> Any:
        planned.append(len(graph))
        return search(graph, *args, **options)

    with warnings.catch_warnings(record=True) as caught, patch.object(shared_budget, "search", counted):
        warnings.simplefilter("always", UserWarning)
        cost_model = MemoryBudget(budget, in_flight=2 - rank)
        watched = Watched(remat.compile(stages[rank], cost_model=cost_model, codegen=False))
        schedule = Schedule1F1B(
            PipelineStage(watched, rank, 2, torch.device("cpu")), microbatches, loss_fn=nn.functional.mse_loss
        )
        for _ in range(3):
            stages[rank].zero_grad()
            schedule.step(x) if rank == 0 else schedule.step(target=y)
    pairs = zip(stages[rank].parameters(), reference[rank].parameters(), strict=True)
    errors = [float((a.grad - b.grad).abs().max() / b.grad.abs().max()) for a, b in pairs if a.grad is not None]
    texts = [str(one.message) for one in caught if "budget" in str(one.message) or "remat" in str(one.message)]
    return {
        "error": max(errors),
        "gradients": len(errors),
        "planned": len(planned),
        "most": watched.most,
        "budget": budget,
        "warnings": texts,
    }


SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    "eager": eager,
    "alone": alone,
    "together": trained,
    "rank 0 fails": lambda: trained(solver=solver((0,))),
    "rank 1 fails": lambda: trained(solver=solver((1,))),
    "both fail": lambda: trained(solver=solver((0, 1))),
    "both fail and fall back": lambda: trained(solver=solver((0, 1)), on_error="fallback"),
    "rank 1 cannot read": unreadable,
    "DDP in buckets": lambda: compared(3, WIDTH, replicated, bucket_cap_mb=1),
    "FSDP2": lambda: compared(2, 16, sharded),
    "pipeline": pipeline,
    "DDP": lambda: compared(1, 16, replicated, codegen=True),  # the whole model in one graph, and code for it
}


def play(store: str, rank: int, names: list[str]) -> None:
    """Plays scenarios on this rank, prints from rank 0 the results of all, as JSON, and ends the process.

    The ranks find each other by a file, the store: torch's launcher would be a third process that imports torch.
    """
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mine = {name: SCENARIOS[name]() for name in names}
    everyone: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    if dist.get_rank() == 0:
        print(json.dumps(everyone))  # noqa: T201  # read by the test
    dist.destroy_process_group()
    sys.stdout.flush()
    # A thread of torch that wants Python's lock as Python ends aborts: 2 of 30 runs of plain torch.compile (2.13).
    os._exit(0)


if __name__ == "__main__":
    given_store, given_rank, *wanted = sys.argv[1:]
    play(given_store, int(given_rank), wanted or [name for name in SCENARIOS if name != "DDP"])
