"""Measures Table 3, a novel acquisition function: `python -m experiments.paper.acquisition`.

The q-expected hypervolume improvement of Daulton et al. (2020), written out here, and as botorch has it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch
import typer
from torch import Tensor, nn

from experiments.models.published import Posterior
from experiments.models.recipe import Sample
from experiments.paper.measure_table import command
from experiments.paper.methods import AGGRESSIVE, MIN_CUT, NO, OURS, compiled
from experiments.paper.steps import measured_rows
from experiments.paper.table import VIRTUAL, Figures, PaperTable, Setting, TableCase, Unavailable
from experiments.paper.without_device import FIGURES, plan_of, scheduled
from remat.pytorch.measure.torch_budgets import torchs_plans
from remat.pytorch.seam.torch_settings import nothing_donated

METHODS = (MIN_CUT, NO, OURS, AGGRESSIVE)


@dataclass(frozen=True)
class AcquisitionSizes:
    """Holds the sizes of the acquisition function.

    Attributes:
        restarts: sets of candidates that are optimized at once.
        q: candidates in a set.
        samples: of the posterior.
        objectives, dims, points, cells: of the model, of its inputs, that were observed, that are left to gain.
    """

    restarts: int
    samples: int
    q: int = 4
    objectives: int = 2
    dims: int = 6
    points: int = 256
    cells: int = 32


PUBLISHED = AcquisitionSizes(restarts=18, samples=512, q=8, objectives=4)
SMALL = AcquisitionSizes(restarts=4, samples=64, points=32)


class HypervolumeImprovement(Posterior):
    """Computes q-expected hypervolume improvement, by inclusion and exclusion over all subsets of the candidates.

    As `experiments.models.published.ExpectedHypervolumeImprovement`, with the subsets on the device.
    """

    def __init__(self, sizes: AcquisitionSizes) -> None:
        super().__init__(sizes.restarts, sizes.q, sizes.dims)
        for size in range(1, sizes.q + 1):
            subsets = torch.tensor(list(itertools.combinations(range(sizes.q), size)))
            self.register_buffer(f"subsets_{size}", subsets)

    def forward(self, points: Tensor, targets: Tensor, draws: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Takes `lower` and `upper`, cells x objectives: the boxes that the current Pareto front leaves free."""
        samples = self.samples(points, targets, draws)
        total = samples.new_zeros(samples.shape[:2])
        for size in range(1, samples.shape[-2] + 1):
            subsets = self.get_buffer(f"subsets_{size}")
            corner = samples[:, :, subsets].amin(-2)  # the best point that all points of a subset dominate
            sides = (torch.minimum(corner.unsqueeze(2), upper[:, None]) - lower[:, None]).clamp_min(0)
            total = total + (-1) ** (size + 1) * sides.prod(-1).sum((-1, -2))
        return -total.mean(0).sum()


def ours(sizes: AcquisitionSizes, device: str) -> Sample:
    """Makes the function written out above, with random observations and the cells of a random front."""
    with torch.device(device):
        model = HypervolumeImprovement(sizes).double()
        lower = torch.rand(sizes.cells, sizes.objectives, dtype=torch.double)
        args = (
            torch.rand(sizes.points, sizes.dims, dtype=torch.double),
            torch.rand(sizes.objectives, sizes.points, dtype=torch.double),
            torch.randn(sizes.samples, sizes.restarts, sizes.q, sizes.objectives, dtype=torch.double),
            *(lower, lower + torch.rand_like(lower)),
        )
    return model, args


class Improvement(nn.Module):
    """Computes botorch's improvement of given samples of the posterior, which are the parameter.

    The posterior itself comes from gpytorch, whose lazy operators Dynamo does not trace as one graph.
    """

    def __init__(self, acquisition: nn.Module, samples: Tensor) -> None:
        super().__init__()
        self.acquisition, self.samples = acquisition, nn.Parameter(samples)

    def forward(self) -> Tensor:
        return -self.acquisition._compute_qehvi(samples=self.samples).sum()


def botorchs(sizes: AcquisitionSizes, device: str) -> Sample:
    """Makes botorch's own function.

    Raises:
        Unavailable: it is not installed, or has changed.
    """
    try:
        models: Any = import_module("botorch.models")
        acquisitions: Any = import_module("botorch.acquisition.multi_objective.monte_carlo")
        boxes: Any = import_module("botorch.utils.multi_objective.box_decompositions.non_dominated")
    except ImportError as error:
        raise Unavailable(f"needs the package botorch: pip install botorch ({error})") from None
    with torch.device(device):
        seen = torch.rand(sizes.points, sizes.dims, dtype=torch.double)
        targets = torch.rand(sizes.points, 2, dtype=torch.double)
        angles = torch.linspace(0.1, 1.4, sizes.cells - 1, dtype=torch.double)
        front = torch.stack([angles.cos(), angles.sin()], 1)  # n points of a front leave n + 1 cells
        nadir = torch.zeros(2, dtype=torch.double)
        acquisition = acquisitions.qExpectedHypervolumeImprovement(
            model=models.SingleTaskGP(seen, targets),
            ref_point=nadir.tolist(),
            partitioning=boxes.FastNondominatedPartitioning(ref_point=nadir, Y=front),
        )
        samples = torch.rand(sizes.samples, sizes.restarts, sizes.q, 2, dtype=torch.double)
    if not hasattr(acquisition, "_compute_qehvi"):
        raise Unavailable("needs a botorch whose qExpectedHypervolumeImprovement has _compute_qehvi")
    acquisition._compute_qehvi(samples=samples)  # makes the indices of all subsets, once
    acquisition.requires_grad_(False)
    return Improvement(acquisition, samples), ()


def case(make: Callable[[AcquisitionSizes, str], Sample], method: str, setting: Setting) -> Figures:
    """Measures evaluations of the function and of its gradient under one method.

    Raises:
        Unavailable: botorch is missing.
        WrongStep: the value or the gradient is not eager's.
    """
    if setting.is_virtual:
        return _without_device(make, method)
    model, args = make(SMALL if setting.is_small else PUBLISHED, setting.device)

    def strategy(model: nn.Module) -> Callable[..., Any]:
        return compiled(method, model, lambda _: (), args)

    with nothing_donated() if method == NO else nullcontext():
        row = measured_rows(model, args, {method: strategy}, setting)[method]
    return {
        "step_s": row["median_s"],
        "peak_gb": row["peak_bytes"] / 1e9,
        "saved_gb": row["saved_bytes"] / 1e9,
        "moved_gb": row["moved_bytes"] / 1e9,
        "error": float(row["relative_error"]),
    }


def _without_device(make: Callable[[AcquisitionSizes, str], Sample], method: str) -> Figures:
    if make is botorchs:
        raise Unavailable("botorch looks at numbers, which tensors without contents do not have")
    model, args = make(PUBLISHED, "cpu")
    with patch.object(torch.linalg, "cholesky", _unchecked):
        ((graph, plans),) = torchs_plans(model, *args, budgets=[1.0], device=VIRTUAL)
    step = scheduled(graph, plan_of(method, graph, plans[1.0]))
    return {
        "peak_gb": step.peak_bytes / 1e9,
        "saved_gb": step.saved_bytes / 1e9,
        "moved_gb": step.bytes / 1e9,
        "accesses": step.accesses,
        **step.figures,
    }


def _unchecked(matrix: Tensor) -> Tensor:
    """Decomposes without a check of errors: the check is an effect, which a graph of columns does not hold."""
    return torch.linalg.cholesky_ex(matrix).L


_PUBLISHED: dict[str, Figures] = {
    MIN_CUT: {"peak_gb": 0.946, "step_s": 0.158, "saved_gb": 0.83},
    NO: {"peak_gb": 5.3, "step_s": 1.13, "saved_gb": 5.2},
}

NOTES = """
- Published: the acquisition function of Daulton et al. (2020) on one A100 of 40 GB. The paper says nothing of its
  sizes. Ours are such that no-checkpoint saves about 5.2 GB: 18 restarts of q = 8 candidates, 512 samples, 4
  objectives, 256 observations of 6 dimensions, 32 cells, in double precision. So ratios between the rows can be
  compared with the published ones, times cannot. Small: 4 restarts, q = 4, 64 samples, 2 objectives, 32 observations.
- "ours" bans what PyTorch bans by default, and saves the sides of all boxes, since what reads them in the backward
  pass does not fuse. "ours, aggressive" is `ByteTraffic(mode="aggressive")`, without these bans.
- "qEHVI" is written out in plain PyTorch, posterior included; the gradient is that of the candidates. "botorch" is
  `qExpectedHypervolumeImprovement` from given samples of the posterior on, whose gradient it takes, with 2 objectives.
- "no-checkpoint" is PyTorch's default partitioner, which saves values together with views of them. AOTAutograd donates
  both to the backward pass, whose kernels write over the one before they read the other (torch 2.13): the gradient is
  NaN. So this method alone runs with `torch._functorch.config.donated_buffer=False`.
- Published "no-checkpoint" and "min-cut" both ran through TorchInductor, as here; "min-cut" is PyTorch's own
  partitioner as installed. Peak is what the evaluation holds above what was held before it.
- Values and gradients are compared with eager's in each run.
- Without a device Cholesky's decomposition is not checked for errors, which would be an effect; and botorch's own
  function needs numbers, so it is not scheduled.
"""

TABLE = PaperTable(
    name="acquisition",
    title="An acquisition function (Table 3)",
    source="paper, section 4.5, Table 3; NVIDIA A100-40GB",
    figures={
        "peak_gb": "peak, GB",
        "step_s": "time, s",
        "saved_gb": "stored activations, GB",
        "moved_gb": "moved by Inductor's count, GB",
        "accesses": "tensors read and written by kernels",
        **FIGURES,
        "error": "largest relative error",
    },
    cases=[TableCase(f"qEHVI, {method}", partial(case, ours, method), _PUBLISHED.get(method, {})) for method in METHODS]
    + [TableCase(f"botorch, {method}", partial(case, botorchs, method)) for method in METHODS],
    notes=NOTES,
)

if __name__ == "__main__":
    typer.run(command(TABLE))
