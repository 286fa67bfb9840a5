"""Finds the largest batch with which training fits into the memory of a device."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from inspect import signature
from typing import Any

from remat.answer.solver import check_time_limit
from remat.errors import Infeasible, InvalidOption, LimitReached
from remat.facts.argument_checks import checked_bytes, model_and_arguments
from remat.improve.progress import ended_early, is_over
from remat.problem.costmodel import CostModel
from remat.pytorch.ahead.forecasting import PYTORCH, forecast
from remat.pytorch.read.optimizer_memory import MakeOptimizer

_DOUBLINGS = 40


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
