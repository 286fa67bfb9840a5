"""Predicts the memory of training a model from its sizes alone: `remat.forecast`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor, nn

from remat.answer.option_text import label
from remat.answer.plan_facts import no_recompute_plan
from remat.answer.registry import DEFAULT_BUDGET_SOLVER, DEFAULT_STEP_MODEL, find_costmodel, find_solver
from remat.answer.solver import check_time_limit
from remat.errors import InvalidOption
from remat.facts.argument_checks import checked_list
from remat.facts.graph import Graph
from remat.improve.choose import choose
from remat.improve.progress import ending_within, limit_for
from remat.predict.device_timeline import timeline
from remat.predict.in_flight import argument_bytes, other_calls_bytes
from remat.predict.whole_step import FixedMemory, Forecast, PlanForecast
from remat.problem.costmodel import CostModel
from remat.pytorch.read.capture import capture
from remat.pytorch.read.optimizer_memory import MakeOptimizer, optimizer_memory
from remat.pytorch.run.on_device import bytes_of, plan_on_device, trainable_parameters
from remat.pytorch.seam.compilations import name_of
from remat.pytorch.seam.reachable import reachable_tensors
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
    time_limit_s: float | None = None,
    **kwargs: Any,
) -> Forecast:
    """Predicts the memory of training: parameters, gradients, optimizer state, activations, peaks.

    The model is captured as by `remat.capture`, so a model of any size takes no memory if it and its arguments are
    built within `torch._subclasses.FakeTensorMode()`. The step is that of `torch.compile` or `remat.compile`. What the
    caller computes outside the model, such as a loss, is not included: preferably forecast a model that returns its
    loss.

    Args:
        model: a module or function with one joint graph. The parameters of a function are those of the modules to which
            it refers: in its closure, globals, arguments, or, for a method, in the attributes of its object.
        args, kwargs: its arguments.
        optimizer: makes an optimizer of parameters, such as `torch.optim.AdamW`; None for no optimizer. It replaces
            that of a device budget, too.
        cost_models: names or instances, such as `MemoryBudget(0.5)`: one plan each, in addition to the plan without
            recomputation and PyTorch's default.
        device: the device to train on, as in `remat.capture`: None for the device of the model, or a GPU by name.
        time_limit_s: wall time in seconds for all searches for plans within budgets together; each then ends with its
            best plan so far. It does not include the capture.

    Raises:
        CaptureError: see `remat.capture`.
        InvalidOption: the optimizer or a cost model is invalid, or parameters of a function are not found.
        Infeasible, LimitReached: a budget is too small for any plan, or no plan was found.
    """
    listed = (
        [cost_models]
        if isinstance(cost_models, (str, CostModel))
        else checked_list("cost_models", cost_models, InvalidOption)
    )
    models = [find_costmodel(one) for one in listed]
    check_time_limit(time_limit_s)
    graph, fixed, held = capture_with_memory(model, args, kwargs, optimizer, device)
    # The first rows count as many calls as the models do, so that all can be compared.
    most = max((one.calls_in_flight for one in models), default=1)
    plans, calls = {NOTHING_RECOMPUTED: no_recompute_plan(graph)}, {NOTHING_RECOMPUTED: most, PYTORCH: most}
    with ending_within(time_limit_s):
        for name, one in {PYTORCH: find_costmodel(DEFAULT_STEP_MODEL), **{label(one): one for one in models}}.items():
            calls.setdefault(name, one.calls_in_flight)
            if one.device_limits:
                alive = [tensor for of_kind in held for tensor in of_kind]
                solution = plan_on_device(graph, one, None, alive, optimizer=optimizer)
            else:
                solver = find_solver(DEFAULT_BUDGET_SOLVER)
                limit_s = limit_for(solver, time_limit_s) if one.limits_memory else None  # minimum cuts take no limit
                solution = choose(graph, one, time_limit_s=limit_s)
            assert solution.plan is not None  # both raise where there is none
            plans[name] = solution.plan
    forecasts: list[PlanForecast] = []
    for name, plan in plans.items():
        line = timeline(graph, plan, torchs_order=name in (NOTHING_RECOMPUTED, PYTORCH))
        waiting = other_calls_bytes(graph, line, calls[name]) + (calls[name] - 1) * argument_bytes(graph)
        forecasts.append(fixed.forecast(name, plan, line, waiting))
    own = [bytes_of(of_kind) for of_kind in held]
    return Forecast(own[0], own[1], own[2], fixed.gradient_bytes, fixed.optimizer, tuple(forecasts))


def capture_with_memory(
    model: Callable[..., Any], args: Any, kwargs: Any, optimizer: MakeOptimizer | None, device: Any
) -> tuple[Graph, FixedMemory, tuple[list[Tensor], list[Tensor], list[Tensor]]]:
    """Captures a model, and returns its graph, what training holds whatever the plan, and parameters, buffers, inputs.

    Arguments are those of `forecast`.
    """
    graph = capture(model, *args, device=device, **kwargs)
    tensors = reachable_tensors(model, (args, kwargs))
    _check_found(model, tensors, graph)
    parameters: list[Tensor] = [tensor for tensor in tensors if isinstance(tensor, nn.Parameter)]
    buffers = [tensor for tensor in tensors if not isinstance(tensor, nn.Parameter)]
    held = parameters, buffers, [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    taken = optimizer_memory(optimizer, trainable_parameters(parameters), gpu=graph.meta.get("device") == "cuda")
    return graph, FixedMemory.of(graph, sum(map(bytes_of, held)), taken), held


# All parameters that the graph reads must be among the tensors that were found.
def _check_found(model: Callable[..., Any], tensors: Sequence[Tensor], graph: Graph) -> None:
    found_bytes, read = sum(tensor.nbytes for tensor in tensors), int(graph.bytes[graph.parameter].sum())
    if found_bytes < read and not isinstance(getattr(model, "__self__", model), nn.Module):
        raise InvalidOption(
            f"model must be a torch.nn.Module, or a function that refers to its modules: {name_of(model)} reads "
            f"{read} bytes of parameters and buffers, but only {found_bytes} were found. "
            f"Pass a module, such as one that computes the loss"
        )
