"""Creates fake tensors, which have sizes but no contents: a model of any size is captured without its memory."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.fx.experimental import symbolic_shapes

from remat.errors import CaptureError
from remat.pytorch.seam.internals import internals
from remat.pytorch.seam.symbols import assumed_size
from remat.pytorch.seam.thread_patch import torchs_own
from remat.pytorch.seam.torch_names import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    tree_leaves,
    tree_map,
)

_HOW = "build model and arguments within one `with torch._subclasses.FakeTensorMode():`, or all of them outside"


def is_fake(tensor: object) -> TypeGuard[FakeTensor]:
    """Returns whether a tensor has no contents, so that there is nothing to compare or restore."""
    return isinstance(tensor, FakeTensor)


class _Claimed(Tensor):
    """Pretends to be on another device, but is in host memory; operators get a fake tensor in its place."""

    fake: FakeTensor
    host: Tensor

    @property
    def device(self) -> torch.device:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.fake.device

    # torch's `tolist` works only for its own class.
    def tolist(self) -> Any:
        host: Any = self.host
        return host.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types

        def unwrapped(value: Any) -> Any:
            return value.fake if isinstance(value, cls) else value

        args, kwargs = tree_map(unwrapped, (args, kwargs or {}))
        return func(*args, **kwargs)


def constant_zeros(fake: FakeTensor) -> Tensor:
    """Returns zeros like a fake tensor, for a constant of a graph: Inductor reads the numbers of small constants.

    If the device is missing, the zeros are in host memory but report that device.
    """
    there = fake.device.type != "cuda" or torchs_own(torch.cuda, "is_available")()
    zeros = torch.zeros(fake.shape, dtype=fake.dtype, device=fake.device if there else "cpu")
    if there:
        return zeros
    claimed: Any = torch.Tensor._make_subclass(_Claimed, zeros)
    claimed.fake, claimed.host = fake, zeros
    return claimed


def in_mode(mode: FakeTensorMode, constant: Tensor) -> FakeTensor:
    return constant.fake if isinstance(constant, _Claimed) else mode.from_tensor(constant, static_shapes=True)


def owned(model: Callable[..., Any], args: Any) -> list[Tensor]:
    """Returns the tensors that stay alive during every step: parameters, buffers, arguments.

    Args:
        model: a module, a method of one, or a function (whose closure is not searched).
    """
    model = getattr(model, "__self__", model)
    own = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
    own = [tensor for tensor in own if not nn.parameter.is_lazy(tensor)]  # an uninitialized one has no memory yet
    return [*own, *(leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor))]


@contextmanager
def in_their_mode(model_or_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Generator[None]:
    """Runs the block in the `FakeTensorMode` of model and arguments, if these are fake.

    Constants that the model creates are then fake, too.
    """
    mode = mode_of(model_or_fn, args, kwargs)
    if mode is None:
        yield
        return
    try:
        with mode:
            yield
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise CaptureError(
            f"the model reads the contents of a tensor ({error}), and fake tensors have none: capture it with real ones"
        ) from error
    except AssertionError as error:
        if "FakeTensorMode" not in str(error):
            raise  # the model's own
        raise CaptureError(f"the model uses a real tensor beside fake ones: {_HOW} ({error})") from error


def mode_of(model_or_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FakeTensorMode | None:
    """Returns the mode of the model's and arguments' fake tensors; None if they are real."""
    tensors = owned(model_or_fn, (args, kwargs))
    fakes = [tensor for tensor in tensors if is_fake(tensor)]
    if any(tensor.device.type == "meta" for tensor in tensors):
        raise CaptureError(
            "capture() needs a device to lower operators for, got tensors on the meta device: for sizes without "
            "memory, build model and arguments within `with torch._subclasses.FakeTensorMode():`"
        )
    entered = internals("torch._guards").detect_fake_mode()
    if not fakes and entered is None:
        return None
    if len(fakes) < len(tensors):
        raise CaptureError(
            f"capture() takes fake tensors or real ones, got {len(fakes)} fake of {len(tensors)} parameters, buffers "
            f"and arguments: {_HOW}"
        )
    modes = {id(mode): mode for mode in (*(tensor.fake_mode for tensor in fakes), entered) if mode is not None}
    if len(modes) > 1:
        raise CaptureError(f"capture() got fake tensors of several modes: {_HOW}")
    return next(iter(modes.values()))


@contextmanager
def real_tensors() -> Generator[None]:
    """Makes operators run for real while torch compiles, for an exchange between ranks or a timing.

    Otherwise operators would create fake tensors without contents, and Dynamo would turn the resulting error into a
    graph break, so that the model runs eagerly.

    The Python dispatcher is off, too. Through it, a collective holds Python's lock while it waits for the lock of
    gloo's queue. The thread of the queue holds the queue's lock while it waits for Python's, to free the tensors of the
    previous collective. 2 of 11 runs of two ranks never ended (torch 2.13).
    """
    with (
        internals("torch.utils._mode_utils").no_dispatch(),
        internals("torch._subclasses.fake_tensor").unset_fake_temporarily(),
        internals("torch._dispatch.python").no_python_dispatcher(),
    ):
        yield


def hint(size: Any) -> int:
    """Returns a number for a possibly symbolic size: its hint, or 4096 as in torch if it has none.

    Within `remat.pytorch.seam.symbols.assumed`, it is the size that follows from the assumed ones.
    """
    if isinstance(size, int):
        return size
    if (number := assumed_size(size)) is not None:
        return number
    sizes: Any = symbolic_shapes
    # Renamed in 2.13; the older function guards on unbacked sizes.
    number = getattr(sizes, "optimization_hint", None) or sizes.size_hint
    return int(number(size, fallback=4096))
