"""Visits TorchInductor's lowered graphs of a model under a plan, at the point where code would be generated.

Everything else runs as in a compilation: Dynamo, AOTAutograd, our split, Inductor's passes, lowering, fusion and
scheduling. Then a visitor reads the schedule instead of code generation, and the graphs are interpreted. Run with torch
2.13.0.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import fx

from remat.answer.plan import Plan
from remat.pytorch.run.partitioner import Partitioner
from remat.pytorch.seam.compilations import own_errors
from remat.pytorch.seam.inductor_lowering import (
    compile_fx,
    instead_of_code,
    lowered,
    output_strides,
    prepared,
    schedule,
)
from remat.pytorch.seam.restore import put_back
from remat.pytorch.seam.torch_names import torch_compile
from remat.pytorch.seam.torch_settings import backward_at_once, fresh_compilation, nothing_cached

LoweringVisitor: TypeAlias = Callable[[Any], None]
"""Receives a `GraphLowering` of a forward or backward pass, with its `scheduler`, while Inductor works on it."""


@contextmanager
def visited(visit: LoweringVisitor) -> Generator[None]:
    """Calls a visitor with every graph that Inductor schedules in this thread within the block, without kernels.

    Caches on disk are off, and backward passes are compiled at once, not when they first run. A graph that was compiled
    earlier in this process is not compiled again (`torch.compiler.reset()` forgets it). Graphs outside training, which
    Inductor calls inference, have no plan and are skipped.
    """

    def observe(lowering: Any) -> Any:
        schedule(lowering)
        if not lowering.is_inference:
            visit(lowering)

        def call(inputs: list[Any]) -> Any:
            return lowering.module(*inputs)

        return SimpleNamespace(call=call, __file__=None, key="", value="")

    with backward_at_once(), fresh_compilation(), nothing_cached(), instead_of_code(observe):
        yield


def visit_lowerings(
    visit: LoweringVisitor, model: Callable[..., Any], args: tuple[Any, ...], plans: Plan | Sequence[Plan]
) -> None:
    """Visits each forward and each backward graph of a model under a plan.

    Args:
        model: a module or function; it runs once, and is restored.
    """
    settings = {"custom_partitioner_fn": Partitioner.of(plan=plans)}

    @own_errors()
    def backend(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compile_fx(graph_module, inputs, settings)

    with visited(visit), put_back(model, args, {}), torch.enable_grad():
        torch_compile(model, backend=backend, dynamic=False)(*args)


def lower(
    graph_module: fx.GraphModule,
    fake_mode: Any,
    visit: LoweringVisitor,
    *,
    backward: bool,
    donated: Sequence[int] = (),
    torchs_order: bool = False,
) -> list[tuple[int, ...] | None]:
    """Calls `visit` with the lowering of a forward or backward graph, without Dynamo and AOTAutograd.

    Args:
        donated: positions of the inputs that Inductor may overwrite.
        torchs_order: whether our orders of kernels are not offered (`remat.pytorch.KernelOrder`).

    Returns:
        Inductor's strides of each output; None for outputs that are no tensors.
    """
    with (
        prepared(graph_module, fake_mode),
        lowered(graph_module, donated, torchs_order=torchs_order, is_inference=False, is_backward=backward) as lowering,
    ):
        visit(lowering)
        return output_strides(lowering)
