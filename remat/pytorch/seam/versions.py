"""The one module that knows torch's private names, and how they differ between versions.

Everything that torch's partitioner does around its choice of saved values (common subexpressions,
random numbers, effects, symbolic sizes, the extraction of the two graphs) stays torch's. Only the
choice itself, `choose_saved_values_set`, is swapped for ours while the partitioner runs.

Read and run with torch 2.11.0, 2.13.0 and 2.15.0. Signatures are probed, not version numbers.
"""

# torch's internals carry few types: what comes out of them is unknown to a checker.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib import import_module
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
from torch import fx

from remat.errors import UnsupportedTorch

Chooser: TypeAlias = Callable[[fx.Graph, Any, int], list[fx.Node]]
"""(joint graph, torch's `NodeInfo`, number of forward outputs) -> the values to save."""

_swap = threading.RLock()


@cache
def _partitioners() -> Any:
    """torch's partitioner module, checked for all that is used of it."""
    try:
        from torch._functorch import partitioners
    except ImportError as error:
        raise unsupported(f"torch._functorch.partitioners cannot be imported ({error})") from None
    expected = {
        "min_cut_rematerialization_partition": {"joint_module", "num_fwd_outputs", "static_lifetime_input_indices"},
        "choose_saved_values_set": {"joint_graph", "node_info", "memory_budget"},
        "get_default_op_list": set[str](),
    }
    for name, parameters in expected.items():
        function = getattr(partitioners, name, None)
        if function is None or not parameters <= set(inspect.signature(function).parameters):
            raise unsupported(f"torch._functorch.partitioners.{name}({', '.join(sorted(parameters))}) is gone")
    return partitioners


def unsupported(what: str, verdict: str = "is not supported") -> UnsupportedTorch:
    """The error for a torch without something that `remat` relies on."""
    return UnsupportedTorch(
        f"torch {torch.__version__} {verdict}: {what}. remat works with torch 2.11 to 2.15; install one of those"
    )


def partition(
    joint_module: fx.GraphModule,
    joint_inputs: Sequence[object],
    chooser: Chooser,
    *,
    num_fwd_outputs: int,
    **kwargs: Any,
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Runs torch's partitioner with our choice of saved values.

    The swap is global to the process, so partitions take turns.
    """
    torch_side = _partitioners()
    _torchs_chooser()

    def choose(joint_graph: fx.Graph, node_info: Any, memory_budget: float = 1) -> list[fx.Node]:
        del memory_budget  # torch's own knob; ours comes with the cost model
        return chooser(joint_graph, node_info, num_fwd_outputs)

    with _swap, patch.object(torch_side, "choose_saved_values_set", choose):
        return torch_side.min_cut_rematerialization_partition(
            joint_module, joint_inputs, num_fwd_outputs=num_fwd_outputs, **kwargs
        )


def torchs_choice(joint_graph: fx.Graph, node_info: Any) -> list[fx.Node]:
    """What torch's own partitioner would save, with its own settings."""
    budget = _partitioners().config.activation_memory_budget
    return _torchs_chooser()(joint_graph, node_info, budget)


@cache
def _torchs_chooser() -> Any:
    """torch's own chooser. First called before any swap, so that it is never ours."""
    return _partitioners().choose_saved_values_set


@cache
def op_types() -> Any:
    """torch's lists of fusible, compute-intensive, random and view operators."""
    return _partitioners().get_default_op_list()


@cache
def decompositions() -> Any:
    """What TorchInductor makes of each operator that it does not compile as it is."""
    # Some decompositions look the lowerings up as an attribute of their package.
    import_module("torch._inductor.lowering")
    from torch._inductor.decomposition import select_decomp_table

    return select_decomp_table()


def hint(size: Any) -> int:
    """A number for a possibly symbolic size: its hint, or 4096 as in torch where there is none."""
    if isinstance(size, int):
        return size
    from torch.fx.experimental import symbolic_shapes

    # 2.13 renamed it: the older one guards on unbacked sizes.
    if hasattr(symbolic_shapes, "optimization_hint"):
        return int(symbolic_shapes.optimization_hint(size, fallback=4096))
    return int(symbolic_shapes.size_hint(size, fallback=4096))  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def real_tensors() -> Generator[None]:
    """Lets operators run for real while torch compiles, for an exchange between ranks or a timing.

    Otherwise operators would make fake tensors without contents; and of the error that follows Dynamo makes a
    graph break, so that the model runs eagerly.

    The Python dispatcher is off, too. Through it a collective holds Python's lock while it waits for the lock of
    gloo's queue. The thread that works on the queue holds the queue's lock while it waits for Python's, to free the
    tensors of the collective before. 2 of 11 runs of two ranks never ended (torch 2.13).
    """
    from torch._dispatch.python import no_python_dispatcher
    from torch._subclasses.fake_tensor import unset_fake_temporarily
    from torch.utils._mode_utils import no_dispatch

    with no_dispatch(), unset_fake_temporarily(), no_python_dispatcher():
        yield


def graphs_compiled() -> int:
    """How many graphs Dynamo has had compiled in this process, from caches or not."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]


def fresh_compilation() -> AbstractContextManager[None]:
    """Makes Dynamo trace as if for the first time, whatever was traced before."""
    import torch._dynamo.config as dynamo_config

    return dynamo_config.patch(  # type: ignore[attr-defined]
        # After eight compilations of one piece of code Dynamo runs it eagerly.
        recompile_limit=10**6,
        accumulated_recompile_limit=10**6,
        # A size that was another one the last time, in another model even, would become symbolic.
        automatic_dynamic_shapes=False,
    )


def nothing_donated() -> AbstractContextManager[None]:
    """Has AOTAutograd compile backward passes that write over no saved tensor.

    For partitioners that save a value together with a view of it, like torch's default one: it donates both, and one
    may be overwritten before the other is read (torch 2.13). Our plans never do (`remat.answer.handover`).
    """
    import torch._functorch.config as functorch_config

    return functorch_config.patch(donated_buffer=False)  # type: ignore[attr-defined]
