"""Finds the modules and tensors that a callable uses, wherever Python code holds them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

from torch import Tensor, nn

from remat.pytorch.seam.torch_names import tree_leaves

REGISTERED = ("_parameters", "_buffers", "_modules")
"""The attributes in which a module holds registered parameters, buffers and modules."""


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
