"""What is missing on a version of torch: tests that cannot pass there, each with the reason. `docs/running.md` says it.

They are expected to fail, strictly: one that passes again is a failure, until it is taken off this list.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

MISSING: dict[str, dict[str, str]] = {
    "2.11": {
        "test_what_inductor_computes_in_an_input_is_not_saved_there[writes_into_a_cache]": (
            "Inductor of torch 2.11 writes the zeros in the kernel of the softmax, before the next product has read "
            "what they replace; without a gradient, too"
        ),
        "test_operators_of_other_models_have_inductors_kernels_too[repeat]": (
            "Inductor of torch 2.11 stores an expression of more than 30 operations. A sum of six terms has 37, but is "
            "predicted to have those of one term"
        ),
        "test_a_step_allocates_what_is_predicted[LayerNorm-GeLU MLP-save least]": (
            "Inductor of torch 2.11 keeps the graph's own order, which by its sum of live memory takes 1 KiB less "
            "than others; predicted is another order, whose peak is 5% lower"
        ),
        "test_inductor_expects_the_same_peaks_of_a_small_model": (
            "`estimate_peak_memory` of torch 2.11 takes what a pass returns off before the pass begins, and so expects "
            "less; the measured peak is the predicted one"
        ),
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
