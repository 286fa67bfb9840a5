"""Lets torch and Triton compile for a GPU that is not there, with a driver's answers from a data sheet.

Tensors must be fake: nothing is allocated, launched or timed. What Inductor decides by timing (whether to pad a
matrix product, which configuration of a kernel wins, max-autotune) cannot be known without a GPU, and is turned off.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any
from unittest.mock import patch

import torch

from remat.errors import InvalidOption, NotInstalled, UnsupportedTorch
from remat.pytorch.seam.device_guard import guarded_without_driver
from remat.pytorch.seam.driver_answers import device_table, torch_cuda, triton_driver
from remat.pytorch.seam.gpu_sheets import SHEETS, GpuSheet, sheet_of
from remat.pytorch.seam.internals import internals
from remat.pytorch.seam.thread_patch import thread_local_patch
from remat.pytorch.seam.torch_names import FakeTensorMode, TorchDispatchMode

TRITON_FOR: dict[str, str] = {"2.11": "3.6", "2.13": "3.7", "2.15": "3.9"}
"""Releases of torch, and of the Triton that each is released with."""

_DECIDED_BY_TIMING = (
    "max_autotune",
    "max_autotune_gemm",
    "max_autotune_pointwise",
    "coordinate_descent_tuning",
    "benchmark_fusion",
    "benchmark_combo_kernel",
)

# Held inside `virtual_gpu`: Triton has one driver in a process, and torch one table of devices.
_one_at_a_time = threading.RLock()


def device_of(name: object) -> tuple[torch.device, Callable[[], AbstractContextManager[object]]]:
    """Returns the device that a caller names, and the context in which torch compiles for it.

    Args:
        name: a device of torch, such as "cpu" or, where there is a GPU, "cuda"; or a GPU's sheet or its name.
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
    sheet = sheet_of(name)  # pyright: ignore[reportArgumentType]  # which refuses what is no name
    require_triton()
    return torch.device("cuda", 0), lambda: virtual_gpu(sheet)


def captured_for(meta: Mapping[str, str]) -> str | GpuSheet:
    """Returns the device that a graph was captured for: a GPU by its sheet, or else what this machine has."""
    if meta.get("device") != "cuda":
        return "cpu"
    return next((sheet for sheet in SHEETS.values() if sheet.name == meta.get("gpu")), "cuda")


@contextmanager
def virtual_gpu(gpu: str | GpuSheet = "h100") -> Generator[GpuSheet]:
    """Lets this thread compile for a GPU, with fake tensors, on a machine that has none.

    Inside, `torch.cuda` answers from the GPU's data sheet, Inductor takes its Triton path, and Triton compiles for the
    GPU's architecture. Everything is as it was afterwards. Where the machine has a GPU of this very name, nothing is
    exchanged at all. To capture a model, `remat.capture(model, *args, device=...)` is the way.

    Args:
        gpu: "a100", "a100-40gb", "h100", "h200", or a sheet.

    Raises:
        UnknownName: there is no sheet of that name.
        NotInstalled: Triton is missing.
        UnsupportedTorch: Triton is not the one for this torch, or one of them lacks what this relies on.
        InvalidOption: Inductor is set to choose kernels by timing them.
    """
    sheet = sheet_of(gpu)
    if torch.cuda.is_available() and torch.cuda.get_device_name() == sheet.name:
        yield sheet
        return
    require_triton()
    with _one_at_a_time, ExitStack() as stack:
        stack.callback(_forget)
        stack.enter_context(guarded_without_driver())
        for exchange in (
            device_table,  # before `torch.cuda` counts a device: those of the machine itself are registered first
            torch_cuda,
            triton_driver,
            _inductor,
            _layouts_of_cudnn,
            _no_device_for_fakes,
        ):
            stack.enter_context(exchange(sheet))
        _forget()
        yield sheet


def require_triton() -> None:
    """Raises `NotInstalled` without Triton, and `UnsupportedTorch` if it is one for another torch."""
    try:
        found = version("triton")
    except PackageNotFoundError:
        raise NotInstalled("compiling for a GPU needs Triton: pip install 'remat[gpu]'") from None
    wanted = TRITON_FOR.get(".".join(torch.__version__.split(".")[:2]))
    if wanted is not None and not found.startswith(f"{wanted}."):
        how = f"pip install 'triton=={wanted}.*'"
        raise UnsupportedTorch(f"torch {torch.__version__} goes with Triton {wanted}, but {found} is installed: {how}")


@contextmanager
def _inductor(sheet: GpuSheet) -> Generator[None]:
    del sheet
    config = internals("torch._inductor.config")
    timed = [name for name in _DECIDED_BY_TIMING if getattr(config, name, False)]
    if timed:
        raise InvalidOption(
            f"torch._inductor.config.{timed[0]} has Inductor choose kernels by timing them, which takes a GPU: turn it "
            f"off to compile for one that this machine does not have"
        )
    # Launchers that torch loads itself keep no `CompiledKernel`, with its PTX and cubin; the name moved in 2.13.
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


# Inductor takes the number out of constants of one element that it makes on the GPU.
class _OnTheHost(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = torch.device("cpu")
        return func(*args, **kwargs)


# As `cudnn_conv_suggest_memory_format` of torch 2.13, which asks only if it was built with cuDNN. Without it, a network
# with channels last would copy its images before and after each convolution.
@contextmanager
def _layouts_of_cudnn(sheet: GpuSheet) -> Generator[None]:
    del sheet
    torch_c, last = internals("torch._C"), {4: torch.channels_last, 5: torch.channels_last_3d}
    asked = torch_c._conv_determine_backend_memory_format
    suggested = internals("torch._prims_common").suggest_memory_format

    def memory_format(image: Any, filters: Any, backend: Any) -> Any:
        if image.device.type != "cuda":
            return asked(image, filters, backend)
        wanted = last.get(filters.dim(), torch.contiguous_format)
        kept = image.dtype != torch.float64 and wanted in (suggested(image), suggested(filters))
        return wanted if kept else torch.contiguous_format

    with thread_local_patch(torch_c, "_conv_determine_backend_memory_format", memory_format):
        yield


# Fake tensors must call no driver, though `torch.cuda` says that it is available.
@contextmanager
def _no_device_for_fakes(sheet: GpuSheet) -> Generator[None]:
    del sheet

    def nothing_to_wake(device: torch.device) -> None:  # torch 2.11 makes a real tensor there
        del device

    fake_tensor = internals("torch._subclasses.fake_tensor")
    with (
        patch.object(FakeTensorMode, "avoid_device_init", True),
        thread_local_patch(fake_tensor, "init_gpu_context", nothing_to_wake),
    ):
        yield


# Tables of patterns stay: they are made only once.
def _forget() -> None:
    for remembered in _remembering():
        remembered.cache_clear()


def _remembering() -> Iterator[Any]:
    for path in ("torch.utils._triton", "torch._inductor.utils"):
        functions: list[Any] = [*internals(path).__dict__.values()]
        yield from (function for function in functions if hasattr(function, "cache_clear"))
    yield internals("torch._inductor.runtime.hints").DeviceProperties.create
