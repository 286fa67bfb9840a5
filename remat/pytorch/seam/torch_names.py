"""Re-exports types and functions of torch that every package uses although their modules are private."""

# Only `_schema` has an operator's declaration, and only `_cdata` distinguishes storages without memory. The types of
# some public functions are incomplete: this module exports them as `Any`.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# The imports are re-exported.
# ruff: noqa: F401
# pyright: reportUnusedImport=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import SAC_IGNORED_OPS
from torch.utils.checkpoint import checkpoint as checkpoint_call

from remat.pytorch.seam.internals import internals, unsupported

try:
    from torch._C._autograd import _top_saved_tensors_default_hooks
    from torch._dispatch.python import enable_python_dispatcher
    from torch._inductor.custom_graph_pass import CustomGraphPass, CustomPartitionerFn
    from torch._library.utils import get_layout_constraint_tag, is_builtin
    from torch._ops import HigherOrderOperator, OpOverload
    from torch._subclasses.fake_tensor import (
        DataDependentOutputException,
        DynamicOutputShapeException,
        FakeTensor,
        FakeTensorMode,
    )
    from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
    from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
except ImportError as error:
    raise unsupported(str(error)) from None

# Torch 2.11 has no such base class; there, the fields of a pass are parts of the keys of caches.
CustomSchedulerPass: Any = getattr(internals("torch._inductor.custom_graph_pass"), "CustomSchedulerPass", object)

torch_compile: Any = torch.compile
never_asked_about: Any = SAC_IGNORED_OPS
fork_rng: Any = torch.random.fork_rng
assume_constant_result: Any = torch.compiler.assume_constant_result
checkpoint: Any = checkpoint_call
saved_tensors_hooks_in_force: Any = _top_saved_tensors_default_hooks
"""The two functions through which autograd keeps tensors at the moment, as `torch.utils.checkpoint` has set them."""
scoped_library: Any = torch.library._scoped_library
inputs_of: Any = attrgetter("_input_nodes")
"""The nodes that a node uses, each once and in order: the dictionary that `all_input_nodes` copies into a list."""
call_of_node: Any = attrgetter("_args", "_kwargs")
"""The arguments of a node, without the Python call of `args` and `kwargs`."""
has_symbolic_shape: Any = attrgetter("_has_symbolic_sizes_strides")
torch_functions_disabled: Any = torch._C.DisableTorchFunctionSubclass
"""Within it, queries of a fake tensor take half the time, because torch skips the check for overrides."""

_BATCH_NORMS = frozenset(f"aten.{library}_batch_norm.default" for library in ("native", "cudnn", "miopen"))


def is_overload(operator: object) -> bool:
    """Returns whether an object is an operator of `torch.ops` with fixed argument types, such as `aten.add.Tensor`."""
    return isinstance(operator, OpOverload)


def schema_of(operator: object) -> Any:
    """Returns the declaration of an operator: `arguments` and `returns`, each with its aliases; None without one."""
    return operator._schema if isinstance(operator, OpOverload) else None


def argument_of(operator: object, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    """Returns an argument of a call by name: its default if it is not passed, None without a default."""
    schema = schema_of(operator)
    for i, argument in enumerate(schema.arguments if schema else ()):
        if argument.name == name:
            return args[i] if i < len(args) else kwargs.get(name, argument.default_value)
    return None


def with_triton_kernel_name(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Names the Triton kernel of a call in its keyword arguments, and states the constants that it is called with.

    Torch has two numbers there: places in tables of this process. The keyword arguments of other operators are returned
    unchanged.
    """
    if "constant_args_idx" not in kwargs:
        return kwargs
    tables = internals("torch._higher_order_ops.triton_kernel_wrap").kernel_side_table
    kernel = tables.get_kernel(kwargs["kernel_idx"])
    while hasattr(kernel, "fn"):  # a kernel, or what tunes one, holds a function
        kernel = kernel.fn
    constants = tables.get_constant_args(kwargs["constant_args_idx"])
    return {**kwargs, "kernel_idx": kernel.__name__, "constant_args_idx": constants}


def written_arguments(operator: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Returns the leaves of the arguments to which a call writes, by the declaration of its operator."""
    if not is_mutable(operator):
        return []
    names = [argument.name for argument in schema_of(operator).arguments if argument.is_write]
    return tree_leaves([argument_of(operator, args, kwargs, name) for name in names])


def updates_statistics(operator: object) -> bool:
    """Returns whether an operator may write into running statistics, which its schema does not declare."""
    return str(operator) in _BATCH_NORMS


def is_mutable(operator: object) -> bool:
    return isinstance(operator, OpOverload) and bool(operator._schema.is_mutable)


def detached(tensor: Tensor) -> Tensor:
    """Detaches a tensor, also beneath autograd, so that a later write to either changes the version of both."""
    with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.ADInplaceOrView, False):
        return tensor.detach()


def writes_to(tensor: Tensor) -> int:
    """Returns how often operators have written to a tensor; 0 for an inference tensor, where torch does not count."""
    return 0 if tensor.is_inference() else tensor._version


def storage_of(tensor: Tensor) -> int:
    """Returns a number for the storage of a tensor; no two live storages share it.

    It is not the address of the memory, which fake tensors and wrapper subclasses lack.
    """
    return tensor.untyped_storage()._cdata


def stored_parts(tensor: Tensor) -> list[Tensor]:
    """Returns the tensors that hold a tensor's memory: the tensor itself; the indices and values of a sparse one.

    The public `values` of a sparse tensor needs sorted indices.
    """
    return [tensor._indices(), tensor._values()] if tensor.is_sparse else [tensor]


def storage_number(value: object) -> int | None:
    """Returns `storage_of(value)`; None if the value has no storage, like a sparse tensor."""
    try:
        return value.untyped_storage()._cdata if isinstance(value, Tensor) else None
    except NotImplementedError:
        return None
