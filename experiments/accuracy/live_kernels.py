"""Lists the kernels that TorchInductor schedules for a model under a plan, as part of a whole compilation.

Everything runs as in a compilation: Dynamo, AOTAutograd, our split, Inductor's passes, lowering, fusion and scheduling.
Then a visitor reads the schedule instead of code generation, and the graphs are interpreted. So this is the reference
for `remat.pytorch.inductor.scheduled`, which asks Inductor about a graph without a model. Run with torch 2.13.0.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._inductor.graph import GraphLowering

from remat.answer.plan import Plan
from remat.errors import CaptureError, InvalidOption
from remat.pytorch.inductor.scheduled import InductorKernel, scheduled_kernels
from remat.pytorch.run.partitioner import Partitioner
from remat.pytorch.seam.compilations import own_errors
from remat.pytorch.seam.inductor_lowering import compile_fx, schedule
from remat.pytorch.seam.reachable import put_back
from remat.pytorch.seam.thread_patch import thread_local_patch
from remat.pytorch.seam.torch_settings import fresh_compilation, nothing_cached


@contextmanager
def visited(visit: Callable[[Any], None] = lambda _: None) -> Generator[None]:
    """Calls a visitor with the `GraphLowering` of every graph that Inductor schedules in this thread within the block.

    Without a visitor, the block only leaves out the code, for tests that look at plans.
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

    # AOTAutograd then compiles a backward pass together with its forward pass, not when it first runs.
    at_once = functorch_config.patch(force_non_lazy_backward_lowering=True)
    instead_of_code = thread_local_patch(GraphLowering, "compile_to_module", observe)
    with at_once, fresh_compilation(), nothing_cached(), instead_of_code:
        yield


def inductor_kernels(model: Callable[..., Any], /, *args: Any, plans: Plan | Sequence[Plan]) -> list[InductorKernel]:
    """Returns the kernels of each forward and each backward graph of a model under a plan, in Inductor's order.

    Args:
        model: a module or function; it runs once, uncompiled, and is restored.

    Raises:
        CaptureError: `model` cannot be called, or has no joint graph, for example because nothing requires gradients.
        InvalidOption: `plans` holds anything other than plans.
        InvalidPlan: a plan is not legal, or missing for a joint graph.
    """
    if not callable(model):
        raise CaptureError(f"inductor_kernels() takes a module or a function, got {model!r}")
    listed: list[Any] = [*plans] if isinstance(plans, list | tuple) else [plans]
    for plan in listed:
        if not isinstance(plan, Plan):
            raise InvalidOption(f"inductor_kernels: plans must be a remat.Plan or a list of them, got {plan!r}")
    kernels: list[InductorKernel] = []
    settings = {"custom_partitioner_fn": Partitioner.of(plan=plans)}

    @own_errors()
    def backend(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compile_fx(graph_module, inputs, settings)

    def visit(lowering: Any) -> None:
        kernels.extend(scheduled_kernels(lowering))

    with visited(visit), put_back(model, args, {}), torch.enable_grad():
        torch.compile(model, backend=backend, dynamic=False)(*args)
    if not kernels:
        raise CaptureError(
            "inductor_kernels() found no joint graph of forward and backward pass; remat.capture says why there is none"
        )
    return kernels
