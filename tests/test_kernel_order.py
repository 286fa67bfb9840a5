"""The two orders of kernels that we offer to TorchInductor: what they save, and that the prediction knows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from threading import Thread
from typing import Any

import pytest
import torch
from depth import deep
from torch import nn
from torch.nn import functional

import remat
from costmodels import MemoryBudget
from experiments.accuracy.compiled_peaks import measured_peak
from experiments.accuracy.live_kernels import visited
from experiments.models.save_everything import plan_of
from remat.predict.buffers import StepMemory
from remat.predict.buffers.orders import has_torchs_order, with_torchs_order
from remat.pytorch.inductor.rehearsed import rehearsed_peak
from remat.pytorch.run.partitioner import Partitioner
from remat.pytorch.seam.internals import internals
from remat.pytorch.seam.kernel_order import KernelOrder, with_kernel_order
from remat.pytorch.seam.virtual_gpu import virtual_gpu

_SETTINGS = internals("torch._inductor.config")


class Block(nn.Module):
    """Scales, shifts and gates its layer by a vector that all blocks share, as diffusion transformers do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.modulation = nn.Linear(width, 3 * width)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        shift, scale, gate = self.modulation(functional.silu(condition))[:, None].chunk(3, dim=-1)
        normed = functional.layer_norm(x, x.shape[-1:])
        return x + gate * self.down(functional.gelu(self.up(normed * (1 + scale) + shift), approximate="tanh"))


class Conditioned(nn.Module):
    def __init__(self, width: int = 64, layers: int = 4) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.condition = nn.Linear(16, width)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        condition = self.condition(time)
        for block in self.blocks:
            x = block(x, condition)
        return x.square().mean()


ARGUMENTS = torch.zeros(4, 256, 64), torch.zeros(4, 16)
PLAN = MemoryBudget(0.1)


@cache
def captured(layers: int, device: str | None = None) -> remat.Graph:
    return remat.capture(Conditioned(layers=layers), *ARGUMENTS, device=device)


@contextmanager
def torchs_order() -> Iterator[None]:
    """A pass of the user's is at the place of ours."""
    with _SETTINGS.patch(_post_fusion_custom_pass=lambda nodes: nodes):
        yield


@pytest.mark.parametrize(
    ("device", "layers", "part"), [("cpu", 4, 0.75), ("h100", 3, 0.9), pytest.param("h100", 16, 0.75, marks=deep)]
)
def test_the_peak_falls_as_predicted(device: str, layers: int, part: float) -> None:
    """By the code that Inductor writes: with its own order, and with ours."""
    graph = captured(layers, device)
    plan = plan_of(graph, PLAN)
    saved = remat.Choice.from_plan(graph, plan).saved
    by_torch = with_torchs_order(graph)
    ours, torchs = (StepMemory(one).peak(saved) for one in (graph, by_torch))
    with nullcontext() if device == "cpu" else virtual_gpu(device):
        with _SETTINGS.patch(_post_fusion_custom_pass=KernelOrder()):
            assert rehearsed_peak(by_torch, plan) == torchs
        assert rehearsed_peak(graph, plan) == ours == remat.timeline(graph, plan).peak_bytes
    assert ours < part * torchs


def test_the_allocator_agrees_and_gradients_stay() -> None:
    torch.manual_seed(0)
    model, args = Conditioned(), tuple(map(torch.randn_like, ARGUMENTS))
    graph, plan, measured = measured_peak((model, args, None), PLAN, kernels=False)
    assert remat.timeline(graph, plan).peak_bytes == pytest.approx(measured, rel=0.005)
    assert measured < 0.75 * remat.timeline(graph, plan, torchs_order=True).peak_bytes
    torch.compiler.reset()
    model = Conditioned(layers=2)  # of kernels that run: to compile those of four layers would take twice as long
    model(*args).backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    remat.compile(model, cost_model=PLAN)(*args).backward()
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], expected)


def test_passes_and_settings_of_users_have_priority() -> None:
    assert "_post_fusion_custom_pass" in with_kernel_order({})
    assert with_kernel_order({"_post_fusion_custom_pass": None}) == {"_post_fusion_custom_pass": None}
    with torchs_order():
        assert with_kernel_order({}) == {}
    assert with_kernel_order({"reorder_for_peak_memory": False}) == {"reorder_for_peak_memory": False}
    with _SETTINGS.patch(reorder_for_peak_memory=False):
        assert with_kernel_order({}) == {}


@pytest.mark.parametrize("with_order", [False, True])
def test_a_partitioner_predicts_and_checks_the_order_that_the_step_will_have(with_order: bool) -> None:
    """Set by hand, the partitioner comes with `KernelOrder` or without it."""
    model, graph = Conditioned(layers=3), captured(3)
    limit = remat.timeline(graph, plan_of(graph, PLAN), torchs_order=not with_order).peak_bytes
    partitioner = Partitioner.of(MemoryBudget(f"{limit} B", of="peak"))
    settings = {"custom_partitioner_fn": partitioner, "force_disable_caches": True}
    if with_order:
        settings["_post_fusion_custom_pass"] = KernelOrder()
    with _SETTINGS.patch(settings), visited():
        torch.compile(model)(*ARGUMENTS).backward()
    report = partitioner.log.report()
    assert has_torchs_order(report.graphs[0].graph) is not with_order
    row, plan = report.as_frame().iloc[0], report.graphs[0].plan
    expected = remat.timeline(graph, plan, torchs_order=not with_order).peak_bytes
    assert row.checked_peak_bytes == row.peak_bytes == expected <= limit


@pytest.mark.parametrize("options", [{}, {"_post_fusion_custom_pass": None}, {"reorder_for_peak_memory": False}])
def test_a_graph_says_whether_the_step_is_offered_our_orders(options: dict[str, Any]) -> None:
    """`remat.compile` offers them, unless the user's options say otherwise."""
    step = remat.compile(torch.nn.Linear(8, 8), cost_model="memory-budget", options=options)
    with visited():
        step(torch.ones(4, 8)).sum().backward()
    assert has_torchs_order(step.report().graphs[0].graph) is bool(options)


@deep
def test_a_backward_pass_in_another_thread_has_our_order_if_it_is_compiled_with_the_forward_pass() -> None:
    """As the pages advise for GPUs, where autograd runs backward passes in threads of its own."""
    calls: list[int] = []

    class Counted(KernelOrder):
        def __call__(self, nodes: list[Any]) -> list[Any]:
            calls.append(len(nodes))
            return super().__call__(nodes)

    settings = {"_post_fusion_custom_pass": Counted(), "force_disable_caches": True}
    with _SETTINGS.patch(settings), torch._functorch.config.patch(force_non_lazy_backward_lowering=True):
        loss = torch.compile(Conditioned(layers=1))(*ARGUMENTS)
        backward = Thread(target=loss.backward)
        backward.start()
        backward.join()
    assert len(calls) == 2
