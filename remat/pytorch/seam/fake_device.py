"""Moves a model to another device during a call, with fake tensors instead of its own tensors."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, MutableMapping
from contextlib import contextmanager
from types import CellType
from typing import Any, cast

import torch
from torch import Tensor, nn

from remat.errors import CaptureError
from remat.pytorch.seam.fakes import is_fake
from remat.pytorch.seam.reachable import REGISTERED, TensorCollector
from remat.pytorch.seam.torch_names import FakeTensorMode, tree_map

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""

_KINDS = (Tensor, nn.Parameter)


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
