"""Counts the arithmetic of matrix products in a compiled program of XLA, given as HLO text."""

from __future__ import annotations

import re
from math import prod

_DEFINED = re.compile(r"%?([\w.-]+) = \w+\[([\d,]*)\]")
_DOT = re.compile(r"= \w+\[([\d,]*)\]\S* dot\((.*?)\).*?lhs_contracting_dims=\{([\d,]*)\}")
_SHAPED = re.compile(r"\w+\[([\d,]*)\]\S* %?[\w.-]+")
_ELSEWHERE = re.compile(r"custom_call_target=\"([^\"]*(?:matmul|gemm|dot)[^\"]*)\"", re.IGNORECASE)


def dot_flops(hlo: str) -> int:
    """Sums two operations for each multiplication of all `dot` instructions; each counts once, loops or not.

    Raises:
        ValueError: the program calls a library for matrix products, which this cannot count; or has a loop.
    """
    if found := _ELSEWHERE.search(hlo):
        raise ValueError(f"the program computes products by a call of {found[1]}, which has no shapes to count")
    if re.search(r"\) while\(|\]\S* while\(", hlo):
        raise ValueError("the program has a loop; unroll it, so that each product is written once")
    shape_of = {name: _numbers(shape) for name, shape in _DEFINED.findall(hlo)}
    flops = 0
    for result, operands, contracted in _DOT.findall(hlo):
        shaped = _SHAPED.match(operands)
        left = _numbers(shaped[1]) if shaped else shape_of[operands.split(",")[0].strip().lstrip("%")]
        flops += 2 * prod(_numbers(result)) * prod(left[axis] for axis in _numbers(contracted))
    return flops


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
