"""Finds the tensors that a callable uses, puts fake ones in their place, or restores them after a run."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from remat.errors import CaptureError
from remat.pytorch.seam.fakes import is_fake, owned
from remat.pytorch.seam.torch_names import (
    FakeTensorMode,
    fork_rng,
    is_traceable_wrapper_subclass,
    tree_leaves,
    tree_map,
)

REGISTERED = ("_parameters", "_buffers", "_modules")
"""The attributes in which a module holds registered parameters, buffers and modules."""

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""

# The types of tensors of which fake ones can stand in for another device.
_KINDS = (Tensor, nn.Parameter)


def reachable_tensors(model: Callable[..., Any], args: Any) -> list[Tensor]:
    """Returns the parameters and buffers that a model holds from step to step, each once.

    For a module, or a method of one, these are those of the module. For another callable, they are what
    `TensorCollector` finds: for a method, in the attributes of its object; for a function, in its closure, defaults,
    globals and arguments.

    Args:
        args: the arguments of the call. Tensors among them are left out.
    """
    module = getattr(model, "__self__", model)
    if isinstance(module, nn.Module):
        return [*module.parameters(), *module.buffers()]
    collector = TensorCollector()
    collector.look_into((model, args))
    return collector.tensors


@dataclass
class TensorCollector:
    """Collects the modules and tensors that a callable uses."""

    modules: dict[int, nn.Module] = field(default_factory=dict[int, nn.Module])  # by their `id`
    cells: list[CellType] = field(default_factory=list[CellType])  # of closures, with tensors in them
    # the globals of a function, and the name of a tensor in them.
    globals_with_tensors: list[tuple[dict[str, Any], str]] = field(default_factory=list[tuple[dict[str, Any], str]])
    # all searched objects by their `id`; held here, so that an `id` is not reused.
    visited: dict[int, Any] = field(default_factory=dict[int, Any])

    @property
    def tensors(self) -> list[Tensor]:
        """Returns the parameters and buffers of the modules, and the tensors of closures and globals, each once."""
        own = [tensor for one in self.modules.values() for tensor in (*one.parameters(False), *one.buffers(False))]
        contents = [
            *(cell.cell_contents for cell in self.cells),
            *(place[name] for place, name in self.globals_with_tensors),
        ]
        loose = [leaf for leaf in tree_leaves(contents) if isinstance(leaf, Tensor)]
        return list({id(tensor): tensor for tensor in (*own, *loose)}.values())

    def look_into(self, value: Any) -> None:
        if id(value) in self.visited or isinstance(value, type | Tensor):
            return
        self.visited[id(value)] = value
        if isinstance(value, nn.Module):
            self.modules |= {id(module): module for module in value.modules()}
            for module in value.modules():
                self.look_into([held for name, held in vars(module).items() if name not in REGISTERED])
        elif isinstance(value, FunctionType):
            self._look_into_function(value)
        elif isinstance(value, partial):
            self.look_into([value.func, value.args, value.keywords])
        elif isinstance(value, MethodType):
            self._look_into_method(value)
        elif isinstance(value, list | tuple | dict):
            for leaf in tree_leaves(value):
                self.look_into(leaf)
        elif callable(value):
            self.look_into([*getattr(value, "__dict__", {}).values()])

    def _look_into_method(self, method: MethodType) -> None:
        self.look_into([method.__self__, method.__func__])
        if not isinstance(method.__self__, type):  # for example, a trainer that holds its model
            self.look_into([*getattr(method.__self__, "__dict__", {}).values()])

    def _look_into_function(self, function: FunctionType) -> None:
        if function.__module__.partition(".")[0] == "torch":
            return
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # the cell is still empty
                if any(isinstance(leaf, Tensor) for leaf in tree_leaves(cell.cell_contents)):
                    self.cells.append(cell)
                self.look_into(cell.cell_contents)
        self.look_into([function.__defaults__, function.__kwdefaults__])
        for name in function.__code__.co_names:
            value = function.__globals__.get(name)
            if isinstance(value, Tensor):
                self.globals_with_tensors.append((function.__globals__, name))
            elif isinstance(value, nn.Module | FunctionType | list | tuple | dict):
                self.look_into(value)


@contextmanager
def on_fake_device(
    model_or_fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    device: torch.device,
    mode: FakeTensorMode | None,
) -> Generator[Call]:
    """Yields the arguments as fake tensors on a device, while the model holds such tensors, too.

    Modules are found in lists, closures, defaults, arguments and the globals that a function names; tensors, in
    modules, closures and such globals. Lists and dicts of a module are copied meanwhile, so that what the model adds
    to them disappears afterwards.

    Args:
        mode: the mode of the model's and arguments' tensors, if they are fake already.
    """
    mode = mode or FakeTensorMode(allow_non_fake_inputs=True)
    fakes: dict[int, tuple[Tensor, Tensor]] = {}  # holds each tensor, so that its `id` is not reused

    def fake(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in fakes:
            fakes[id(value)] = value, _fake(value, device, mode)
        return fakes[id(value)][1]

    contents: list[tuple[MutableMapping[str, Any], dict[str, Any]]] = []
    cells: list[tuple[CellType, Any]] = []
    collector = TensorCollector()
    collector.look_into((model_or_fn, args, kwargs))
    try:
        for cell in collector.cells:
            cells.append((cell, cell.cell_contents))
            cell.cell_contents = tree_map(fake, cell.cell_contents)
        for module in collector.modules.values():
            own: dict[str, Any] = vars(module)
            for place in (own["_parameters"], own["_buffers"], own):
                contents.append((place, dict(place)))
                place.update({name: tree_map(fake, value) for name, value in place.items() if name not in REGISTERED})
        for place, name in collector.globals_with_tensors:
            contents.append((place, dict(place)))
            place[name] = tree_map(fake, place[name])
        moved_args, moved_kwargs = tree_map(fake, (args, dict(kwargs)))
        yield moved_args, moved_kwargs
    finally:
        for place, content in reversed(contents):
            place.clear()
            place.update(content)
        for cell, content in cells:
            cell.cell_contents = content


def _fake(tensor: Tensor, device: torch.device, mode: FakeTensorMode) -> Tensor:
    if not is_fake(tensor) and (type(tensor) not in _KINDS or tensor.layout != torch.strided):
        raise CaptureError(
            f"a tensor of {type(tensor).__name__}, {tensor.layout}, cannot be captured for another device"
        )
    with mode, torch.no_grad():
        copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    copy.requires_grad_(tensor.requires_grad)
    if isinstance(tensor, nn.Parameter):
        copy = nn.Parameter(copy, tensor.requires_grad)
    if not is_fake(tensor):
        cast(dict[str, Any], copy.__dict__).update(tensor.__dict__)  # for example, sizes that are marked as dynamic
    return copy


@contextmanager
def put_back(model_or_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Generator[None]:
    """Restores what forward passes change, also after an error.

    It restores the contents of the module's parameters and buffers and of the arguments, and the random number
    generators of torch, numpy and Python.

    Args:
        model_or_fn: a module, a method of one, or a function (whose closure is not searched).
    """
    tensors = [part for tensor in owned(model_or_fn, (args, kwargs)) for part in _parts(tensor)]
    tracked = [tensor for tensor in tensors if not tensor.is_inference() and not is_fake(tensor)]
    before = [(tensor, tensor._version, tensor.detach().clone()) for tensor in tracked]
    pythons, numpys = random.getstate(), np.random.get_state()
    try:
        with fork_rng():
            yield
    finally:
        random.setstate(pythons)
        np.random.set_state(numpys)
        with torch.no_grad():
            for tensor, version, content in before:
                # Batch normalisation updates its statistics without counting a version.
                if tensor._version != version or not _equal(tensor, content):
                    tensor.copy_(content)


# A jagged tensor has values and offsets in separate storages.
def _parts(tensor: Tensor) -> list[Tensor]:
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    names, _ = tensor.__tensor_flatten__()
    return [part for name in names for part in _parts(getattr(tensor, name))]


def _equal(tensor: Tensor, content: Tensor) -> bool:
    try:
        return torch.equal(tensor, content)
    except NotImplementedError:  # for example for sparse tensors, which are then always restored
        return False
