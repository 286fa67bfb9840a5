"""Runs TorchInductor step by step, from a graph to scheduled kernels and their code."""

from __future__ import annotations

import ast
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import fx

from remat.pytorch.seam.internals import internals
from remat.pytorch.seam.kernel_order import kernel_order, with_kernel_order
from remat.pytorch.seam.thread_patch import in_place, thread_local_patch
from remat.pytorch.seam.torch_names import CustomPartitionerFn


def compile_fx(
    graph_module: fx.GraphModule, inputs: Sequence[Any], options: Mapping[str, Any], **kwargs: Any
) -> Callable[..., Any]:
    """Compiles a graph of Dynamo's with AOTAutograd and Inductor, with some of Inductor's settings changed."""
    compiler = internals("torch._inductor.compile_fx")
    return compiler.compile_fx(graph_module, list(inputs), config_patches=with_kernel_order(options), **kwargs)


def run_uncompiled(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    partitioner: CustomPartitionerFn,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compiles a graph of Dynamo's with Inductor's passes and the partitioner, but without code generation.

    The resulting graphs are interpreted operator by operator.
    """
    own = {"custom_partitioner_fn": partitioner, "force_disable_caches": True}  # a cache skips both
    return compile_fx(graph_module, example_inputs, {**(options or {}), **own}, inner_compile=_interpret)


def _interpret(graph_module: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    del example_inputs, options

    def run(inputs: list[Any]) -> Any:
        return graph_module.forward(*inputs)

    run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd passes one list
    return run


def mode_options(mode: str) -> dict[str, Any]:
    return internals("torch._inductor").list_mode_options(mode)


@cache
def all_options() -> frozenset[str]:
    return frozenset(internals("torch._inductor").list_options())


@contextmanager
def lowered(
    graph_module: fx.GraphModule, donated: Sequence[int] = (), *, torchs_order: bool = False, **kwargs: Any
) -> Generator[Any]:
    """Lowers and schedules a graph, and yields its `GraphLowering` while Inductor's context is set up for it.

    Args:
        graph_module: a graph after Inductor's passes over forward and backward graphs, in Inductor's fake mode.
        donated: positions of the inputs that a backward pass may overwrite (`get_donated_idxs`).
        torchs_order: whether our pass over the order of kernels is left out.
    """
    virtualized, inputs = internals("torch._inductor.virtualized").V, _inputs(graph_module)
    lowering = internals("torch._inductor.graph").GraphLowering(
        graph_module, example_inputs=inputs, shape_env=virtualized.fake_mode.shape_env, **kwargs
    )
    lowering.bw_donated_idxs = [*donated]
    with virtualized.set_graph_handler(lowering), virtualized.set_extern_kernel_nodes([]), torch.no_grad():
        lowering.run(*inputs)
        with kernel_order(torchs_order=torchs_order):
            schedule(lowering)
        yield lowering


def schedule(lowering: Any) -> None:
    lowering.init_wrapper_code()
    lowering._update_scheduler()


@contextmanager
def prepared(graph_module: fx.GraphModule, fake_mode: Any) -> Generator[None]:
    """Runs Inductor's passes over a forward or backward graph, in place; the block may lower the graph."""
    compiler, virtualized = internals("torch._inductor.compile_fx"), internals("torch._inductor.virtualized").V
    inputs = _inputs(graph_module)
    internals("torch._inductor.fx_passes.post_grad").view_to_reshape(graph_module)
    with (
        virtualized.set_fake_mode(fake_mode),
        virtualized.set_debug_handler(internals("torch._inductor.debug").DebugContext()),
        compiler.maybe_disable_comprehensive_padding(inputs),
        torch.no_grad(),
    ):
        compiler.fake_tensor_prop(graph_module, inputs)
        compiler._recursive_record_original_output_strides(graph_module)
        compiler._recursive_post_grad_passes(graph_module, is_inference=False)
        yield


def _inputs(graph_module: fx.GraphModule) -> list[Any]:
    return [node.meta["val"] for node in graph_module.graph.find_nodes(op="placeholder")]


@contextmanager
def before_code(visit: Callable[[Any], None]) -> Generator[None]:
    """Calls `visit` with each graph of this thread after scheduling; then Inductor generates the code."""
    scheduler = internals("torch._inductor.scheduler").Scheduler
    virtualized = internals("torch._inductor.virtualized").V
    codegen = in_place(scheduler, "codegen")

    def observed(self: Any) -> Any:
        visit(virtualized.graph)
        return codegen(self)

    with thread_local_patch(scheduler, "codegen", observed):
        yield


def register_inductors_operators() -> None:
    """Registers the operators that Inductor adds to `torch.ops.prims`."""
    internals("torch._inductor.inductor_prims")


def launched(lowering: Any) -> list[Any]:
    """Returns the scheduler's nodes that launch something, in order.

    Two kinds of nodes launch nothing: a concatenation in place, and one of several results of a call.
    """
    nothing, element = internals("torch._inductor.scheduler").NopKernelSchedulerNode, _ir().MultiOutput
    nodes: list[Any] = lowering.scheduler.nodes
    return [node for node in nodes if not isinstance(node, nothing) and not isinstance(node.node, element)]


def is_generated(node: Any) -> bool:
    """Returns whether Inductor generates the kernel of a scheduler's node; otherwise it calls a library."""
    return not isinstance(node, internals("torch._inductor.scheduler").ExternKernelSchedulerNode)


def is_inside_another(lowering: Any) -> bool:
    """Returns whether the lowered graph is the body of an operator of another graph."""
    return isinstance(lowering, internals("torch._inductor.graph").SubgraphLowering)


def is_computed(buffer: Any) -> bool:
    """Returns whether one of Inductor's kernels writes the buffer."""
    return isinstance(buffer, _ir().ComputedBuffer)


def output_strides(lowering: Any) -> list[tuple[int, ...] | None]:
    """Returns Inductor's strides of each output; None for outputs that are no tensors."""
    return [
        tuple(map(int, output.get_layout().stride))
        if isinstance(output, _ir().IRNode) and output.has_tensor_output()
        else None
        for output in lowering.graph_outputs
    ]


def _ir() -> Any:
    return internals("torch._inductor.ir")


class WrittenCode(NamedTuple):
    """Holds Inductor's code of one graph."""

    text: str  # a Python module; its `call` takes a list of tensors and runs the graph
    sources: dict[str, str]  # name of a Triton kernel in the text -> its Python module
    # for each launch of a Triton kernel, in order: the names of the scheduler's node and of the kernel.
    launches: tuple[tuple[str, str], ...]


def written_code(lowering: Any) -> WrittenCode:
    """Makes Inductor write the code of a scheduled `GraphLowering`; can be called once per graph."""
    internals("torch._inductor.codegen.wrapper")  # checks the names that are used below
    wrapper, scheduler = lowering.wrapper_code, lowering.scheduler
    launches: list[tuple[str, str]] = []
    write_call = wrapper.generate_kernel_call

    def noted(kernel_name: str, *args: Any, **kwargs: Any) -> Any:
        launches.append((scheduler.current_node.get_name(), kernel_name))
        return write_call(kernel_name, *args, **kwargs)

    wrapper.generate_kernel_call = noted
    # Like GraphLowering.codegen(), but without its second scheduling.
    wrapper.push_codegened_graph(lowering)
    scheduler.codegen()
    text = wrapper.generate(lowering.is_inference)[0].value
    wrapper.pop_codegened_graph()
    return WrittenCode(text, _sources(text), tuple(launches))


# The first two arguments of each `async_compile.triton(...)`: name and source.
def _sources(text: str) -> dict[str, str]:
    calls = (call for call in ast.walk(ast.parse(text)) if isinstance(call, ast.Call))
    return {
        ast.literal_eval(call.args[0]): ast.literal_eval(call.args[1])
        for call in calls
        if ast.unparse(call.func) == "async_compile.triton"
    }
