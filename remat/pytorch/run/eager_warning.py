"""Warns if a compiled model, or a part of it with parameters, runs eagerly, and so without a plan.

Dynamo runs some functions eagerly without a warning. The autograd graph of a call's results shows it: compiled graphs
have nodes of their own there, also those that were compiled before, by this process or in torch's caches. If there is
no such node, and the call compiled nothing, all of it ran eagerly. If an eager node reads a parameter, a part of the
model ran eagerly. It also did if, above a compiled node, a `torch.autograd.Function` of the user's has a node, because
Dynamo did not trace that function.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from remat.pytorch.run.calls import compiled_node, is_compiled
from remat.pytorch.seam.compilations import DYNAMO_SKIPS, function_that_saves, graphs_compiled, name_of
from remat.pytorch.seam.fakes import owned
from remat.pytorch.seam.torch_names import storage_number, tree_leaves

# Operators that take a view or cast, by the names of their nodes in autograd.
_MOVES = {
    *("T", "Transpose", "Permute", "View", "UnsafeView", "ReshapeAlias", "Expand", "Alias", "AsStrided", "ToCopy"),
    *("Select", "Slice", "Narrow", "Split", "SplitWithSizes", "Unbind", "Unfold", "Diagonal", "Squeeze", "Unsqueeze"),
}


def warn_if_skipped(
    compiled: Callable[..., Any], model: Callable[..., Any], note: Callable[[str], None]
) -> Callable[..., Any]:
    """Makes a compiled model warn if its first call that needs gradients runs eagerly, or uses parameters eagerly.

    There is no warning if the eager part of a model has no parameters, or if these are not known: only those of an
    `nn.Module` and of its methods are.

    Args:
        compiled: the result of `torch.compile` for the model. A module is changed in place until that first call.
        note: adds the warning to the report of the model.
    """
    if compiled is model:  # torch's switch for "do not compile" is set
        return compiled
    run: Callable[..., Any] = compiled.forward if isinstance(compiled, nn.Module) else compiled
    pending = True

    @functools.wraps(run)
    def first(*args: Any, **kwargs: Any) -> Any:
        nonlocal pending
        if not pending or torch.compiler.is_dynamo_compiling() or not torch.is_grad_enabled():
            return run(*args, **kwargs)
        before = graphs_compiled()
        # What other models made of the arguments is no part of this one. A call may change an argument.
        ends = {leaf.grad_fn for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)} - {None}
        result = run(*args, **kwargs)
        new_tensors, compiles = _new_tensors(result, model, (args, kwargs)), graphs_compiled() != before
        if new_tensors or compiles:
            pending = False
        if new_tensors and (part := _eager_part(new_tensors, model, ends, compiles=compiles)):
            message = f"{part}. Dynamo skips, for example, {DYNAMO_SKIPS}"
            note(message)
            warnings.warn(message, stacklevel=2)
        if not pending and isinstance(compiled, nn.Module) and compiled.forward is first:
            compiled.forward = run
        return result

    if not isinstance(compiled, nn.Module):
        return first
    compiled.forward = first
    return compiled


def _eager_part(outputs: list[Tensor], model: Callable[..., Any], ends: set[Any], *, compiles: bool) -> str:
    if compiled_node([tensor.grad_fn for tensor in outputs]) is None and not compiles:
        return f"{name_of(model)} runs eagerly, without a plan: Dynamo compiled nothing of it"
    module = getattr(model, "__self__", model)
    parameters = dict(module.named_parameters()) if isinstance(module, nn.Module) else {}
    leaves, functions = _read_eagerly(outputs, ends)
    names = [name for name, parameter in parameters.items() if any(parameter is leaf for leaf in leaves)]
    if not (names or functions):
        return ""
    count = sum(parameter.requires_grad for parameter in parameters.values())
    reads = [f"reads {len(names)} of {count} parameters (the first is {names[0]})"] if names else []
    saves = [f"saves tensors in {functions[0]}, a torch.autograd.Function"] if functions else []
    return (
        f"a part of {name_of(model)} runs eagerly, without a plan, and {' and '.join(reads + saves)}: no prediction or "
        f"budget counts what that part saves"
    )


# Leaves of the autograd graph that an eager operator reads, behind views and casts, and eager functions that save
# tensors. The search ends at `ends`.
def _read_eagerly(outputs: list[Tensor], ends: set[Any]) -> tuple[list[Tensor], list[str]]:
    stack: list[tuple[Any, bool]] = [(tensor.grad_fn, False) for tensor in outputs]
    visited, leaves, functions = set(stack), list[Tensor](), list[str]()
    for node, below_eager in stack:
        if node in ends:
            continue
        # A function that reads nothing of a compiled graph may have run before the call of the model.
        function = None if is_compiled(node) else function_that_saves(node)
        if function and compiled_node([node], ends) is not None:
            functions.append(function)
        if node.name().endswith("AccumulateGrad"):
            leaves += [node.variable] if below_eager else []
            continue
        is_eager = below_eager if _only_moves(node) else not is_compiled(node)
        following = {(source, is_eager) for source, _ in node.next_functions if source is not None}
        stack += following - visited
        visited |= following
    return leaves, functions


# Whether a node only takes a view or casts, as of a parameter before it is read.
def _only_moves(node: Any) -> bool:
    return node.name().rstrip("0123456789").removesuffix("Backward") in _MOVES


# Results that are arguments, or views of arguments, do not count.
def _new_tensors(result: Any, model: Callable[..., Any], args: Any) -> list[Tensor]:
    known = {storage_number(tensor) for tensor in owned(model, args)} | {None}
    results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
    return [tensor for tensor in results if storage_number(tensor) not in known]
