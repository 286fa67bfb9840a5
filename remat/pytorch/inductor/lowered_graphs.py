"""Visits TorchInductor's lowered graphs of a model under a plan, where kernels would be written next.

Everything runs as in a compilation: Dynamo, AOTAutograd, our split, Inductor's passes, lowering, fusion and
scheduling. Then, instead of code generation, a visitor looks at what is scheduled, and the graphs are
interpreted. Run with torch 2.13.0.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
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
"""Takes a `GraphLowering` of a forward or backward pass, with its `scheduler`, while Inductor works on it."""


@contextmanager
def visited(visit: LoweringVisitor) -> Generator[None]:
    """Calls a visitor with every graph that this thread has Inductor schedule inside the block, and writes no kernels.

    Nothing inside comes from a cache on disk, and backward passes are compiled at once, not only when they run. What
    was compiled in this process before is not compiled again: `torch.compiler.reset()` forgets it. A graph outside of
    training, which Inductor calls inference, has no plan and is passed over.
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
    visit: LoweringVisitor,
    model: Callable[..., Any],
    args: tuple[Any, ...],
    plans: Plan | Sequence[Plan],
    options: Mapping[str, Any] | None = None,
) -> None:
    """Visits each forward and each backward graph that a plan makes of a model, in turn.

    Args:
        model: a module or function; it runs once, and is left as it was.
    """
    settings = {"custom_partitioner_fn": Partitioner.of(plan=plans), **(options or {})}

    @own_errors()
    def backend(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compile_fx(graph_module, inputs, settings)

    with visited(visit), put_back(model, args, {}), torch.enable_grad():
        torch_compile(model, backend=backend, dynamic=False)(*args)


def lower(
    graph_module: fx.GraphModule, fake_mode: Any, visit: LoweringVisitor, *, backward: bool, donated: Sequence[int] = ()
) -> list[tuple[int, ...] | None]:
    """Visits the lowering of a forward or backward graph that torch's partitioner made, without Dynamo and AOTAutograd.

    Args:
        donated: positions of the inputs over which it may write.

    Returns:
        the strides that Inductor gives to each output; None for what has none.
    """
    with (
        prepared(graph_module, fake_mode),
        lowered(graph_module, donated, is_inference=False, is_backward=backward) as lowering,
    ):
        visit(lowering)
        return output_strides(lowering)
