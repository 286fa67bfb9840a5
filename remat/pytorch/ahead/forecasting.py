"""Forecasts what training a model will hold, from its sizes alone: `remat.forecast`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn

from remat.answer.choice import Choice
from remat.answer.option_text import label
from remat.answer.plan import Plan
from remat.answer.registry import DEFAULT_STEP_MODEL, find_costmodel
from remat.errors import InvalidOption
from remat.facts.given import listed
from remat.facts.graph import Graph
from remat.improve.choose import choose
from remat.predict.device_timeline import timeline
from remat.predict.whole_step import Forecast, Surroundings
from remat.problem.costmodel import CostModel
from remat.pytorch.read.capture import capture
from remat.pytorch.read.optimizer_memory import MakeOptimizer, optimizer_memory
from remat.pytorch.run.on_device import bytes_of, plan_on_device, trained
from remat.pytorch.seam.torch_names import tree_leaves

NOTHING_RECOMPUTED = "nothing recomputed"
PYTORCH = "PyTorch's plan"


def forecast(
    model: Callable[..., Any],
    /,
    *args: Any,
    optimizer: MakeOptimizer | None = None,
    cost_models: str | CostModel | Iterable[str | CostModel] = (),
    device: Any = None,
    **kwargs: Any,
) -> Forecast:
    """Forecasts the memory of training: parameters, gradients, optimizer state, activations, peaks.

    The model is captured as by `remat.capture`, so that models of any size take no memory: build them, with their
    arguments, within `torch._subclasses.FakeTensorMode()`. The step is one that `torch.compile` or `remat.compile`
    makes; what the caller computes beside the model, a loss for one, is not in it: best forecast a model that
    returns its loss.

    Args:
        model: a module or function with one joint graph.
        args, kwargs: what to call it with.
        optimizer: from parameters to an optimizer, such as `torch.optim.AdamW`; None for none.
        cost_models: names or instances, a plan each, such as `MemoryBudget(0.5)`; beside that which recomputes
            nothing, and PyTorch's default.
        device: to train on, as in `remat.capture`: None for the device of the model, or a GPU by name.

    Raises:
        CaptureError: see `remat.capture`.
        InvalidOption: the optimizer is none, or a cost model is.
        Infeasible: a budget is too small for any plan.
    """
    given = (
        [cost_models]
        if isinstance(cost_models, (str, CostModel))
        else listed("cost_models", cost_models, InvalidOption)
    )
    models = [find_costmodel(one) for one in given]
    graph = capture(model, *args, device=device, **kwargs)
    module = getattr(model, "__self__", model)
    parameters = list(module.parameters()) if isinstance(module, nn.Module) else []
    buffers = list(module.buffers()) if isinstance(module, nn.Module) else []
    inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    gpu = graph.meta.get("device") == "cuda"
    alive = [*parameters, *buffers, *inputs]
    plans = {NOTHING_RECOMPUTED: nothing_recomputed(graph)}
    for name, one in {PYTORCH: find_costmodel(DEFAULT_STEP_MODEL), **{label(one): one for one in models}}.items():
        solution = plan_on_device(graph, one, None, alive) if one.device_limits else choose(graph, one)
        assert solution.plan is not None  # both raise where there is none
        plans[name] = solution.plan
    own = bytes_of(parameters), bytes_of(buffers), bytes_of(inputs)
    taken = optimizer_memory(optimizer, trained(parameters), gpu=gpu)
    around = Surroundings.of(graph, sum(own), taken)
    found = [
        around.forecast(name, plan, timeline(graph, plan, device="cuda" if gpu else "cpu"))
        for name, plan in plans.items()
    ]
    return Forecast(*own, around.gradient_bytes, taken, tuple(found))


def nothing_recomputed(graph: Graph) -> Plan:
    """The plan that saves what the backward pass reads, and runs every operator of the forward pass once."""
    return (
        Choice.from_saved(graph, graph.needed & ~graph.cannot_save.mask & ~graph.must_recompute)
        .plan(graph)
        .made_for(graph)
    )
