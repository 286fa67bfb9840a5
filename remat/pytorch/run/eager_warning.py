"""Warns if a compiled model runs eagerly, and so without a plan.

Dynamo gives up on some functions without a word. Whether it did is told from what is left behind: a call
during which nothing was compiled, whose results need gradients, and whose backward pass holds no compiled
part. Nothing is said of a call from a cache, Dynamo's or the compiler's: its backward pass holds one.
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
    """Makes `compiled` warn if its first call that needs gradients ran eagerly.

    A model of which Dynamo compiles some part gets no warning for the rest.

    Args:
        compiled: what `torch.compile` made of the model; a module is changed in place, and only up to
            that first call.
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


# Arguments and views of them do not count.
def _new_tensors(result: Any, model: Callable[..., Any], args: Any) -> list[Tensor]:
    known = {storage_number(tensor) for tensor in owned(model, args)} | {None}
    results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and leaf.grad_fn is not None]
    return [tensor for tensor in results if storage_number(tensor) not in known]
