"""Warns if a compiled model, or a part of it with parameters, runs eagerly, and so without a plan.

Dynamo runs some functions eagerly without a warning. The autograd graph of a call's results shows it: compiled graphs
have nodes of their own there, also those that were compiled before, by this process or in torch's caches. If there is
no such node, nothing was compiled. If an eager node reads a parameter, a part of the model runs eagerly.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from remat.pytorch.run.calls import compiled_node, is_compiled
from remat.pytorch.seam.compilations import DYNAMO_SKIPS, graphs_compiled, name_of
from remat.pytorch.seam.fakes import owned
from remat.pytorch.seam.torch_names import storage_number, tree_leaves


def warn_if_skipped(
    compiled: Callable[..., Any], model: Callable[..., Any], note: Callable[[str], None]
) -> Callable[..., Any]:
    """Makes a compiled model warn if its first call that needs gradients runs eagerly, or uses parameters eagerly.

    There is no warning if the eager part of a model has no parameters.

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
        result = run(*args, **kwargs)
        made = _new_tensors(result, model, (args, kwargs))
        if made or graphs_compiled() != before:
            pending = False
        if made and (part := _eager_part(made, model, (args, kwargs))):
            told = f"{part}. Dynamo skips, for example, {DYNAMO_SKIPS}"
            note(told)
            warnings.warn(told, stacklevel=2)
        if not pending and isinstance(compiled, nn.Module) and compiled.forward is first:
            compiled.forward = run
        return result

    if not isinstance(compiled, nn.Module):
        return first
    compiled.forward = first
    return compiled


def _eager_part(made: list[Tensor], model: Callable[..., Any], args: Any) -> str:
    if compiled_node(made) is None:
        return f"{name_of(model)} runs eagerly, without a plan: Dynamo compiled nothing of it"
    module = getattr(model, "__self__", model)
    named = dict(module.named_parameters()) if isinstance(module, nn.Module) else {}
    read = _read_eagerly(made, [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)])
    eager = [name for name, parameter in named.items() if any(parameter is leaf for leaf in read)]
    if not eager:
        return ""
    count = sum(parameter.requires_grad for parameter in named.values())
    return (
        f"a part of {name_of(model)} runs eagerly, without a plan, and reads {len(eager)} of {count} parameters "
        f"(the first is {eager[0]}): no prediction or budget counts what that part saves"
    )


# Leaves of the autograd graph that an eager operator reads, behind views and casts. The search ends at the arguments:
# what other models made of them is no part of this one.
def _read_eagerly(made: list[Tensor], args: list[Tensor]) -> list[Tensor]:
    ends = {tensor.grad_fn for tensor in args if tensor.grad_fn is not None}
    stack: list[tuple[Any, bool]] = [(tensor.grad_fn, False) for tensor in made]
    seen, found = set(stack), list[Tensor]()
    for node, below_eager in stack:
        if node in ends:
            continue
        if (leaf := getattr(node, "variable", None)) is not None:
            found += [leaf] if below_eager else []
            continue
        is_eager = below_eager if _moves(node) else not is_compiled(node)
        following = {(source, is_eager) for source, _ in node.next_functions if source is not None}
        stack += following - seen
        seen |= following
    return found


# Whether a node only reshapes or casts, as of a parameter before it is read.
def _moves(node: Any) -> bool:
    return node.name().rstrip("0123456789") in _MOVES


_MOVES = {
    f"{name}Backward"
    for name in ("T", "Transpose", "Permute", "View", "UnsafeView", "Expand", "AsStrided", "Alias", "ToCopy")
}


# Results that are arguments, or views of arguments, do not count.
def _new_tensors(result: Any, model: Callable[..., Any], args: Any) -> list[Tensor]:
    known = {storage_number(tensor) for tensor in owned(model, args)} | {None}
    results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
    return [tensor for tensor in results if storage_number(tensor) not in known]
