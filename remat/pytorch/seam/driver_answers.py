"""Answers torch's and Triton's queries of a CUDA driver during a compilation from a GPU's data sheet."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from remat.pytorch.seam.gpu_sheets import GpuSheet
from remat.pytorch.seam.internals import internals
from remat.pytorch.seam.thread_patch import thread_local_patch


@contextmanager
def torch_cuda(sheet: GpuSheet) -> Generator[None]:
    stream = SimpleNamespace(cuda_stream=0, stream_id=0, device_index=0)
    answers: dict[str, object] = {
        **dict.fromkeys(("current_device", "_exchange_device", "_maybe_exchange_device"), 0),
        **dict.fromkeys(("set_device", "_lazy_init", "synchronize"), None),
        **dict.fromkeys(("is_bf16_supported", "is_tf32_supported"), sheet.major >= 8),
        "is_available": True,
        "device_count": 1,
        "get_device_properties": sheet,
        "get_device_capability": (sheet.major, sheet.minor),
        "get_device_name": sheet.name,
        "mem_get_info": (sheet.total_memory, sheet.total_memory),
        "current_stream": stream,
        "is_current_stream_capturing": False,
        "_get_generator": _Generator(),
    }
    with ExitStack() as stack:
        for name, value in answers.items():
            stack.enter_context(thread_local_patch(torch.cuda, name, always(value), constant=True))
        stack.enter_context(
            thread_local_patch(torch.cuda, "get_rng_state", lambda *_, **__: torch.zeros(16, dtype=torch.uint8))
        )
        stack.enter_context(thread_local_patch(torch.cuda, "set_rng_state", always(None)))
        # For a model with `torch.cuda.device(...)`, Dynamo calls the functions under names of its own since torch 2.13.
        variable = internals("torch._dynamo.variables.ctx_manager").CUDADeviceVariable
        for name in ("_exchange", "_maybe_exchange"):
            stand_in = staticmethod(getattr(torch.cuda, f"{name}_device"))
            stack.enter_context(patch.object(variable, f"{name}_fn", stand_in, create=True))
        yield


class _Generator(torch.Generator):
    """Replaces a GPU's generator: a graph that draws again in its backward pass clones its state."""

    device = torch.device("cuda", 0)  # pyright: ignore[reportAssignmentType]

    def clone_state(self) -> torch.Generator:
        return self


def always(value: object) -> Callable[..., Any]:
    """Makes a function that returns the same value whatever its arguments are."""

    def answer(*args: object, **kwargs: object) -> object:
        del args, kwargs
        return value

    return answer


@contextmanager
def device_table(sheet: GpuSheet) -> Generator[None]:
    """Registers a device interface with Dynamo, through torch's hook for devices of other vendors."""
    interfaces = internals("torch._dynamo.device_interface")
    interfaces.get_registered_device_interfaces()  # the first call registers torch's own interfaces
    answers: dict[str, object] = {
        **dict.fromkeys(("current_device", "get_raw_stream", "exchange_device", "maybe_exchange_device"), 0),
        **dict.fromkeys(("set_device", "synchronize", "raise_if_triton_unavailable"), None),
        **dict.fromkeys(("is_available", "is_triton_capable"), True),
        "device_count": 1,
        "get_device_properties": sheet,
        "memory_allocated": 0,
        "is_bf16_supported": sheet.major >= 8,
        "get_compute_capability": sheet.capability,
    }
    methods = {name: staticmethod(always(value)) for name, value in answers.items()}
    of_worker = ("set_device", "current_device", "get_device_properties")
    worker = type("Worker", (), {name: methods[name] for name in of_worker})
    virtual = type("VirtualCuda", (interfaces.CudaInterface,), {**methods, "Worker": worker})
    with patch.dict(interfaces.device_interfaces):
        for name in ("cuda", "cuda:0"):
            interfaces.register_interface_for_device(name, virtual)
        yield


@contextmanager
def triton_driver(sheet: GpuSheet) -> Generator[None]:
    """Installs a Triton driver that has a target, but nothing that a launch would need."""
    backends, driver = internals("triton.backends").backends, internals("triton.runtime.driver").driver
    base, target = internals("triton.backends.driver").DriverBase, internals("triton.backends.compiler").GPUTarget
    limits = {
        "max_shared_mem": sheet.shared_memory_per_block_optin,
        "max_num_regs": sheet.regs_per_multiprocessor,
        "multiprocessor_count": sheet.multi_processor_count,
        "warpSize": sheet.warp_size,
    }
    answers: dict[str, object] = {
        "get_current_target": target("cuda", sheet.capability, sheet.warp_size),
        "get_active_torch_device": torch.device("cuda", 0),
        "get_benchmarker": always([0.0] * 3),
        "get_current_device": 0,
        "set_current_device": None,
        "get_current_stream": 0,
        "get_device_capability": (sheet.major, sheet.minor),
        "map_python_to_cpp_type": "",  # of a launcher
    }
    members: dict[str, Any] = {name: always(value) for name, value in answers.items()}
    utils = SimpleNamespace(get_device_properties=always(limits))
    members |= {"is_active": classmethod(always(True)), "utils": utils, "launcher_cls": None}
    virtual = type("VirtualDriver", (base,), members)
    nvidia = dataclasses.replace(backends["nvidia"], driver=virtual)
    with patch.dict(backends, nvidia=nvidia), patch.object(driver, "_active", virtual()):
        yield
