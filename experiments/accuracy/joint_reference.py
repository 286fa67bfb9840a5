"""Runs joint graphs operator by operator, in their own precision or in double, with the random numbers of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.fx.node import map_aggregate

SEED = 0
"""Of what draws the seeds of random numbers."""


class Reference(fx.Interpreter):
    """Runs a joint graph as eager PyTorch does, but for the random numbers: they are those of Triton's kernels.

    Attributes:
        four_at_once: names of random values whose numbers kernels draw four at a time, which gives others.
        double: computes everything in double precision, whatever the graph converts to.
    """

    def __init__(self, module: fx.GraphModule, *, four_at_once: frozenset[str] = frozenset(), double: bool = False):
        super().__init__(module)
        self.four_at_once, self.double = four_at_once, double

    def values(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Computes outputs and gradients, by name.

        Args:
            inputs: by name; they are left as they are.
        """
        torch.manual_seed(SEED)
        given = [self._precise(inputs[node.name].clone()) for node in self.module.graph.find_nodes(op="placeholder")]
        names = [node.name for node in self.module.graph.output_node().args[0]]
        return dict(zip(names, self.run(*given), strict=True))

    def run_node(self, n: fx.Node) -> Any:
        """Computes a value."""
        target = str(n.target)
        if target.startswith("prims.inductor_seeds"):  # as Inductor's code draws them
            limits = torch.iinfo(torch.int64)
            return torch.randint(limits.min, limits.max, (int(n.args[0]),))
        if target.startswith("prims.inductor_random"):
            shape, seed, mode = self.fetch_args_kwargs_from_env(n)[0]
            if mode != "rand":
                raise NotImplementedError(f"random numbers of mode {mode!r}")
            return self._precise(uniform(int(seed), tuple(shape), four_at_once=n.name in self.four_at_once))
        return super().run_node(n)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Calls an operator, with double in place of any other floating-point type if that is asked for."""
        args, kwargs = map_aggregate((args, kwargs), self._precise)
        return map_aggregate(super().call_function(target, args, kwargs), self._precise)

    def _precise(self, value: Any) -> Any:
        if self.double and isinstance(value, torch.dtype) and value.is_floating_point:
            return torch.float64
        return value.double() if self.double and isinstance(value, Tensor) and value.is_floating_point() else value


def uniform(seed: int, shape: tuple[int, ...], *, four_at_once: bool) -> Tensor:
    """Draws the numbers of `tl.rand(seed, i)`, or of `tl.rand4x(seed, i // 4)[i % 4]`, for the i-th of a tensor.

    Philox with 4 words of 32 bits and 10 rounds: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
    """
    numbers = int(np.prod(shape))
    index = np.arange(numbers, dtype=np.uint64)
    words = _philox(seed, index // 4 if four_at_once else index)
    chosen = words[np.arange(numbers) % 4, np.arange(numbers)] if four_at_once else words[0]
    signed = chosen.astype(np.uint32).view(np.int32)
    positive = np.where(signed < 0, ~signed, signed)
    return torch.from_numpy(positive.astype(np.float32) * np.float32(4.6566127342e-10)).view(shape)


def _philox(seed: int, counter: np.ndarray) -> np.ndarray:
    low = np.uint64(0xFFFFFFFF)
    words = [counter & low, *(np.zeros_like(counter) for _ in range(3))]
    keys = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * words[0], np.uint64(0xCD9E8D57) * words[2]
        shift = np.uint64(32)
        words = [
            (second >> shift) ^ words[1] ^ np.uint64(keys[0]),
            second & low,
            (first >> shift) ^ words[3] ^ np.uint64(keys[1]),
            first & low,
        ]
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack(words)
