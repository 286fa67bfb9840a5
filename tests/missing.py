"""What is missing on a version of torch: tests that cannot pass there, each with the reason.

`docs/reference/versions.md` says it.

They are expected to fail, strictly: one that passes again is a failure, until it is taken off this list.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

MISSING: dict[str, dict[str, str]] = {
    "2.11": {
        "test_what_inductor_computes_in_an_input_is_not_saved_there[writes_into_a_cache-least]": (
            "Inductor of torch 2.11 writes the zeros in the kernel of the softmax, before the next product has read "
            "what they replace; without a gradient, too"
        ),
        "test_what_inductor_computes_in_an_input_is_not_saved_there[writes_into_a_cache-aggressive]": "as above",
        "test_the_budget_of_a_region_becomes_ours": "torch 2.11 has no `region_activation_memory_budget`",
        "test_regions_that_the_model_marks_have_their_own_budgets[(0.2, 1.0)]": "as above",
        "test_regions_that_the_model_marks_have_their_own_budgets[(0.2, 0.5)]": "as above",
        "test_regions_that_the_model_marks_have_their_own_budgets[(0.2, None)]": "as above",
        "test_regions_that_the_model_marks_have_their_own_budgets[(None, 0.2)]": "as above",
        "test_marks_that_differ_fall_back_to_pytorchs_plan": "as above",
        "test_marks_are_part_of_the_key_of_torchs_cache": "as above",
        "test_marks_beside_a_cost_model_are_ignored_with_a_warning": "as above",
        "test_results_of_attention_lie_in_memory_as_queries_do[order0-h100]": (
            "Inductor of torch 2.11 copies a gradient before the backward pass of flash attention on a GPU, which is "
            "not predicted"
        ),
        "test_results_of_attention_lie_in_memory_as_queries_do[order1-h100]": "as above",
        "test_results_of_attention_lie_in_memory_as_queries_do[order2-h100]": "as above",
        "test_checkpointed_attention_is_captured_for_a_gpu_without_one": (
            "torch 2.11 asks for the generator of random numbers of the GPU, which is not there"
        ),
        "test_kernels_and_peaks_of_images_are_inductors[Joined-4-default]": (
            "predictions have one kernel more than Inductor of torch 2.11, in the backward pass"
        ),
        "test_a_padded_maximum_shares_a_kernel_with_its_places_as_in_inductor[least]": "as above",
        "test_a_padded_maximum_shares_a_kernel_with_its_places_as_in_inductor[everything]": "as above",
        "test_kernels_for_a_gpu_are_inductors[put_first]": "Inductor of torch 2.11 has one kernel more",
        "test_attention_with_a_class_token_has_the_kernels_and_the_peak_of_inductors_code[SaveEverything()]": (
            "predictions have a kernel of their own for the zero of the loss; peaks are those of Inductor"
        ),
        "test_parts_of_a_sum_over_rows_are_in_single_precision[dtype0]": (
            "Inductor of torch 2.11 does not keep the product that the plan saves in the kernel of the sum"
        ),
        "test_parts_of_a_sum_over_rows_are_in_single_precision[dtype1]": "as above",
        "test_random_plans_through_inductor[dropout]": (
            "`reorder_for_peak_memory` of torch 2.11 may swap two draws of random numbers, which are then not eager's; "
            "without it gradients are"
        ),
        "test_copies_beside_the_kernels_through_inductor[dropout]": "draws are swapped, as above",
        "test_the_device_keeps_what_the_plan_says[encoder layer-True]": (
            "Inductor of torch 2.11 writes one of three packed projections by itself: 2 KiB less than the plan says"
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
