"""A model on another device for the length of a call: fake tensors in the places of its own, and its own again."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import CellType, FunctionType, MethodType
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

    Modules are looked for where Python code holds them: in lists and closures, among defaults and arguments, in the
    globals that a function names. Tensors are looked for in modules, closures and such globals. Lists and dicts of a
    module are copied for the time, so that what the model puts into them is gone afterwards.

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
    held = _Held()
    held.look_into((model_or_fn, args, kwargs))
    try:
        for cell in held.cells:
            cells.append((cell, cell.cell_contents))
            cell.cell_contents = tree_map(fake, cell.cell_contents)
        for module in held.modules.values():
            own: dict[str, Any] = vars(module)
            for place in (own["_parameters"], own["_buffers"], own):
                before.append((place, dict(place)))
                place.update({name: tree_map(fake, value) for name, value in place.items() if name not in _REGISTERED})
        for place, name in held.named:
            before.append((place, dict(place)))
            place[name] = tree_map(fake, place[name])
        moved_args, moved_kwargs = tree_map(fake, (args, dict(kwargs)))
        yield moved_args, moved_kwargs
    finally:
        for place, content in reversed(before):
            place.clear()
            place.update(content)
        for cell, content in cells:
            cell.cell_contents = content


@dataclass
class _Held:
    """Collects what a callable computes with.

    Attributes:
        modules: by their `id`.
        cells: of closures, with tensors in them.
        named: the globals of a function, and a name in them that stands for a tensor.
        seen: the `id` of everything that was looked into.
    """

    modules: dict[int, nn.Module] = field(default_factory=dict[int, nn.Module])
    cells: list[CellType] = field(default_factory=list[CellType])
    named: list[tuple[dict[str, Any], str]] = field(default_factory=list[tuple[dict[str, Any], str]])
    seen: set[int] = field(default_factory=set[int])

    def look_into(self, value: Any) -> None:
        """Looks into a value, and into all that it refers to."""
        if id(value) in self.seen or isinstance(value, type | Tensor):
            return
        self.seen.add(id(value))
        if isinstance(value, nn.Module):
            self.modules |= {id(module): module for module in value.modules()}
            for module in value.modules():
                self.look_into([held for name, held in vars(module).items() if name not in _REGISTERED])
        elif isinstance(value, FunctionType):
            self._look_into_function(value)
        elif isinstance(value, partial):
            self.look_into([value.func, value.args, value.keywords])
        elif isinstance(value, MethodType):
            self.look_into([value.__self__, value.__func__])
        elif isinstance(value, list | tuple | dict):
            for leaf in tree_leaves(value):
                self.look_into(leaf)
        elif callable(value):
            self.look_into([*getattr(value, "__dict__", {}).values()])

    def _look_into_function(self, function: FunctionType) -> None:
        if function.__module__.partition(".")[0] == "torch":
            return
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # nothing is assigned to it yet
                if _has_tensors(cell.cell_contents):
                    self.cells.append(cell)
                self.look_into(cell.cell_contents)
        self.look_into([function.__defaults__, function.__kwdefaults__])
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, Tensor):
                self.named.append((function.__globals__, name))
            elif isinstance(value, nn.Module | FunctionType | list | tuple | dict):
                self.look_into(value)


def _has_tensors(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in tree_leaves(value))


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
