"""Run by `test_distributed.py` in two processes: each rank would choose differently.

Prints, from rank 0, what every rank saved and whether its gradients equal eager's.
"""

from __future__ import annotations

import json

import torch
import torch.distributed as dist
from torch import Tensor

import remat
from costmodels import ByteTraffic
from remat.pytorch.measure import saved_activations


class Stack(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).sigmoid().tanh()).square().sum()


def gradients(step: torch.nn.Module, model: Stack, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    step(x).backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model, x = Stack(), torch.randn(8, 16)
    mode = "conservative" if dist.get_rank() == 0 else "aggressive"
    graph = remat.capture(model, x)
    alone = remat.solve(ByteTraffic(mode=mode).pose(graph)).plan  # type: ignore[arg-type]
    step = remat.compile(model, cost_model=ByteTraffic(mode=mode))  # type: ignore[arg-type]
    torch.testing.assert_close(gradients(step, model, x), gradients(model, model, x))
    assert alone is not None
    mine = {"would_save": alone.saved, "saved_bytes": saved_activations(step, model, x)[1].bytes}
    everyone: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    if dist.get_rank() == 0:
        print(json.dumps(everyone))  # noqa: T201  # read by the test
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
