"""Compares the results of a training step with those of a reference step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from remat.pytorch.seam.torch_names import tree_leaves

# A gradient that is zero except for rounding, such as that of a bias before a normalization, has no digits to compare.
# So errors are relative to at least this share of the largest gradient.
_FLOOR = 1e-2


@dataclass(frozen=True)
class Outcome:
    """Holds the results of one step."""

    values: Mapping[str, Tensor]  # outputs, loss, gradients and buffers, by name; copies
    drew: bool  # whether the step drew random numbers

    def difference(self, expected: Outcome) -> tuple[float, str]:
        """Returns the largest relative error of a value, and the name of that value.

        Errors are relative to the largest expected element. The error is infinite if a value or an element is missing
        or has another shape.
        """
        if self.values.keys() != expected.values.keys():
            return math.inf, sorted(self.values.keys() ^ expected.values.keys())[0]
        gradients = [_largest(value) for name, value in expected.values.items() if name.startswith("gradient")]
        floor = _FLOOR * max(gradients, default=0.0)
        errors = {
            name: _relative_error(self.values[name], value, floor if name.startswith("gradient") else 0.0)
            for name, value in expected.values.items()
        }
        worst = max(errors, key=errors.__getitem__)
        return errors[worst], worst


def outcome(
    step: Callable[..., Any], model: Callable[..., Any], args: tuple[Any, ...], loss: Callable[[Any], Tensor]
) -> Outcome:
    """Runs one step, with gradients cleared before it, and copies its results."""
    leaves = {f"argument {i}": leaf for i, leaf in enumerate(tree_leaves(args)) if isinstance(leaf, Tensor)}
    buffers: dict[str, Tensor] = {}
    if isinstance(model, nn.Module):
        leaves |= dict(model.named_parameters())
        buffers |= dict(model.named_buffers())
    for leaf in leaves.values():
        if leaf.is_leaf:
            leaf.grad = None
    before = _random_states()
    with torch.enable_grad():
        output = step(*args)
        scalar: Any = loss(output)
        scalar.backward()
    drew = any(not torch.equal(a, b) for a, b in zip(before, _random_states(), strict=True))
    values = {f"output {i}": leaf for i, leaf in enumerate(tree_leaves(output)) if isinstance(leaf, Tensor)}
    values["loss"] = scalar
    gradients = {name: leaf.grad for name, leaf in leaves.items() if leaf.is_leaf}
    values |= {f"gradient of {name}": gradient for name, gradient in gradients.items() if gradient is not None}
    values |= {f"buffer {name}": buffer for name, buffer in buffers.items()}
    return Outcome({name: value.detach().clone() for name, value in values.items()}, drew)


def verdicts(
    outcomes: Mapping[str, Outcome],
    eager: Callable[[], Outcome],
    compiled: tuple[str, Callable[[], Outcome]],
    tolerance: float,
) -> dict[str, dict[str, Any]]:
    """Decides for each strategy whether its results are right.

    Args:
        outcomes: the results by name, all from one state and seed.
        compiled: name of a compiled strategy without recomputation, and what runs it: the second reference if random
            numbers are drawn, because compiled steps may draw others than eager mode.

    Returns:
        by name: relative_error, compared_with, and error, which is "" if nothing is wrong.
    """
    try:
        expected = eager()
        judged = {name: _verdict(actual, expected, "eager", tolerance) for name, actual in outcomes.items()}
        apart = [name for name, verdict in judged.items() if verdict["error"]]
        if expected.drew and apart:
            reference, run = compiled
            once = outcomes.get(reference) or run()
            judged |= {name: _verdict(outcomes[name], once, reference, tolerance) for name in apart}
            if reference in apart:
                judged[reference] = _unknown("")  # the reference itself
    except Exception as error:  # the reference failed, not a strategy
        return {name: _unknown(f"compared with nothing, as that fails: {first_line(error)}") for name in outcomes}
    return judged


def _verdict(actual: Outcome, expected: Outcome, reference: str, tolerance: float) -> dict[str, Any]:
    error, where = actual.difference(expected)
    wrong = f"wrong: {where} is off by {error:.2g} from {reference}, above the tolerance of {tolerance:g}"
    return {"relative_error": error, "compared_with": reference, "error": wrong if error > tolerance else ""}


def _unknown(why: str) -> dict[str, Any]:
    return {"relative_error": math.nan, "compared_with": "", "error": why}


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0]


def _relative_error(actual: Tensor, expected: Tensor, floor: float) -> float:
    if actual.shape != expected.shape:
        return math.inf
    if not actual.numel():
        return 0.0
    wide = torch.complex128 if expected.is_complex() else torch.float64
    a, b = actual.to(wide), expected.to(wide)
    same = (a == b) | (a.isnan() & b.isnan())
    error = (a - b).abs().masked_fill(same, 0)
    if not bool(error.isfinite().all()):
        return math.inf
    largest = float(error.max())
    return largest / max(_largest(b), floor) if largest else 0.0


def _largest(value: Tensor) -> float:
    magnitudes = value.abs().double()
    finite = magnitudes[magnitudes.isfinite()]
    return max(float(finite.max()), torch.finfo(torch.float64).tiny) if finite.numel() else math.inf


def _random_states() -> list[Tensor]:
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else ())]
