"""TorchInductor's lowered graphs of a model under a plan, up to the point where kernels would be written.

Everything runs as in a compilation: Dynamo, AOTAutograd, our split, Inductor's passes, lowering, fusion and
scheduling. Then, instead of code generation, a visitor looks at what is scheduled, and the graphs are
interpreted. Run with torch 2.13.0.
"""

# Inductor's internals carry few types: what comes out of them is unknown to a checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch._dynamo.exc import BackendCompilerFailed
from torch._inductor.compile_fx import compile_fx

from remat.answer.plan import Plan
from remat.pytorch.inductor.traffic_count import checked_modules
from remat.pytorch.run.partitioner import Partitioner
from remat.pytorch.seam import versions as seam
from remat.pytorch.seam.restore import undone

_swap = threading.RLock()

Visitor = Callable[[Any], None]
"""Takes a `GraphLowering` of a forward or backward pass, with its `scheduler`, while Inductor works on it."""


@contextmanager
def visited(visit: Visitor) -> Generator[None]:
    """Hands every graph that Inductor schedules inside the block to a visitor, and writes no kernels.

    Nothing inside comes from a cache on disk, and backward passes are compiled at once, not only when they run. What
    was compiled in this process before is not compiled again: `torch.compiler.reset()` forgets it. A graph outside of
    training, which Inductor calls inference, has no plan and is passed over.

    Raises:
        UnsupportedTorch: the installed torch lacks what this relies on.
    """

    def observe(lowering: Any) -> Any:
        lowering.init_wrapper_code()
        lowering._update_scheduler()
        if not lowering.is_inference:
            visit(lowering)

        def call(inputs: list[Any]) -> Any:
            return lowering.module(*inputs)

        return SimpleNamespace(call=call, __file__=None, key="", value="")

    functorch: Any = import_module("torch._functorch.config")
    with (
        _swap,
        functorch.patch(force_non_lazy_backward_lowering=True),
        seam.fresh_compilation(),
        patch.object(_inductor()["graph"].GraphLowering, "compile_to_module", observe),
        torch.compiler.config.patch(force_disable_caches=True),  # type: ignore[attr-defined]
    ):
        yield


def visit_lowerings(
    visit: Visitor,
    model: Callable[..., Any],
    args: tuple[Any, ...],
    plans: Plan | Sequence[Plan],
    options: Mapping[str, Any] | None = None,
) -> None:
    """Visits each forward and each backward graph that a plan makes of a model, in turn.

    Args:
        visit: called once for each graph.
        model: a module or function; it runs once, and is left as it was.
        args: what to call it with.
        plans: a plan for each joint graph.
        options: further settings of Inductor.
    """
    settings = {"custom_partitioner_fn": Partitioner.of(plan=plans), **(options or {})}

    def backend(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        return compile_fx(graph_module, list(inputs), config_patches=settings)

    torch_compile: Any = torch.compile
    with visited(visit), undone(model, args, {}), torch.enable_grad():
        try:
            torch_compile(model, backend=backend, dynamic=False)(*args)
        except BackendCompilerFailed as error:  # Dynamo's word for any error of ours
            raise error.inner_exception from None


def lower(graph_module: fx.GraphModule, fake_mode: Any, visit: Visitor, *, backward: bool) -> list[Any]:
    """Visits the lowering of a forward or backward graph that torch's partitioner made, without Dynamo and AOTAutograd.

    Args:
        graph_module: changed in place.
        fake_mode: of the fake tensors in the `meta["val"]` of its nodes.
        visit: called once.
        backward: the graph is a backward pass.

    Returns:
        the strides that Inductor gives to each output; None for what has none.
    """
    inductor = _inductor()
    compile_fx_, virtualized = inductor["compile_fx"], inductor["virtualized"].V
    inputs = [node.meta["val"] for node in graph_module.graph.find_nodes(op="placeholder")]
    inductor["post_grad"].view_to_reshape(graph_module)
    with (
        virtualized.set_fake_mode(fake_mode),
        virtualized.set_debug_handler(inductor["debug"].DebugContext()),
        compile_fx_.maybe_disable_comprehensive_padding(inputs),
        torch.no_grad(),
    ):
        compile_fx_.fake_tensor_prop(graph_module, inputs)
        compile_fx_._recursive_record_original_output_strides(graph_module)
        compile_fx_._recursive_post_grad_passes(graph_module, is_inference=False)
        lowering = inductor["graph"].GraphLowering(
            graph_module,
            example_inputs=inputs,
            shape_env=fake_mode.shape_env,
            is_inference=False,
            is_backward=backward,
        )
        with virtualized.set_graph_handler(lowering), virtualized.set_extern_kernel_nodes([]):
            lowering.run(*inputs)
            lowering.init_wrapper_code()
            lowering._update_scheduler()
            visit(lowering)
            return [_strides(output) for output in lowering.graph_outputs]


def _strides(output: Any) -> tuple[int, ...] | None:
    if not isinstance(output, _inductor()["ir"].IRNode) or not output.has_tensor_output():
        return None
    return tuple(map(int, output.get_layout().stride))


_USED = {
    "torch._inductor.graph": ("GraphLowering.compile_to_module", "GraphLowering._update_scheduler"),
    "torch._inductor.compile_fx": (
        "maybe_disable_comprehensive_padding",
        "fake_tensor_prop",
        "_recursive_record_original_output_strides",
        "_recursive_post_grad_passes",
    ),
    "torch._inductor.fx_passes.post_grad": ("view_to_reshape",),
    "torch._inductor.debug": ("DebugContext",),
    "torch._inductor.ir": ("IRNode",),
    "torch._inductor.virtualized": ("V",),
}


@cache
def _inductor() -> dict[str, Any]:
    return checked_modules(_USED)
