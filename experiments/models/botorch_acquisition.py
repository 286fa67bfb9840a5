"""Makes the training step of botorch's own acquisition function qEHVI, as one graph of torch's operators.

botorch and gpytorch are no part of the environment: `experiments.accuracy.foreign_peaks` says how to install them.
Dynamo cannot trace gpytorch: it makes 17 graphs. So the forward pass is traced by `make_fx`, and what is traced is
compiled. gpytorch reads numbers in three places, and each one is answered without the numbers: whether two tensors are
equal (here: whether they are the same memory), whether a Cholesky factorization failed (it did not), and the sizes of a
concatenation (botorch does not make it while `torch.jit` traces).
"""

# botorch has no types, or is not there.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportPrivateImportUsage=false

from __future__ import annotations

import functools
import operator
import warnings
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from remat.pytorch.seam.torch_names import storage_of


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Holds the sizes of the function: q candidates of `dims` numbers, and what they are judged by."""

    samples: int
    restarts: int
    q: int
    objectives: int
    cells: int
    points: int = 256
    dims: int = 6


class Step(nn.Module):
    """Returns a loss of `candidates`, by a traced function whose constants are buffers."""

    def __init__(self, function: torch.fx.GraphModule, candidates: Tensor) -> None:
        super().__init__()
        self.candidates, self.function = nn.Parameter(candidates), function
        for name, value in list(vars(function).items()):
            if isinstance(value, Tensor):
                delattr(function, name)
                function.register_buffer(name, value)

    def forward(self) -> Tensor:
        return self.function(self.candidates)


def hypervolume_improvement(sizes: Sizes) -> tuple[Any, Tensor]:
    """Makes botorch's function over a Gaussian process that was not fitted, with random cells, and candidates."""
    from botorch.acquisition.multi_objective.monte_carlo import qExpectedHypervolumeImprovement
    from botorch.models import SingleTaskGP
    from botorch.sampling import SobolQMCNormalSampler
    from botorch.utils.multi_objective.box_decompositions.non_dominated import FastNondominatedPartitioning

    warnings.simplefilter("ignore")  # botorch prefers the logarithm of the function
    torch.manual_seed(0)
    double = torch.float64
    x, worst = torch.rand(sizes.points, sizes.dims, dtype=double), torch.full((sizes.objectives,), -3.0, dtype=double)
    y = torch.stack([torch.sin((i + 1) * x.sum(-1)) for i in range(sizes.objectives)], -1)
    boxes = FastNondominatedPartitioning(worst, y[:2])
    sampler = SobolQMCNormalSampler(torch.Size([sizes.samples]), seed=0)
    function = qExpectedHypervolumeImprovement(SingleTaskGP(x, y).eval(), worst, boxes, sampler)
    lower = -1 - torch.rand(sizes.cells, sizes.objectives, dtype=double)  # below most samples, so gradients flow
    function.cell_lower_bounds, function.cell_upper_bounds = lower, lower + 2 * torch.rand_like(lower)
    with torch.no_grad():
        function(x[: sizes.q])  # fills the caches of the Gaussian process, and draws the samples
    return function, torch.rand(sizes.restarts, sizes.q, sizes.dims, dtype=double)


def traced(sizes: Sizes, factors: bool, device: str = "cpu") -> Step:
    """Traces the function; with `factors`, products are multiplications and least values are read with `amin`.

    It is traced on the CPU; on another device the same operators run.
    """
    function, candidates = hypervolume_improvement(sizes)
    with _without_numbers(), _factors() if factors else ExitStack(), torch.no_grad():

        def loss(x: Tensor) -> Tensor:
            return -function(x).sum()

        graph = make_fx(loss, tracing_mode="fake", _allow_non_fake_inputs=True)(candidates)
    for node in graph.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = node.kwargs | {"device": torch.device(device)}
    graph.recompile()
    return Step(graph, candidates).to(device)


@contextmanager
def _without_numbers() -> Generator[None]:
    import gpytorch
    from linear_operator.operators import _linear_operator

    def same(one: Tensor, other: Tensor) -> bool:
        memory = [(t.shape, storage_of(t), t.storage_offset()) for t in (one, other)]
        return memory[0] == memory[1]

    def cholesky(matrix: Tensor, upper: bool = False, **_: object) -> Tensor:
        return torch.linalg.cholesky_ex(matrix, upper=upper)[0]

    with (
        gpytorch.settings.debug(False),
        gpytorch.settings.trace_mode(True),
        mock.patch("torch.equal", same),
        mock.patch("torch.jit.is_tracing", return_value=True),
        mock.patch.object(_linear_operator, "psd_safe_cholesky", cholesky),
    ):
        yield


@contextmanager
def _factors() -> Generator[None]:
    def product(x: Tensor, dim: int) -> Tensor:
        return functools.reduce(operator.mul, x.unbind(dim))

    def least(x: Tensor, dim: int) -> SimpleNamespace:
        return SimpleNamespace(values=x.amin(dim))

    with mock.patch.object(Tensor, "prod", product), mock.patch.object(Tensor, "min", least):
        yield
