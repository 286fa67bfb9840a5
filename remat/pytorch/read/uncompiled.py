"""TorchInductor's pipeline without its code generation: the graphs run as they are, operator by operator."""

# compile_fx is partly untyped.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from torch import fx
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomPartitionerFn


def run_uncompiled(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    partitioner: CustomPartitionerFn,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """A Dynamo backend: traced, passed over and partitioned as for Inductor, then interpreted.

    Args:
        graph_module: Dynamo's forward graph.
        example_inputs: its inputs.
        partitioner: splits the joint graph.
        options: Inductor's settings.
    """
    patches = {
        **(options or {}),
        "custom_partitioner_fn": partitioner,
        # Or a second call would be answered from a cache, without a partition.
        "force_disable_caches": True,
    }
    inner: Any = _interpret  # declared to return an `OutputCode`; any boxed callable will do
    compiled = compile_fx(graph_module, list(example_inputs), inner_compile=inner, config_patches=patches)
    return cast(Callable[..., Any], compiled)


def _interpret(graph_module: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Any]:
    """Stands in for Inductor's code generation."""
    del example_inputs, options

    def run(inputs: list[Any]) -> Any:
        return graph_module.forward(*inputs)

    run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd passes one list
    return run
