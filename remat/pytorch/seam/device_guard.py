"""Replaces libtorch's device guard for missing CUDA devices.

C++ code asks the guard of a tensor's device for the current device and stream, also for fake tensors: autograd does for
every node, and so do composite kernels. torch has `FakeGuardImpl` for this: `torch._C._ensureCUDADeviceGuardSet` puts
it in the place of a guard that counts no devices. Builds of torch without CUDA register no guard, and there the
function does nothing. So this module first registers a guard that counts no devices.
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from remat.pytorch.seam.internals import internals, unsupported

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"  # c10::impl::device_guard_impl_registry
_CUDA = 1  # c10::DeviceType::CUDA
_METHODS = 64  # more than the virtual methods of c10::impl::DeviceGuardImplInterface


@contextmanager
def guarded_without_driver() -> Generator[None]:
    """Registers libtorch's fake guard for CUDA devices in a block, and restores the registered guard afterwards."""
    slots = _registry()
    before = slots[_CUDA]
    try:
        if before is None:
            _install(slots)
        else:
            internals("torch._C")._ensureCUDADeviceGuardSet()
        yield
    finally:
        slots[_CUDA] = before


# libtorch replaces a guard whose device count is 0; here, all methods return 0.
def _install(slots: Any) -> None:
    nothing = ctypes.CFUNCTYPE(ctypes.c_long)(lambda: 0)
    method = ctypes.cast(nothing, ctypes.c_void_p).value
    methods = (ctypes.c_void_p * _METHODS)(*[method] * _METHODS)
    guard = (ctypes.c_void_p * 1)(ctypes.addressof(methods))
    slots[_CUDA] = ctypes.addressof(guard)
    internals("torch._C")._ensureCUDADeviceGuardSet()
    if slots[_CUDA] == ctypes.addressof(guard):
        raise unsupported("torch._C._ensureCUDADeviceGuardSet leaves a guard that counts no devices in its place")


# An array of C++ guards, one pointer per device type.
def _registry() -> Any:
    libraries = Path(torch.__file__).parent / "lib"
    for name in ("libc10.so", "libc10.dylib"):
        if (libraries / name).exists():
            try:
                return (ctypes.c_void_p * (_CUDA + 1)).in_dll(ctypes.CDLL(str(libraries / name)), _REGISTRY)
            except ValueError:
                break
    raise unsupported(f"its c10 library has no {_REGISTRY}")
