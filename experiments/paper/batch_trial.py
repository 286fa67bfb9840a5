"""Finds what one batch of a model takes under a method: on CUDA by trial, on the CPU by remat's estimate."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial

import torch
from torch import Tensor, nn

from experiments.paper.batch_search import DoesNotFit
from experiments.paper.methods import FULL, MIN_CUT, NO, OURS, checkpointed, compiled, cut
from experiments.paper.table import Setting
from experiments.paper.ten_models import ModelSource, Whole
from remat import Graph, Plan
from remat.answer.choice import Choice
from remat.predict.memory import Simulator
from remat.pytorch.measure.step_values import first_line
from remat.pytorch.measure.torch_budgets import torchs_plans
from remat.pytorch.seam.torch_settings import fresh_compilation

TIMING_S = 10.0
"""No further step of one batch is timed after so many seconds."""


@dataclass
class Trials:
    """Runs training steps on CUDA, each batch compiled for itself.

    Attributes:
        whole, method, setting: what runs.
        limit_bytes: what torch's allocator may take of the device during a step.
        step_s: of each batch that ran, the median time of a step.
    """

    whole: Whole
    method: str
    setting: Setting
    limit_bytes: int
    step_s: dict[int, float] = field(default_factory=dict[int, float])

    def held_bytes(self, batch: int) -> int:
        """Measures the most that tensors hold during a step, parameters and inputs included.

        Raises:
            DoesNotFit: it did not run, mostly for want of memory.
        """
        try:
            return self._run(batch)
        except Exception as error:  # out of memory has many names, above all while torch compiles
            reason = first_line(error)
        # The error is gone, and with it the frames that held the tensors of the step.
        _forget()
        raise DoesNotFit(reason)

    def _run(self, batch: int) -> int:
        _forget()
        torch.manual_seed(self.setting.seed)
        source = self.whole.source(self.setting)
        model, args = source.sample("cuda", batch)
        train = partial(_train, compiled(self.method, model, source.layers_of, args), model, args)
        with fresh_compilation():
            train()  # compiles, and has Triton try its configurations: without limit, as that takes memory of its own
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        with limited(self.limit_bytes):
            torch.cuda.reset_peak_memory_stats()
            self.step_s[batch] = statistics.median(_timed(train, self.setting.repeats))
            return torch.cuda.max_memory_allocated()


def _train(step: Callable[..., Tensor], model: nn.Module, args: tuple[Tensor, ...]) -> None:
    model.zero_grad(set_to_none=True)
    step(*args).backward()


def _timed(call: Callable[[], None], repeats: int) -> list[float]:
    taken_s: list[float] = []
    while len(taken_s) < repeats and sum(taken_s) < TIMING_S:
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        taken_s.append(time.perf_counter() - start)
    return taken_s


def _forget() -> None:
    torch.compiler.reset()
    gc.collect()
    torch.cuda.empty_cache()


def allowed_bytes(memory_gib: float) -> int:
    """Converts an amount of memory to bytes, at most all that the device has."""
    return min(_device_bytes(), int(memory_gib * 2**30))


def _device_bytes() -> int:
    return torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory


@contextmanager
def limited(limit_bytes: int) -> Generator[None]:
    """Limits torch's allocator to so many bytes of the device."""
    torch.cuda.set_per_process_memory_fraction(limit_bytes / _device_bytes())
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def estimated_bytes(whole: Whole, method: str, setting: Setting, batch: int) -> int:
    """Estimates what a batch would take: the simulated peak of both passes, and parameters, buffers and inputs."""
    graph, torchs, at_rest_bytes = captured(whole, setting.size, method == FULL, batch)
    saved = {
        NO: lambda: graph.in_forward,  # what is not read again takes no memory there
        FULL: lambda: Choice.from_plan(graph, torchs).saved,
        MIN_CUT: lambda: Choice.from_plan(graph, torchs).saved,
        OURS: lambda: Choice.from_plan(graph, cut(graph)).saved,
    }
    return Simulator(graph).peak(saved[method]()) + at_rest_bytes


@lru_cache(maxsize=64)
def captured(whole: Whole, size: str, is_checkpointed: bool, batch: int) -> tuple[Graph, Plan, int]:
    """Captures a model without contents: its joint graph, PyTorch's plan, and the bytes that are alive anyway."""
    source = whole.source(Setting("cpu", size, repeats=1))
    model, args = source.fakes(batch)
    at_rest_bytes = sum(t.nbytes for t in (*model.parameters(), *model.buffers(), *args))
    traced = checkpointed(model, source.layers_of) if is_checkpointed else model
    ((graph, plans),) = torchs_plans(traced, *args, budgets=[1.0])
    return graph, plans[1.0], at_rest_bytes


def weight_bytes(source: ModelSource) -> int:
    """Counts parameters and their gradients: what an empty batch takes."""
    with torch.device("cpu"):  # timm builds nothing on "meta"
        return 2 * sum(parameter.nbytes for parameter in source.build().parameters())
