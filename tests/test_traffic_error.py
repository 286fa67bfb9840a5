"""The experiment that holds predicted memory traffic against Inductor's count."""

from __future__ import annotations

import pytest
import torch

import remat
from experiments.accuracy.traffic_error import Part, different_plans, overall, summary
from experiments.models import workloads
from experiments.models.held_out import HELD_OUT, images, others, sequences
from experiments.models.workloads import KERNEL_ZOO

THREE = Part({}, 3, on_the_frontier=0, budgets=(1.0,))


def test_plans_differ_and_are_legal() -> None:
    torch.manual_seed(0)
    model, args = workloads.perceptron(layers=2)
    graph = remat.capture(model, *args)
    illegal = remat.Plan((), remat.plugin.base_problem(graph).names)
    for part in (Part({}), THREE):
        found = dict(different_plans(graph, {1.0: illegal}, part))
        assert len(found) == len(set(found.values())) == part.plans
        assert illegal not in found.values()
        for plan in found.values():
            remat.check_plan(remat.plugin.base_problem(graph), plan)
        assert any(name.startswith("frontier") for name in found) == bool(part.on_the_frontier)


@pytest.mark.parametrize("name", (images.MODELS | sequences.MODELS | others.MODELS).keys())
def test_held_out_models_train(name: str) -> None:
    """They do something: a finite loss, and a gradient for most parameters, not all of them zero."""
    torch.manual_seed(0)
    model, args = HELD_OUT[name]()
    loss = model(*args)
    loss.backward()
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert loss.isfinite()
    assert 2 * len(gradients) > len(list(model.parameters()))
    assert any(gradient.count_nonzero() for gradient in gradients)


def test_no_model_is_both_held_out_and_in_the_zoo() -> None:
    assert not HELD_OUT.keys() & KERNEL_ZOO.keys()


def test_errors_are_summed_up_and_the_worst_plan_is_named() -> None:
    sizes = [("a", 104, 100), ("b", 180, 200), ("c", 400, 400)]
    rows = [
        {"case": "m", "part": "zoo", "plan": plan, "predicted_bytes": predicted, "inductor_bytes": counted}
        for plan, predicted, counted in sizes
    ]
    found = overall(rows)
    counts = [found[key] for key in ("plans", "exact", "within_1_percent", "within_6_percent")]
    assert counts == [3, 1, 1, 2]
    assert (found["median_error"], found["worst_error"]) == (pytest.approx(0.04), pytest.approx(0.1))
    assert found["worst"]["plan"] == "b"
    (section,) = summary(rows)
    assert "| m | 3 | 4.0% | -10.0% | b | 1.000 |" in section
