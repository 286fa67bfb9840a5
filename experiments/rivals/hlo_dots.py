"""Counts the arithmetic of matrix products in a program of XLA, given as HLO text."""

from __future__ import annotations

import re
from functools import cache
from math import prod

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) .*\{\n((?:.*\n)*?)\}", re.MULTILINE)
_DEFINED = re.compile(r"%?([\w.-]+) = \w+\[([\d,]*)\]")
_DOT = re.compile(r"= \w+\[([\d,]*)\]\S* dot\((?:\w+\[[^ ]* )?%?([\w.-]+).*?lhs_contracting_dims=\{([\d,]*)\}")
_CALLED = re.compile(r"(?:to_apply|calls)=%?([\w.-]+)")
_UNKNOWN = re.compile(r" while\(| conditional\(|custom_call_target=\"[^\"]*(?:matmul|gemm|dot)[^\"]*\"", re.IGNORECASE)


def dot_flops(hlo: str) -> int:
    """Sums two operations for each multiplication of all `dot` instructions, as often as they are called.

    Raises:
        ValueError: a product may be in a loop or a branch, or be a call of a library without shapes to count.
    """
    if found := _UNKNOWN.search(hlo):
        raise ValueError(f"products cannot be counted in a program with {found[0].strip()!r}")
    bodies = {name: body for _, name, body in _COMPUTATION.findall(hlo)}

    @cache
    def flops(name: str) -> int:
        shapes = {value: _numbers(shape) for value, shape in _DEFINED.findall(bodies[name])}
        total = sum(flops(called) for called in _CALLED.findall(bodies[name]))
        for result, left, contracted in _DOT.findall(bodies[name]):
            total += 2 * prod(_numbers(result)) * prod(shapes[left][axis] for axis in _numbers(contracted))
        return total

    return sum(flops(name) for entry, name, _ in _COMPUTATION.findall(hlo) if entry)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]
