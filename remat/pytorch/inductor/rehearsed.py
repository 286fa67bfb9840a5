"""Runs the code that TorchInductor generates for a plan on fake tensors, without kernels, to get its peak.

So the order of the kernels and the reuse of buffers are Inductor's own. The code does not contain the workspaces of
libraries: `measured_bytes` measures some calls, and `remat.predict.buffers.workspaces` models the others.

oneDNN copies images and filters into layouts that depend on the processor. For gradients of filters, it pads one
channel to eight with AVX2 (`init_conf` in its `jit_avx2_conv_kernel_f32.cpp`), and with AVX-512 it does not pad images
with fewer than 16 channels (`is_1stconv` in `jit_avx512_common_conv_kernel.cpp`). Fused attention takes memory per
thread. On a GPU, the workspace follows from cuDNN's heuristics, which depend on its version and on the chip.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from remat.answer.plan import Plan
from remat.facts.graph import Graph
from remat.predict.buffers.workspaces import call_bytes, gpu_call_bytes
from remat.predict.kernels.ir import Buffer
from remat.pytorch.inductor.scheduled import Scheduled
from remat.pytorch.seam.allocations import allocations
from remat.pytorch.seam.fakes import real_tensors
from remat.pytorch.seam.inductor_lowering import written_code
from remat.pytorch.seam.thread_patch import in_place, torchs_own
from remat.pytorch.seam.torch_names import (
    TorchDispatchMode,
    fork_rng,
    storage_of,
    stored_parts,
    tree_leaves,
    tree_map,
)

# Calls whose memory does not depend on the contents of tensors.
_MEASURED = {
    "cpu": ("aten.convolution", "aten._scaled_dot_product_flash_attention_for_cpu"),
    "cuda": ("aten.convolution", "aten._scaled_dot_product_"),
}
_bytes_by_call: dict[tuple[Any, ...], int] = {}


class WrittenPass(NamedTuple):
    """Holds Inductor's code of one pass."""

    call: Callable[[list[Any]], Sequence[Any]]  # runs the code on fake tensors, without kernels
    inputs: dict[str, Tensor]  # fake tensors, by the name of the value
    outputs: Sequence[str]  # names of the values that it returns

    @classmethod
    def of(cls, lowering: Any, inputs: Mapping[str, str], outputs: Sequence[str]) -> WrittenPass:
        """Makes Inductor write the code of a scheduled `GraphLowering`; `inputs` names the value of a placeholder."""
        placeholders = lowering.module.graph.find_nodes(op="placeholder")
        fakes = {inputs[str(node.target)]: node.meta["val"] for node in placeholders}
        return cls(_loaded(written_code(lowering).text, lowering.constants), fakes, outputs)


def rehearsed_peak(graph: Graph, plan: Plan) -> int:
    """Returns the peak of a step in bytes: what `remat.timeline(graph, plan).peak_bytes` predicts."""
    scheduled, passes = Scheduled(graph), list[WrittenPass]()

    def visit(lowering: Any, inputs: Mapping[str, str], outputs: Sequence[str]) -> None:
        passes.append(WrittenPass.of(lowering, inputs, outputs))

    scheduled.visit(plan, visit)
    joint = scheduled.joint_graph
    return peak_of_passes(passes, joint.fake_mode, joint.num_fwd_outputs)


def peak_of_passes(passes: Sequence[WrittenPass], fake_mode: Any, returned: int) -> int:
    """Returns the peak of a forward and a backward pass in bytes.

    Args:
        returned: how many of the first outputs of the forward pass the caller gets; the others are saved.
    """
    held, made, by_caller = _AllocationCounter(), dict[str, Any](), list[Any]()
    with fake_mode, held, torch.no_grad():
        for call, fakes, outputs in passes:
            results = call([made.pop(name, fake) for name, fake in fakes.items()])
            made = dict(zip(outputs, results, strict=True))
            by_caller.append(results if by_caller else results[:returned])
            del results
    return held.most_bytes


class _AllocationCounter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # pyright: ignore[reportUnknownMemberType]
        self.most_bytes, self._alive = 0, dict[int, tuple[StorageWeakRef, int]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        results = func(*args, **(kwargs or {}))
        taken, made = (
            [part for leaf in tree_leaves(of) if isinstance(leaf, Tensor) for part in stored_parts(leaf)]
            for of in ((args, kwargs), results)
        )
        before, new = ({storage_of(one): one.untyped_storage() for one in of} for of in (taken, made))
        self._alive = {key: entry for key, entry in self._alive.items() if not entry[0].expired()}
        self._alive |= {key: (StorageWeakRef(one), one.nbytes()) for key, one in new.items() if key not in before}
        if (work := measured_bytes(func, args, kwargs or {})) is None:
            stored = {key: one.nbytes() for key, one in before.items()}
            arguments, written = ([_buffer(one) for one in of] for of in (taken, made))
            if any(one.device.type == "cuda" for one in taken):
                work = gpu_call_bytes(str(func), arguments)
            else:
                work = call_bytes(str(func), arguments, written, stored, torch.get_num_threads())
        self.most_bytes = max(self.most_bytes, work + sum(size for _, size in self._alive.values()))
        return results


def _buffer(tensor: Tensor) -> Buffer:
    strides = None if tensor.is_contiguous() else tensor.stride()  # a single channel may have any stride
    return Buffer(storage_of(tensor), tuple(tensor.shape), tensor.itemsize, strides)


class _Nothing:
    """Replaces kernels and their compiler by objects that do nothing."""

    def __getattr__(self, _: str) -> _Nothing:
        return self

    def __call__(self, *_args: Any, **_kwargs: Any) -> _Nothing:
        return self


def _loaded(text: str, constants: Mapping[str, Any]) -> Callable[..., Any]:
    nothing = _Nothing()
    module: dict[str, Any] = {"nothing": nothing}
    # A torch that was built for CPUs has no such function; no kernel runs, so no stream is needed.
    text = text.replace("from torch._C import _cuda_getCurrentRawStream as get_raw_stream", "get_raw_stream = nothing")
    exec(text.replace("AsyncCompile()", "nothing"), module)
    module |= {
        **constants,
        "assert_size_stride": nothing,
        "assert_alignment": nothing,
        "copy_if_misaligned": _itself,
        "reinterpret_tensor": _reinterpreted,
    }
    for name in [name for name in module if name.startswith("empty_strided_")]:
        module[name] = partial(_empty, device=name.removeprefix("empty_strided_"))
    return module["call"]


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def _reinterpreted(tensor: Tensor, shape: Any, strides: Any, offset: int) -> Tensor:
    return tensor.as_strided(shape, strides, tensor.storage_offset() + offset)


def _empty(shape: Any, strides: Any, dtype: torch.dtype, device: str) -> Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype, device=device)


def measured_bytes(operator: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    """Returns the bytes that a call takes in addition to arguments (fake or not) and results; None if not measured.

    Raises:
        torch.OutOfMemoryError: the arguments do not fit into the free memory of the GPU.
    """
    leaves = tree_leaves((args, kwargs))
    devices = {leaf.device.type for leaf in leaves if isinstance(leaf, Tensor)}
    kind = "cuda" if "cuda" in devices else "cpu"
    if not str(operator).startswith(_MEASURED[kind]) or not devices <= {"cpu", kind}:
        return None
    if kind == "cuda" and not _is_here():
        return None
    key = str(operator), torch.get_num_threads(), _cudnn_settings(), *map(_layout, leaves)
    if key not in _bytes_by_call:
        with real_tensors():
            _bytes_by_call[key] = _measured(operator, *_zeros((args, kwargs)))
    return _bytes_by_call[key]


def _measured(operator: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    results: list[Any] = []  # the caller counts these
    gpus = {leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and leaf.is_cuda}
    with fork_rng([*gpus]):  # attention with dropout draws random numbers
        if gpus:
            operator(*args, **kwargs)  # the first call may benchmark cuDNN's algorithms
        sizes = allocations(lambda: results.append(operator(*args, **kwargs)), gpu=bool(gpus))
    held = [*accumulate(sizes, initial=0)]
    return max(held) - held[-1]


# False without a GPU, and inside `remat.pytorch.seam.virtual_gpu`.
def _is_here() -> bool:
    is_available = torchs_own(torch.cuda, "is_available")
    return is_available() and in_place(torch.cuda, "is_available") is is_available


def _cudnn_settings() -> tuple[Any, ...]:
    cudnn: Any = torch.backends.cudnn
    return cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32


def _layout(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    place = leaf.shape, leaf.stride(), leaf.storage_offset()
    return leaf.dtype, leaf.device, leaf.untyped_storage().nbytes(), *place


def _zeros(values: Any) -> Any:
    made: dict[int, Tensor] = {}  # queries, keys and values may share a storage

    def zeros(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        dtype, device, size, *place = _layout(leaf)
        storage = storage_of(leaf)
        if storage not in made:
            made[storage] = torch.zeros(size, dtype=torch.uint8, device=device)
        return made[storage][: size // leaf.itemsize * leaf.itemsize].view(dtype).as_strided(*place)

    return tree_map(zeros, values)
