"""Makes torch and Triton compile for a missing GPU, with answers of a driver from a data sheet.

Tensors must be fake: nothing is allocated, launched or timed. What Inductor decides by timing is unknown without a
GPU: the padding of matrix products is turned off, and a setting that makes Inductor time kernels is an error.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from remat.errors import InvalidOption, NotInstalled, UnsupportedTorch
from remat.pytorch.seam.driver_answers import always, device_table, torch_cuda, triton_driver
from remat.pytorch.seam.gpu_sheets import SHEETS, GpuSheet, sheet_of
from remat.pytorch.seam.internals import internals, unsupported
from remat.pytorch.seam.thread_patch import thread_local_patch
from remat.pytorch.seam.torch_names import FakeTensorMode, TorchDispatchMode
from remat.words import pip_install

TRITON_FOR: dict[str, str] = {"2.11": "3.6", "2.13": "3.7", "2.14": "3.8", "2.15": "3.9"}
"""Release of torch -> the release of Triton that comes with it."""

_DECIDED_BY_TIMING = (
    "max_autotune",
    "max_autotune_gemm",
    "max_autotune_pointwise",
    "coordinate_descent_tuning",
    "benchmark_fusion",
    "benchmark_combo_kernel",
)

# Names and numbers of libtorch's C++ code, for `_guarded_without_driver`.
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"  # c10::impl::device_guard_impl_registry
_CUDA = 1  # c10::DeviceType::CUDA
_METHODS = 64  # more than the virtual methods of c10::impl::DeviceGuardImplInterface

# Held inside `virtual_gpu`: a process has one Triton driver and one torch table of devices.
_one_at_a_time = threading.RLock()


def device_of(name: object) -> tuple[torch.device, Callable[[], AbstractContextManager[object]]]:
    """Returns the device with a name, and a function that makes the context in which torch compiles for it.

    Args:
        name: a torch device, such as "cpu" or, on a machine with a GPU, "cuda"; or a GPU's sheet or its name.
    """
    if isinstance(name, torch.device | str) and str(name).split(":")[0] in ("cpu", "cuda"):
        try:
            device = torch.device(name)
        except RuntimeError as error:
            raise InvalidOption(f"device must name a device of torch, got {name!r} ({error})") from None
        if device.type == "cuda" and not torch.cuda.is_available():
            raise NotInstalled(
                f"device={str(name)!r} needs a GPU in this machine; to compile for one that it does not have, name it: "
                f"'a100', 'h100' or 'h200'"
            )
        return device, ExitStack
    sheet = sheet_of(name)  # pyright: ignore[reportArgumentType]  # it raises for other objects
    require_triton()
    return torch.device("cuda", 0), lambda: virtual_gpu(sheet)


def captured_for(meta: Mapping[str, str]) -> str | GpuSheet:
    """Returns the device for which a graph was captured: a GPU by its sheet, otherwise this machine's device."""
    if meta.get("device") != "cuda":
        return "cpu"
    return next((sheet for sheet in SHEETS.values() if sheet.name == meta.get("gpu")), "cuda")


@contextmanager
def virtual_gpu(gpu: str | GpuSheet = "h100") -> Generator[GpuSheet]:
    """Makes this thread compile for a GPU, with fake tensors, on a machine without that GPU.

    Inside, `torch.cuda` answers from the GPU's data sheet, Inductor takes its Triton path, and Triton compiles for the
    GPU's architecture. Everything is restored afterwards. If the machine has a GPU of this name, nothing is replaced.
    To capture a model, use `remat.capture(model, *args, device=...)`.

    Args:
        gpu: "a100", "a100-40gb", "h100", "h200", or a sheet.

    Raises:
        UnknownName: no sheet has this name.
        NotInstalled: Triton is missing.
        UnsupportedTorch: Triton does not match this torch, or one of them lacks a function that this uses.
        InvalidOption: Inductor is set to choose kernels by timing.
    """
    sheet = sheet_of(gpu)
    if torch.cuda.is_available() and torch.cuda.get_device_name() == sheet.name:
        yield sheet
        return
    require_triton()
    with _one_at_a_time, ExitStack() as stack:
        stack.callback(_forget)
        for exchange in (
            _guarded_without_driver(),
            device_table(sheet),  # before `torch_cuda` reports a device: the machine's own must be registered first
            torch_cuda(sheet),
            triton_driver(sheet),
            _inductor(),
            _layouts_of_cudnn(),
            _no_device_for_fakes(),
        ):
            stack.enter_context(exchange)
        _forget()
        yield sheet


def require_triton() -> None:
    """Raises `NotInstalled` without Triton, and `UnsupportedTorch` if Triton does not match torch."""
    try:
        installed = version("triton")
    except PackageNotFoundError:
        raise NotInstalled(f"compiling for a GPU needs Triton: {pip_install('gpu')}") from None
    needed = TRITON_FOR.get(".".join(torch.__version__.split(".")[:2]))
    if needed is not None and not installed.startswith(f"{needed}."):
        how = f"pip install 'triton=={needed}.*'"
        raise UnsupportedTorch(f"torch {torch.__version__} needs Triton {needed}, but {installed} is installed: {how}")


@contextmanager
def _inductor() -> Generator[None]:
    config = internals("torch._inductor.config")
    timed = [name for name in _DECIDED_BY_TIMING if getattr(config, name, False)]
    if timed:
        raise InvalidOption(
            f"torch._inductor.config.{timed[0]} has Inductor choose kernels by timing them, which takes a GPU: turn it "
            f"off to compile for one that this machine does not have"
        )
    # torch's static launchers keep no `CompiledKernel` with PTX and cubin; the setting was renamed in 2.13.
    launchers = [name for name in ("use_static_triton_launcher", "use_static_cuda_launcher") if hasattr(config, name)]
    folder = internals("torch._inductor.fx_passes.joint_graph").UniformValueConstantFolder
    deduce = folder._deduce_value

    def on_the_host(self: Any, node: Any) -> Any:
        with _OnTheHost():
            return deduce(self, node)

    with (
        config.patch(shape_padding=False, **dict.fromkeys(launchers, False)),
        thread_local_patch(folder, "_deduce_value", on_the_host),
    ):
        yield


# Inductor reads the number of one-element constants that it creates on the GPU; here they are created on the CPU.
class _OnTheHost(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = torch.device("cpu")
        return func(*args, **kwargs)


# As `cudnn_conv_suggest_memory_format` of torch 2.13, which only builds with cuDNN call. Without it, a channels-last
# network would copy its images before and after each convolution.
@contextmanager
def _layouts_of_cudnn() -> Generator[None]:
    torch_c, last = internals("torch._C"), {4: torch.channels_last, 5: torch.channels_last_3d}
    original = torch_c._conv_determine_backend_memory_format
    suggested = internals("torch._prims_common").suggest_memory_format

    def memory_format(image: Any, filters: Any, backend: Any) -> Any:
        if image.device.type != "cuda":
            return original(image, filters, backend)
        channels_last = last.get(filters.dim(), torch.contiguous_format)
        is_last = image.dtype != torch.float64 and channels_last in (suggested(image), suggested(filters))
        return channels_last if is_last else torch.contiguous_format

    with thread_local_patch(torch_c, "_conv_determine_backend_memory_format", memory_format):
        yield


# Fake tensors must not call a driver, although `torch.cuda` reports one.
@contextmanager
def _no_device_for_fakes() -> Generator[None]:
    with (
        patch.object(FakeTensorMode, "avoid_device_init", True),
        # torch 2.11 would create a real tensor there.
        thread_local_patch(internals("torch._subclasses.fake_tensor"), "init_gpu_context", always(None)),
    ):
        yield


# Clears caches of facts about devices; tables of patterns stay, because they are made only once.
def _forget() -> None:
    triton, utilities = internals("torch.utils._triton").__dict__, internals("torch._inductor.utils").__dict__
    properties: Any = internals("torch._inductor.runtime.hints").DeviceProperties.create
    for function in (*triton.values(), *utilities.values(), properties):
        if hasattr(function, "cache_clear"):
            function.cache_clear()


# C++ code asks the guard of a tensor's device for the current device and stream, also for fake tensors: autograd does
# for every node, and so do composite kernels. torch has `FakeGuardImpl` for this: `torch._C._ensureCUDADeviceGuardSet`
# puts it in the place of a guard that counts no devices. Builds of torch without CUDA register no guard, and there the
# function does nothing. So a guard that counts no devices is registered first.
@contextmanager
def _guarded_without_driver() -> Generator[None]:
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
