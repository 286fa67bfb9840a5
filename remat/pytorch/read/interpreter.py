"""Runs TorchInductor's pipeline without its code generation: graphs run as they are, operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from remat.pytorch.seam.inductor_lowering import compile_fx, interpret
from remat.pytorch.seam.torch_names import CustomPartitionerFn


def run_uncompiled(
    graph_module: fx.GraphModule,
    example_inputs: Sequence[Any],
    partitioner: CustomPartitionerFn,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Runs a graph of Dynamo's as a backend: passed over and partitioned as for Inductor, then interpreted."""
    patches = {
        **(options or {}),
        "custom_partitioner_fn": partitioner,
        # Or a second call would be answered from a cache, without a partition.
        "force_disable_caches": True,
    }
    return compile_fx(graph_module, example_inputs, patches, inner_compile=interpret)
