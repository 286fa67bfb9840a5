"""Predicts the memory of training a model from its sizes alone, and finds the largest batch that fits."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from inspect import signature
from typing import Any

from torch import Tensor, nn

from remat.answer.option_text import label
from remat.answer.plan_facts import no_recompute_plan
from remat.answer.registry import DEFAULT_BUDGET_SOLVER, DEFAULT_STEP_MODEL, find_costmodel, find_solver
from remat.answer.solver import check_time_limit
from remat.errors import Infeasible, InvalidOption, LimitReached
from remat.facts.argument_checks import checked_bytes, checked_list, model_and_arguments
from remat.facts.graph import Graph
from remat.improve.choose import choose
from remat.improve.progress import ended_early, ending_within, is_over, limit_for
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

# If a batch of two to this power still fits, the memory of the step does not grow with its batch.
_DOUBLINGS = 40


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


def largest_batch(
    step: Callable[[int], tuple[Any, ...]],
    memory: int | str,
    *,
    optimizer: MakeOptimizer | None = None,
    cost_model: str | CostModel | None = None,
    device: Any = None,
    time_limit_s: float | None = None,
) -> int:
    """Returns the largest batch size with which training fits into an amount of memory; 0 if none does.

    The search doubles the size until a batch does not fit, and then bisects: about twenty forecasts, each of which
    captures the model. It assumes that memory grows with the batch. If a batch of 1 cannot be captured, as with batch
    normalization, the search begins at 2.

    Args:
        step: a function from a batch size to (model, args) or (model, args, kwargs). With fake tensors
            (`torch._subclasses.FakeTensorMode()`), no batch takes memory.
        memory: the memory of the device: bytes, or a size such as "80GB".
        optimizer: makes an optimizer of parameters, such as `torch.optim.AdamW`; None for no optimizer. It replaces
            that of a device budget, too.
        cost_model: the cost model of the plan, a name or an instance; None for PyTorch's plan. With
            `MemoryBudget("80GB", of="device")`, a batch is too large if there is no plan for it.
        device: the device to train on, as in `remat.capture`.
        time_limit_s: wall time in seconds, after which the largest size so far is returned, with a warning. The
            smallest one is always tried.

    Raises:
        CaptureError: see `remat.capture`; or `step` does not return such a tuple.
        InvalidOption: `step` takes no batch size; the memory, the optimizer or the cost model is invalid; or no batch
            seems too large.
    """
    most = checked_bytes("memory", memory)
    check_time_limit(time_limit_s)
    deadline_s = None if time_limit_s is None else time.monotonic() + time_limit_s
    try:
        signature(step).bind(1)
    except TypeError as error:
        raise InvalidOption(f"step must be a function that can be called with a batch size: {error}") from error

    def fits(batch: int) -> bool:
        model, args, kwargs = model_and_arguments("step", step(batch))
        models = () if cost_model is None else (cost_model,)
        try:
            training = forecast(model, *args, optimizer=optimizer, cost_models=models, device=device, **kwargs)
        except (Infeasible, LimitReached):
            return False
        return (training[PYTORCH] if cost_model is None else training.plans[-1]).peak_bytes <= most

    try:
        least, does_fit = 1, fits(1)
    except Exception:  # any error: if it is not about the batch of 1, the batch of 2 raises it again
        least, does_fit = 2, fits(2)
    if not does_fit:
        return 0
    good, bad = least, 2 * least
    while not (over := is_over(deadline_s)) and fits(bad):
        good, bad = bad, 2 * bad
        if bad > 2**_DOUBLINGS:
            raise InvalidOption(f"step must need more memory for a larger batch, but {good} fits into {most} bytes")
    while bad - good > 1 and not (over := over or is_over(deadline_s)):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    if over:
        warnings.warn(f"{ended_early().detail}: a batch of {good} fits; a larger one may fit, too", stacklevel=2)
    return good
