"""Lists ways to choose what a training step saves, each as a function from a model to a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from torch import fx

from remat.answer.option_text import label
from remat.answer.registry import DEFAULT_STEP_MODEL, find_costmodel
from remat.answer.solver import Solver
from remat.problem.costmodel import CostModel
from remat.pytorch.run.compile import compile
from remat.pytorch.seam.torch_names import CustomPartitionerFn, torch_compile
from remat.pytorch.seam.torch_partitioner import default_partition, torchs_partition
from remat.pytorch.seam.torch_settings import partitioner_settings

Strategy: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Converts a model to a step that is called like the model."""

NOTHING_RECOMPUTED = "autograd's own saves"
"""The compiled strategy that runs every operator of the forward pass once."""


def usual_strategies(
    cost_models: str | CostModel | Iterable[str | CostModel] = (DEFAULT_STEP_MODEL,),
    solver: str | Solver | None = None,
    **torch_compile_kwargs: Any,
) -> dict[str, Strategy]:
    """Returns the strategies to compare by name: eager, autograd's own saves, PyTorch in three settings, and ours.

    All but eager are compiled by TorchInductor, so they differ only in what is saved.
    """
    listed = [cost_models] if isinstance(cost_models, (str, CostModel)) else list(cost_models)
    models = [find_costmodel(model) if isinstance(model, str) else model for model in listed]
    with_partitioner = partial(_compile_with, torch_compile_kwargs)
    return {
        "eager": lambda model: model,
        NOTHING_RECOMPUTED: partial(with_partitioner, _Default()),
        "PyTorch": partial(torch_compile, **torch_compile_kwargs),
        **{
            f"PyTorch, {name}={value}": partial(with_partitioner, _MinCut(name, value))
            for name, value in (("aggressive_recomputation", True), ("activation_memory_budget", 0.5))
        },
        **{
            f"remat: {label(model)}": partial(compile, cost_model=model, solver=solver, **torch_compile_kwargs)
            for model in models
        },
    }


def _compile_with(
    kwargs: dict[str, Any], partitioner: CustomPartitionerFn, model: Callable[..., Any]
) -> Callable[..., Any]:
    options = {**kwargs.get("options", {}), "custom_partitioner_fn": partitioner}
    return torch_compile(model, **{**kwargs, "options": options})


@dataclass(frozen=True)
class _Default(CustomPartitionerFn):
    """Saves what autograd would: every operator of the forward pass runs once.

    It may save values together with views of them: see `remat.pytorch.seam.torch_settings.nothing_donated`.
    """

    def __call__(self, gm: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        del kwargs["compiler"]  # only torch's other partitioner takes it
        return default_partition(gm, joint_inputs, **kwargs)

    def uuid(self) -> str:
        return "remat: autograd's own saves"


# The setting of `torch._functorch.config` applies only while the partitioner runs.
@dataclass(frozen=True)
class _MinCut(CustomPartitionerFn):
    setting: str
    value: Any

    def __call__(self, gm: fx.GraphModule, joint_inputs: Any, **kwargs: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
        with partitioner_settings(**{self.setting: self.value}):
            return torchs_partition(gm, joint_inputs, **kwargs)

    def uuid(self) -> str:
        return f"remat: PyTorch's partitioner, {self.setting}={self.value}"
