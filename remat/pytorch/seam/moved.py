"""A model on another device for the length of a call: fake tensors in the places of its own, and its own again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from functools import partial
from types import CellType
from typing import Any, cast

import torch
from torch import Tensor, nn

from remat.errors import CaptureError
from remat.pytorch.seam.fakes import is_fake
from remat.pytorch.seam.torch_names import FakeTensorMode, tree_leaves, tree_map

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments, and keyword arguments."""

_KINDS = (Tensor, nn.Parameter)
_REGISTERED = ("_parameters", "_buffers", "_modules")


@contextmanager
def moved(
    model_or_fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    device: torch.device,
    mode: FakeTensorMode | None,
) -> Generator[Call]:
    """Gives the arguments as fake tensors on a device, and has the model hold such tensors, too.

    The tensors of a function are those of its closure: there modules are looked into, too.

    Args:
        model_or_fn: a module, a method of one, a `functools.partial`, or a function.
        args, kwargs: what it is called with.
        device: where the fake tensors are said to be.
        mode: the one of the model's and arguments' fake tensors, if they are fake already.

    Raises:
        CaptureError: a tensor is sparse, or of a class of its own.
    """
    mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
    fakes: dict[int, tuple[Tensor, Tensor]] = {}  # with each tensor itself, so that its `id` stays its own

    def fake(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in fakes:
            fakes[id(value)] = value, _fake(value, device, mode)
        return fakes[id(value)][1]

    before: list[tuple[MutableMapping[str, Any], dict[str, Any]]] = []
    cells: list[tuple[CellType, Any]] = []
    modules: dict[int, nn.Module] = {}
    try:
        for holder in _holders(model_or_fn):
            if isinstance(holder, CellType):
                cells.append((holder, holder.cell_contents))
                holder.cell_contents = fake(holder.cell_contents)
            else:
                modules |= {id(module): module for module in holder.modules()}
        for module in modules.values():
            own: dict[str, Any] = vars(module)
            for place in (own["_parameters"], own["_buffers"], own):
                before.append((place, dict(place)))
                place.update(
                    {name: tree_map(fake, value) for name, value in place.items() if _has_tensors(name, value)}
                )
        moved_args, moved_kwargs = tree_map(fake, (args, dict(kwargs)))
        yield moved_args, moved_kwargs
    finally:
        for place, content in before:
            place.clear()
            place.update(content)
        for cell, content in cells:
            cell.cell_contents = content


def _holders(model_or_fn: Any) -> Iterator[Any]:
    """Finds what a callable computes with: modules, and the cells of closures that hold tensors."""
    if isinstance(model_or_fn, nn.Module):
        yield model_or_fn
    elif isinstance(model_or_fn, partial):
        yield from _holders(model_or_fn.func)
    else:
        if isinstance(owner := getattr(model_or_fn, "__self__", None), nn.Module):
            yield owner
        for cell in getattr(model_or_fn, "__closure__", None) or ():
            try:
                content = cell.cell_contents
            except ValueError:  # nothing is assigned to it yet
                continue
            if isinstance(content, Tensor):
                yield cell
            elif callable(content):
                yield from _holders(content)


def _has_tensors(name: str, value: Any) -> bool:
    return name not in _REGISTERED and any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))


def _fake(tensor: Tensor, device: torch.device, mode: FakeTensorMode) -> Tensor:
    if not is_fake(tensor) and (type(tensor) not in _KINDS or tensor.layout != torch.strided):
        raise CaptureError(
            f"a tensor of {type(tensor).__name__}, {tensor.layout}, cannot be captured for another device"
        )
    with mode, torch.no_grad():
        made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    made.requires_grad_(tensor.requires_grad)
    if isinstance(tensor, nn.Parameter):
        made = nn.Parameter(made, tensor.requires_grad)
    if not is_fake(tensor):
        cast(dict[str, Any], made.__dict__).update(tensor.__dict__)  # sizes marked as dynamic, for one
    return made
