"""Computes how a Triton kernel tiles its loops, which decides which loops fit into it.

A kernel runs over one flat range, or over a range of kept points and one of reduced points. Pointwise loops that access
memory in different orders have two-dimensional tiles. Source: `SIMDScheduling.select_tiling` and
`SIMDKernel.is_compatible` of torch 2.13 (`torch/_inductor/codegen/simd.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod

from remat.predict.kernels.index import Shape
from remat.predict.kernels.loops import step_of
from remat.predict.kernels.triton_loops import TritonNest


@lru_cache(maxsize=1 << 14)
def fits(ranges: Shape, sizes: Shape, reduced: Shape = ()) -> bool:
    """Returns whether loops can be split so that they fill the ranges of a kernel one after the other.

    >>> fits((8, 6), (4, 12)), fits((8, 6), (2, 4, 6)), fits((8, 6), (3, 16))
    (True, True, False)
    """
    left = list(ranges)
    at = 0
    for size in (n for n in (*sizes, *reduced) if n != 1):
        while at < len(left) and left[at] == 1:
            at += 1
        rest, here = size, at
        while here + 1 < len(left) and rest > left[here]:
            if rest % left[here]:
                return False
            rest //= left[here]
            left[here] = 1
            here += 1
        if here >= len(left) or left[here] % rest:
            return False
        left[here] //= rest
    return all(n == 1 for n in left)


def tiling(nests: Sequence[TritonNest], points: int) -> Shape:
    """Returns the sizes of the one or two tiled dimensions of a pointwise kernel."""
    best: list[tuple[int, Shape]] = []
    seen: set[object] = set()
    for nest in nests:
        for name, sizes, score in _candidates(nest):
            if name not in seen:
                seen.add(name)
                best.append((score, sizes))
    for _, sizes in sorted(best, key=lambda scored: -scored[0]):
        if all(fits(sizes, nest.sizes, nest.reduced) for nest in nests):
            return sizes
    return (points,)


# An access whose stride is 1 in a loop before the last one is a reason for two tiles.
def _candidates(nest: TritonNest) -> list[tuple[object, Shape, int]]:
    sizes = nest.sizes
    if len(sizes) <= 1 or nest.reduced:
        return []
    candidates: list[tuple[object, Shape, int]] = [("none", (prod(sizes),), 0)]
    for dep in nest.walks:
        buffer, dims, _ = dep
        steps = [step_of(digits) for digits in dims]
        if 1 not in steps:
            continue
        split = steps.index(1) + 1
        if not any(steps[split:]):
            continue
        tiles = prod(sizes[:split]), prod(sizes[split:])
        score = prod(n for n, step in zip(sizes, steps, strict=True) if step)
        score *= 2 if dep is nest.walks[-1] else 1
        for tile in tiles:
            score *= 2 if tile >= 32 and tile % 32 == 0 else 1
        if score >= prod(sizes):
            candidates.append((buffer, tiles, score))
    return candidates
