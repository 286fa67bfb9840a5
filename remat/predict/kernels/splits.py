"""Decides which reductions Triton's backend splits into two kernels, so that few results keep a whole GPU busy.

Source: `Reduction.num_splits` and `InductorChoices.reduction_split_factor` of torch 2.13.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from math import isqrt, prod

from remat.predict.kernels.index import Access, Shape
from remat.predict.kernels.ir import Buffer
from remat.predict.kernels.loops import in_memory, step_of

PROCESSORS = 132
"""Streaming multiprocessors: those of an H100. An A100 has 108."""

_THREADS, _WARP, _MOST_EACH = 2048, 32, 512
# With so many results per processor, a reduction is not split.
_ENOUGH = 2 * 32
# Below `_SMALL` elements, a thread takes as few as a warp has threads; from `_LARGE` on, it takes the maximum.
_SMALL, _LARGE = _WARP * PROCESSORS * _THREADS, _MOST_EACH * PROCESSORS * _THREADS
_ROWS_UNSPLIT = 8192


def host_processors() -> int:
    return os.cpu_count() or 1


def split_reduction(
    sizes: Shape,
    reduced: Shape,
    reads: Sequence[tuple[Buffer, Access]],
    settle: Callable[[Buffer], None],
    processors: int = PROCESSORS,
) -> tuple[int, bool]:
    """Returns the number of parts of a reduction, and whether it reduces dimensions that are not innermost in memory.

    This fixes the layouts of the buffers that are read, even if nothing is split, and on CPUs, too, as Inductor does.

    Args:
        processors: the number of processors of the GPU or of the host.
    """
    results, elements = prod(sizes), prod(reduced)
    if results == 1:
        return _inner(elements, results), False
    if elements <= _WARP or results >= processors * _ENOUGH:
        return 1, False
    whole: list[bool] = []
    partial: list[bool] = []
    wide = [i for i, n in enumerate((*sizes, *reduced)) if n != 1]
    for buffer, access in reads:
        moves = [i for i in wide if any(s for _, s in access[0][i])]
        if not any(i >= len(sizes) for i in moves) and len(moves) < len(wide):
            continue
        settle(buffer)
        dims = in_memory(buffer, access)[0]
        across = all(abs(step_of(dims[i])) != 1 for i in wide if i >= len(sizes))
        (whole if len(moves) == len(wide) else partial).append(across)
    directions = whole or partial
    if not directions:
        return 1, False
    if 2 * sum(directions) < len(directions):
        return _inner(elements, results), False
    return _across(elements, results), True


def _inner(elements: int, results: int) -> int:
    if results >= 2 * PROCESSORS or elements <= _ROWS_UNSPLIT:
        return 1
    threads = 256
    if elements * results <= _SMALL:
        each = _WARP
    elif elements * results < _LARGE:
        blocks = _up(PROCESSORS * _THREADS // (2 * threads), results)
        each = _even(elements, _up(elements, threads * blocks), 30, _WARP)
    else:
        each = _even(elements, _MOST_EACH, 50, 1)
    return _up(elements, each * threads)


def _across(elements: int, results: int) -> int:
    rows, columns = 4, 128
    if elements * results < _SMALL:
        each = _WARP
    elif elements * results < _LARGE:
        blocks = _up(PROCESSORS * _THREADS // 256, _up(results, columns))
        each = _even(elements, _up(elements, rows * blocks), 20, _WARP)
    else:
        each = _even(elements, _MOST_EACH, 50, 1)
    return _up(elements, rows * each)


def _up(a: int, b: int) -> int:
    return -(-a // b)


# The divisor nearest to the target size, if one is near; of two equally near ones, the smaller.
@lru_cache(maxsize=1 << 12)
def _even(elements: int, target: int, slack: int, least: int) -> int:
    divisors = {d for i in range(1, isqrt(elements) + 1) if elements % i == 0 for d in (i, elements // i)}
    nearest = min(sorted(divisors), key=lambda d: abs(d - target))
    return max(nearest, least) if abs(nearest - target) < slack else target
