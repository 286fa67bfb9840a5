"""Compiles a model under the methods of the paper's section 4.2, and under ours."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import remat
from costmodels import ByteTraffic
from remat.pytorch.measure.step_strategies import NOTHING_RECOMPUTED, usual_strategies

NO = "no-checkpoint"
FULL = "full-checkpoint"
MIN_CUT = "min-cut"
OURS = "ours"
REFINED = "ours, refined"
AGGRESSIVE = "ours, aggressive"
METHODS = (NO, FULL, MIN_CUT, OURS, REFINED)
SCHEDULED = (NO, FULL, MIN_CUT, OURS)
"""Those whose plans are also scheduled for a GPU that is not there."""

REFINE_S = 15.0
"""The local search takes at most so many seconds; on small models it ends before."""

Step = Callable[..., Any]


def compiled(
    method: str, model: nn.Module, layers_of: Callable[[nn.Module], Sequence[nn.Module]], args: tuple[Tensor, ...]
) -> Step:
    """Compiles a model under one method; all methods go through the same compiler.

    Args:
        method: one of `METHODS`, or `AGGRESSIVE`.
        model: left as it is.
        layers_of: the modules whose inputs full-checkpoint saves.
        args: what the model will be called with; needed to refine a plan.
    """
    usual = usual_strategies((), dynamic=False)
    ways: dict[str, Callable[[nn.Module], Step]] = {
        NO: usual[NOTHING_RECOMPUTED],
        FULL: lambda model: usual["PyTorch"](checkpointed(model, layers_of)),
        MIN_CUT: usual["PyTorch"],
        OURS: partial(remat.compile, cost_model="byte-traffic", dynamic=False),
        AGGRESSIVE: partial(remat.compile, cost_model=ByteTraffic(mode="aggressive"), dynamic=False),
        REFINED: lambda model: remat.compile(model, plan=refined(remat.capture(model, *args)), dynamic=False),
    }
    return ways[method](model)


def refined(graph: remat.Graph) -> remat.Plan:
    """Improves our plan by local search on the predicted traffic; the result saves no more bytes."""
    return remat.refine(graph, cut(graph), time_limit_s=REFINE_S).plan


def cut(graph: remat.Graph) -> remat.Plan:
    """Chooses our plan, a minimum cut."""
    plan = remat.choose(graph).plan
    assert plan is not None  # choose() raises where there is none
    return plan


def checkpointed(model: nn.Module, layers_of: Callable[[nn.Module], Sequence[nn.Module]]) -> nn.Module:
    """Copies a model, with the same parameters and buffers, so that PyTorch checkpoints every layer."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    twin = copy.deepcopy(model, shared)
    layers = {id(layer): Checkpointed(layer) for layer in layers_of(twin)}
    if not layers:
        raise ValueError(f"{type(model).__name__} has none of the layers that full-checkpoint is about")
    for parent in [module for module in twin.modules() if id(module) not in layers]:
        for name, child in list(parent._modules.items()):  # `named_children` leaves out a layer that is used again
            if id(child) in layers:
                setattr(parent, name, layers[id(child)])
    return twin


class Checkpointed(nn.Module):
    """Runs a layer of which only the input is saved."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(self.layer, *args, use_reentrant=False, **kwargs)
