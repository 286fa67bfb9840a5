"""Makes joint graphs of any size, shaped like a deep network's training step."""

from __future__ import annotations

import numpy as np

from remat import Graph
from remat.plugin import Bans, Region


def training_step(num_values: int, *, seed: int = 0) -> Graph:
    """Makes a random joint graph: a deep forward pass, and a backward pass that mirrors it.

    Every forward value uses the one before it, and every third one a second value from up to 40
    before (a residual). One in ten is compute-bound. Its gradient uses the gradient of the next
    value, and what the value was computed from.

    Args:
        num_values: n; half of the values are in each pass.
        seed: of the random numbers.
    """
    random = np.random.default_rng(seed)
    half = num_values // 2
    forward = np.arange(1, half)
    joins = forward[random.random(half - 1) < 1 / 3]
    residuals = joins - 2 - random.integers(0, 40, len(joins))
    joins, residuals = joins[residuals >= 0], residuals[residuals >= 0]

    gradient_of = 2 * half - 1 - np.arange(half)  # the gradient of the last value comes first
    uses = [
        (forward - 1, forward),
        (residuals, joins),
        (gradient_of[1:], gradient_of[:-1]),
        (np.arange(half - 1), gradient_of[1:]),
    ]
    producers = np.concatenate([u for u, _ in uses])
    consumers = np.concatenate([v for _, v in uses])
    n = 2 * half
    compute_bound = np.zeros(n, np.bool_)
    compute_bound[1:half] = random.random(half - 1) < 0.1
    compute_bound[gradient_of[1:]] = compute_bound[1:half]
    sizes = 4 * 2 ** random.integers(8, 22, half)
    none = np.zeros(n, np.bool_)

    def only(*indices: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        flags = none.copy()
        flags[list(indices)] = True
        return flags

    fusible = ~compute_bound & ~only(0, half)  # the input, and the gradient that comes in
    return Graph(
        names=tuple(f"v{i}" for i in range(n)),
        ops=("synthetic",) * n,
        dtypes=("float32",) * n,
        shapes=((),) * n,
        bytes=np.concatenate([sizes, sizes[::-1]]),
        storage=np.arange(n),
        flops=np.zeros(n, np.int64),
        region=np.repeat([int(Region.FORWARD), int(Region.TANGENTS)], half),
        input=only(0),
        parameter=none,
        output=only(half - 1),
        gradient=only(n - 1),
        fusible=fusible,
        random=none,
        view=none,
        compute_bound=compute_bound,
        must_save=none,
        must_recompute=none,
        prefer_save=none,
        prefer_recompute=none,
        producers=producers,
        consumers=consumers,
        fusible_uses=fusible[producers] & fusible[consumers],
        cannot_save=Bans.none(n),
        cannot_recompute=Bans.none(n),
        meta={"model": f"synthetic-{num_values}"},
    )
