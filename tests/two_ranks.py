"""Run by `test_distributed.py` in two processes, which choose differently, or fail, one or both of them.

Prints, from rank 0, what happened on every rank, scenario by scenario.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, ClassVar
from unittest.mock import patch

import torch
import torch.distributed as dist
from every_rank import print_what_every_rank_saw
from torch import Tensor
from two_ranks_train import UNCOMPILED

import remat
from costmodels import ByteTraffic
from remat import LimitReached, Problem, Solution
from remat.errors import InvalidGraph
from remat.plugin import Solver
from remat.pytorch.measure.saved import saved_activations
from remat.pytorch.run import partitioner


class Stack(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

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
        except Exception as error:
            seen = {"error": str(error)}
    return seen | {"warnings": [str(w.message) for w in caught if "rank" in str(w.message)]}


def alone() -> dict[str, Any]:
    """What each rank would do by itself."""
    with patch.object(partitioner.ranks, "several_ranks", lambda: False):
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


SCENARIOS: dict[str, Callable[[], dict[str, Any]]] = {
    "eager": eager,
    "alone": alone,
    "together": trained,
    "rank 0 fails": lambda: trained(solver=solver((0,))),
    "rank 1 fails": lambda: trained(solver=solver((1,))),
    "both fail": lambda: trained(solver=solver((0, 1))),
    "both fail and fall back": lambda: trained(solver=solver((0, 1)), on_error="fallback"),
    "rank 1 cannot read": unreadable,
}


if __name__ == "__main__":
    print_what_every_rank_saw(SCENARIOS | UNCOMPILED)
