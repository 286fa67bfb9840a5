"""Warns if a compiled model runs eagerly, and so without a plan.

Dynamo runs some functions eagerly without a warning. This module recognizes such a call by three signs: nothing was
compiled during the call, its results need gradients, and their autograd graph has no compiled node. A call that uses
what was compiled before, by this process or in torch's caches, has such a node, and gets no warning.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from remat.pytorch.run.calls import compiled_node
from remat.pytorch.seam.compilations import DYNAMO_SKIPS, graphs_compiled, name_of
from remat.pytorch.seam.fakes import owned
from remat.pytorch.seam.torch_names import storage_number, tree_leaves


def warn_if_skipped(compiled: Callable[..., Any], model: Callable[..., Any]) -> Callable[..., Any]:
    """Makes a compiled model warn if its first call that needs gradients runs eagerly.

    There is no warning if Dynamo compiles a part of the model.

    Args:
        compiled: the result of `torch.compile` for the model. A module is changed in place until that first call.
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
        if graphs_compiled() != before:
            pending = False
        elif made := _new_tensors(result, model, (args, kwargs)):
            pending = False
            if compiled_node(made) is None:
                warnings.warn(
                    f"{name_of(model)} runs eagerly, without a plan: Dynamo compiled nothing of it. "
                    f"It skips, for example, {DYNAMO_SKIPS}",
                    stacklevel=2,
                )
        if not pending and isinstance(compiled, nn.Module) and compiled.forward is first:
            compiled.forward = run
        return result

    if not isinstance(compiled, nn.Module):
        return first
    compiled.forward = first
    return compiled


# Results that are arguments, or views of arguments, do not count.
def _new_tensors(result: Any, model: Callable[..., Any], args: Any) -> list[Tensor]:
    known = {storage_number(tensor) for tensor in owned(model, args)} | {None}
    results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
    return [tensor for tensor in results if storage_number(tensor) not in known]
