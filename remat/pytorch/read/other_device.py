"""Captures a model for another device than its own: a GPU, even on a machine without one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from remat.errors import CaptureError, RematError
from remat.pytorch.seam.autograd_walk import grad, no_hook
from remat.pytorch.seam.compilations import name_of
from remat.pytorch.seam.fakes import mode_of, owned
from remat.pytorch.seam.fused_attention import attention_of
from remat.pytorch.seam.gpu_sheets import GpuSheet
from remat.pytorch.seam.reachable import Call, on_fake_device
from remat.pytorch.seam.thread_patch import thread_local_patch
from remat.pytorch.seam.torch_names import DataDependentOutputException, DynamicOutputShapeException
from remat.pytorch.seam.virtual_gpu import device_of

# Torch's errors for tensors on two devices; torch 2.11 has the second one.
_TWO_DEVICES = ("on the same device", "two different devices")


@contextmanager
def arguments_on(
    device: Any, model_or_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Generator[Call]:
    """Yields the arguments with which to call a model so that it is traced for a device.

    Args:
        device: as in `remat.capture`; None for the device of the model.
    """
    if device is None:
        _require_driver(model_or_fn, args, kwargs)
        yield args, dict(kwargs)
        return
    target, enter = device_of(device)
    mode = mode_of(model_or_fn, args, kwargs)
    try:
        with enter() as sheet, on_fake_device(model_or_fn, args, kwargs, target, mode) as call, _autograd(sheet):
            yield call
    except Exception as error:
        cause = _cause(error)
        where = f"{name_of(model_or_fn)} cannot be captured for device={device!r}"
        read = cause.__cause__ if isinstance(cause, RematError) else cause
        if isinstance(read, DataDependentOutputException | DynamicOutputShapeException):
            raise CaptureError(
                f"{where}: it reads the contents of a tensor ({read}), but tensors are fake there: capture it without "
                f"device=, and name the GPU in the call that takes the graph"
            ) from error
        if isinstance(cause, RematError):
            raise cause from None
        if any(words in str(cause) for words in _TWO_DEVICES):
            where += ", as a tensor of it stays on the CPU: make tensors with device=, and hold them in a module"
        raise CaptureError(f"{where}, with fake tensors on {target}: {_first_line(cause)}") from error


# While it traces, libtorch would call a driver, which may be missing.
@contextmanager
def _autograd(sheet: object) -> Generator[None]:
    if not isinstance(sheet, GpuSheet):
        yield
        return
    with (
        thread_local_patch(torch.autograd, "grad", grad),
        thread_local_patch(torch.Tensor, "register_hook", no_hook),
        attention_of(sheet),
    ):
        yield


# With fake tensors on a missing GPU, libtorch would end the process without an exception.
def _require_driver(model_or_fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    there = torch.cuda.is_available()
    if not there and any(tensor.device.type == "cuda" for tensor in owned(model_or_fn, (args, kwargs))):
        raise CaptureError("there is no GPU in this machine: name the one to capture for, as in device='a100'")


# Dynamo wraps errors in its own, and hides ours behind them.
def _cause(error: BaseException) -> BaseException:
    first, outer = error, error
    while outer.__context__ is not None:
        outer = outer.__cause__ or outer.__context__
        if isinstance(outer, RematError):
            return outer
    while (inner := first.__cause__ or (None if first.__suppress_context__ else first.__context__)) is not None:
        if isinstance(inner, LookupError | AttributeError | ImportError):  # from an attempt that torch handled
            break
        first = inner
    return first


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].endswith(" raised:"):  # Dynamo names the backend first
        del lines[0]
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}"
