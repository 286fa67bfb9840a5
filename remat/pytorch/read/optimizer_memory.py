"""Measures the memory of an optimizer by two of its steps on fake parameters."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from remat.answer.option_text import split_options
from remat.errors import InvalidOption
from remat.predict.whole_step import OptimizerMemory
from remat.pytorch.seam.thread_patch import thread_local_patch
from remat.pytorch.seam.torch_names import FakeTensorMode, TorchDispatchMode, tree_leaves
from remat.words import near_of

# Bytes of the scalar arguments of an operator, which are tensors for a moment and invisible here.
_NUMBERS = 16

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
"""Makes an optimizer of parameters: a class of `torch.optim`, or `lambda p: torch.optim.SGD(p, momentum=0.9)`."""


# Tracks the storages that operators allocate until they are freed: the bytes that are alive now, and their peak.
class _Live(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.held = self.most = 0
        self._sizes: dict[int, int] = {}

    # Marks storages that do not count.
    def know(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self._follow(tensor.untyped_storage(), 0)

    def count(self, storages: Iterable[torch.UntypedStorage]) -> None:
        for storage in storages:
            self._follow(storage, storage.nbytes())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        self.count(leaf.untyped_storage() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        return result

    def _follow(self, storage: torch.UntypedStorage, size: int) -> None:
        address = id(storage)
        if address in self._sizes:
            return
        self._sizes[address] = size
        self.held += size
        self.most = max(self.most, self.held)
        weakref.finalize(storage, self._free, address)

    def _free(self, address: int) -> None:
        self.held -= self._sizes.pop(address)


def optimizer_memory(make: MakeOptimizer | None, parameters: Sequence[Tensor], *, gpu: bool) -> OptimizerMemory:
    """Measures the memory that an optimizer keeps, and the peaks of its steps.

    Fake tensors replace the parameters, so this takes no memory and no GPU.

    Args:
        make: makes the optimizer of parameters; None for no optimizer.
        parameters: the parameters that it updates; only shapes and dtypes matter.
        gpu: whether to step as on a GPU, where torch's optimizers update all parameters at once by default.
    """
    if make is None or not parameters:
        return OptimizerMemory()
    # While torch compiles, optimizers take other code paths.
    with FakeTensorMode(), thread_local_patch(torch.compiler, "is_compiling", lambda: False):
        return _two_steps(make, [nn.Parameter(torch.empty(p.shape, dtype=p.dtype)) for p in parameters], gpu=gpu)


def _two_steps(make: MakeOptimizer, stand_ins: Sequence[nn.Parameter], *, gpu: bool) -> OptimizerMemory:
    try:
        optimizer = make(stand_ins)
        groups: list[dict[str, Any]] = optimizer.param_groups
    except Exception as error:  # whatever its author raises
        raise InvalidOption(
            f"optimizer must make an optimizer of these parameters, as torch.optim.AdamW does, got {make!r} ({error})"
        ) from error
    for group in groups:
        if gpu and "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True
    peaks: list[int] = []
    live = _Live()
    live.know(stand_ins)
    live.count(_storages(optimizer))  # some optimizers allocate their state at once
    initial = live.held
    for _ in range(2):
        for parameter in stand_ins:
            parameter.grad = torch.empty_like(parameter)
        live.know(p.grad for p in stand_ins if p.grad is not None)
        live.most = live.held
        try:
            with live:
                optimizer.step()
        except Exception as error:  # whatever its author raises
            raise InvalidOption(
                f"optimizer must step without a closure, on dense gradients, and without reading tensors, because a "
                f'forecast has no data; {type(optimizer).__name__} does not: {error}. Take another one, or "none"'
            ) from error
        peaks.append(live.most)
    state = sum({id(storage): storage.nbytes() for storage in _storages(optimizer)}.values())
    return OptimizerMemory(state, peaks[0] + _NUMBERS, peaks[1] + _NUMBERS - state, initial)


def optimizer_from(optimizer: object) -> MakeOptimizer | None:
    """Returns a function that makes an optimizer: the argument, or that of a name with options; None for "none".

    Args:
        optimizer: such a function, None, or a name of `torch.optim` with options: "AdamW", "sgd:momentum=0.9".
    """
    if not isinstance(optimizer, str):
        return cast(MakeOptimizer | None, optimizer)
    if optimizer == "none":
        return None
    name, options = split_options(optimizer)
    classes = {key.lower(): one for key, one in vars(torch.optim).items() if _is_optimizer(one)}
    if name.lower() not in classes:
        raise InvalidOption(f"torch.optim has no optimizer {name!r}{near_of(name.lower(), classes)}")
    return partial(classes[name.lower()], **dict(map(_option, options)))


def _option(text: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    try:
        return key, json.loads(value)
    except ValueError as error:
        raise InvalidOption(
            f"an option of an optimizer must be KEY=VALUE with a value in JSON, such as momentum=0.9 or nesterov=true, "
            f"got {text!r}"
        ) from error


def _is_optimizer(one: Any) -> bool:
    return isinstance(one, type) and issubclass(one, torch.optim.Optimizer) and one is not torch.optim.Optimizer


def _storages(optimizer: torch.optim.Optimizer) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(dict(optimizer.state)) if isinstance(leaf, Tensor)]
