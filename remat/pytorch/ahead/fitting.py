"""Finds the largest batch with which training fits into the memory of a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from remat.errors import InvalidOption
from remat.predict.whole_step import read_memory
from remat.pytorch.ahead.forecasting import PYTORCH, forecast

_DOUBLINGS = 40


def largest_batch(
    step: Callable[[int], tuple[Any, ...]], memory: int | str, *, plan: str = PYTORCH, **options: Any
) -> int:
    """Searches for the largest batch size with which training holds no more than so much memory; 0 if none does.

    The size is doubled until a batch does not fit, and then the gap is halved: some twenty forecasts, each of which
    captures the model. Memory is taken to grow with the batch.

    Args:
        step: from a batch size to (model, args...): what to forecast. Make fake tensors
            (`torch._subclasses.FakeTensorMode()`), and no batch takes memory.
        memory: of the device: bytes, or a size such as "80GB".
        plan: the name of the plan in the forecast.
        options: of `remat.forecast`: optimizer, cost_models, device.

    Raises:
        InvalidOption: the memory is none, the forecast has no such plan, or there seems to be no limit.
    """
    most = read_memory(memory)

    def fits(batch: int) -> bool:
        model, *args = step(batch)
        return forecast(model, *args, **options)[plan].peak_bytes <= most

    good, bad = 0, 1
    while fits(bad):
        good, bad = bad, 2 * bad
        if bad > 2**_DOUBLINGS:
            raise InvalidOption(
                f"step must need more memory for a larger batch, but one of {good} fits into {most} bytes"
            )
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good
