"""Estimates recompute time from FLOPs and bytes, by the rates of a device."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from remat.facts.columns import BoolArray, IntArray
from remat.facts.graph import Graph
from remat.predict.time.device import DeviceProfile
from remat.predict.time.known_devices import find_device
from remat.predict.time.work import Work, whole_prices
from remat.problem.estimator import Estimator

DEFAULT_DEVICE = "a100"
"""A constant, not this machine's device, so that a call gives the same answer everywhere."""

_MASK_OF = {
    "aten._scaled_dot_product_cudnn_attention.default": 3,
    "aten._scaled_dot_product_cudnn_attention_backward.default": 8,
    "aten._scaled_dot_product_efficient_attention.default": 3,
    "aten._scaled_dot_product_efficient_attention_backward.default": 4,
}
"""Positions of the mask among the arguments."""


@dataclass(frozen=True)
class Roofline(Estimator):
    """The recompute cost of an operator is its time in the roofline model: the longer of arithmetic and memory traffic.

    A value that fuses joins a kernel of the backward pass. It costs the reads of operands that do not fuse with it (or
    its arithmetic, if that takes longer), but no launch and no write. Reads that the kernel makes anyway, or that two
    recomputed values share, count in full, because the estimator does not know them. Any other value is a separate
    kernel: it costs its operands, each storage once, its result, and one launch. Matrix products, convolutions and
    attention run at the rate of their element type (fused attention with a mask at the profile's share of it),
    all other operators at that of float32 (float64 at its own), because compilers compute halves in float32.

    Attributes:
        device: a known name (`remat device --list`), a file, "here" (the profile that `remat device` measured on this
            machine), or a `remat.predict.time.DeviceProfile`.
    """

    name: ClassVar[str] = "roofline"
    unit: ClassVar[str] = "ns"

    device: str | Path | DeviceProfile = DEFAULT_DEVICE

    def __post_init__(self) -> None:
        find_device(self.device)  # an unknown name raises here, where the user typed it

    def recompute_cost(self, graph: Graph) -> IntArray:
        """Returns the nanoseconds (n,) of each value on the device, rounded up."""
        profile, work = find_device(self.device), Work.of(graph)
        compute_s = work.flops / flops_per_s(graph, profile)
        memory_s = (work.read_bytes + work.written_bytes) / profile.reached_bytes_per_s
        ns = 1e9 * np.maximum(compute_s, memory_s) + np.where(work.own_kernel, profile.launch_ns, 0.0)
        return whole_prices(f"roofline on {profile.name}", ns)

    @property
    def step_device(self) -> object:
        return self.device

    def data(self) -> str:
        """Returns the figures of the device as text, not the name of their file."""
        return repr(find_device(self.device))


def flops_per_s(graph: Graph, profile: DeviceProfile) -> NDArray[np.float64]:
    """Returns the FLOP/s that the device reaches for each value, (n,)."""
    dtypes = [dtype if dtype == "float64" else "float32" for dtype in graph.dtypes]
    products: list[int] = np.flatnonzero(graph.compute_bound).tolist()
    # They multiply in the type of the first factor whose rate is known, or in their own: on a device without float8, in
    # that of their result, not in that of their scales, which come after the factors.
    for i in products:
        operands = (graph.dtypes[u] for u in graph.operands[i][:2])
        dtypes[i] = next((dtype for dtype in operands if dtype in profile.flops_per_s), graph.dtypes[i])
    rate_of = {dtype: profile.reached_flops_per_s(dtype) for dtype in set(dtypes)}
    rates = np.array([rate_of[dtype] for dtype in dtypes], np.float64)
    # Calls without a mask have the rate of products, 70 % of an H100's ceiling. cuDNN's reach 60 % of it forward and
    # 52 % backward (FlashAttention-3, arXiv:2407.08608, figures 5 and 6, for heads of 128 and 16,384 tokens).
    rates[masked_attention(graph)] *= profile.masked_attention_fraction
    return rates


def masked_attention(graph: Graph) -> BoolArray:
    """Returns which values (n,) are calls of fused attention with a mask, by cuDNN or the memory-efficient kernel."""
    masked = np.zeros(len(graph), np.bool_)
    for i, op in enumerate(graph.ops):
        # Arguments are read of few values only: they become text when they are first asked for.
        if (position := _MASK_OF.get(op)) is not None and graph.arguments[i]:
            call: Any = json.loads(graph.arguments[i])
            masked[i] = (call if isinstance(call, list) else call["args"])[position : position + 1] not in ([], [None])
    return masked
