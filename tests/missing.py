"""What is missing on a version of torch: tests that cannot pass there, each with the reason. `docs/running.md` says it.

They are expected to fail, strictly: one that passes again is a failure, until it is taken off this list.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

_LOWERED_OTHERWISE = "kernels are predicted by the rules of torch 2.13, and Inductor of 2.11 lowers operators otherwise"

MISSING: dict[str, dict[str, str]] = {
    "2.11": {
        "test_what_inductor_computes_in_an_input_is_not_saved_there[writes_into_a_cache]": (
            "Inductor of torch 2.11 writes the zeros before it has read what they replace, without a gradient, too"
        ),
        "test_kernels_are_those_of_inductors_own_scheduler[aggressive-convolutions]": _LOWERED_OTHERWISE,
        "test_operators_of_other_models_have_inductors_kernels_too[separable]": _LOWERED_OTHERWISE,
        "test_operators_of_other_models_have_inductors_kernels_too[repeat]": _LOWERED_OTHERWISE,
        "test_a_step_allocates_what_is_predicted[LayerNorm-GeLU MLP-save least]": _LOWERED_OTHERWISE,
        "test_a_step_allocates_what_is_predicted[EvoNorm-save least]": _LOWERED_OTHERWISE,
    }
}
"""By the version of torch, without its last number: names of tests, and why they fail."""


def missing_here() -> dict[str, str]:
    """The part of `MISSING` that is about the torch that is installed."""
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return {}
    return MISSING.get(".".join(installed.split(".")[:2]), {})
