"""Finds the largest batch that fits, in as few trials as possible: on CUDA each of them compiles the model anew."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

RESOLUTION = 16
"""A power of two has so many parts: beyond 1,024 samples the batch is found to 64. Table 2 is as coarse."""


class DoesNotFit(Exception):
    """Raised when a batch cannot run; the message says why."""


@dataclass(frozen=True)
class Found:
    """Says what a search has found.

    Attributes:
        batch: the largest one that fitted; 0 if none did.
        too_large: the smallest one that did not; None if all that were tried fitted.
        held_bytes: what `batch` takes.
        trials: how many batches were tried.
        reason: why `too_large` does not fit.
    """

    batch: int
    too_large: int | None
    held_bytes: int
    trials: int
    reason: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left between the two but less than a step of the resolution."""
        return self.too_large is not None and self.too_large - self.batch <= grain(self.batch)


def grain(batch: int) -> int:
    """Returns the smallest difference by which batches near this one are told apart."""
    return max(1, 2 ** int(math.log2(batch)) // RESOLUTION) if batch else 1


def largest_batch(
    held_bytes: Callable[[int], int],
    limit_bytes: int,
    *,
    first: int,
    at_rest_bytes: int = 0,
    most_trials: int = 64,
    time_limit_s: float = math.inf,
) -> Found:
    """Looks for the largest batch that fits.

    Memory is nearly a straight line over the batch, so the next trial is where the line through the last two
    meets the limit; doubling or bisection where that says nothing. What fits is decided by trials alone.

    Args:
        held_bytes: what a batch takes, non-decreasing; raises `DoesNotFit`.
        limit_bytes: what there is.
        first: tried first.
        at_rest_bytes: what a batch of nothing would take.
        most_trials, time_limit_s: no trial is begun after these.
    """
    fitted = {0: at_rest_bytes}
    found, deadline, candidate = Found(0, None, at_rest_bytes, 0), time.monotonic() + time_limit_s, max(first, 1)
    while not found.is_settled and found.trials < most_trials and time.monotonic() < deadline:
        batch, above, reason = found.batch, found.too_large, found.reason
        try:
            taken = held_bytes(candidate)
            if taken > limit_bytes:
                raise DoesNotFit(f"{taken:,} bytes are above the limit of {limit_bytes:,}")
            fitted[candidate], batch = taken, candidate
        except DoesNotFit as error:
            above, reason = candidate, str(error)
        found = Found(batch, above, fitted[batch], found.trials + 1, reason)
        candidate = _next(found, fitted, limit_bytes)
    return found


def _next(found: Found, fitted: dict[int, int], limit_bytes: int) -> int:
    """Chooses the next batch to try: between the two ends, or above the lower one if there is no other."""
    step = grain(found.batch)
    low, high = found.batch + step, 2 * found.batch if found.too_large is None else found.too_large - step
    guess = _line(fitted, limit_bytes)
    if found.too_large is None:
        # A line through points far below the limit may overshoot: no more than eightfold at once.
        return max(low, min(guess or high, 8 * found.batch)) // step * step
    if guess is None or len(fitted) > 4:  # if four points of the line do not lead to the end, it is none
        wanted = (found.batch + found.too_large) // 2
    elif guess < found.too_large:
        wanted = guess
    else:  # memory ran out before the line said so, mostly shortly before
        wanted = (found.batch + 7 * found.too_large) // 8
    return max(found.batch + 1, min(max(wanted, low), max(high, low)) // step * step)


def _line(fitted: dict[int, int], limit_bytes: int) -> int | None:
    """Computes where the line through the two largest batches meets the limit."""
    if len(fitted) < 2:
        return None
    (a, a_bytes), (b, b_bytes) = sorted(fitted.items())[-2:]
    slope = (b_bytes - a_bytes) / (b - a)
    return int(b + (limit_bytes - b_bytes) / slope) if slope > 0 else None
