"""Whatever a model does, whatever is saved: two training steps equal eager's."""

from __future__ import annotations

import pytest
import torch
from depth import deep, deep_except, drawn
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import Dice, assert_equal_to_eager, each_case

import remat
from costmodels import ByteTraffic
from experiments.models.cases import CASES
from experiments.models.model_case import ModelCase
from experiments.models.save_everything import SaveEverything, SaveLeast
from remat import InvalidPlan, Plan
from remat.pytorch import capture_all

STRATEGIES: dict[str, remat.CostModel] = {
    "save everything": SaveEverything(),
    "save least": SaveLeast(),
}
RANDOM_PLANS = 4
"""For each case: 38 cases make 152 random legal plans in the deep half; the quick one draws one for each kind."""

CHOSEN = (
    "pointwise chain",
    "dropout",
    "graph break",
    "selective checkpoint of dropout",
    "custom operator",
    "symbolic batch",
    "buffers written in both passes",
    "batch normalization",
    "attention with dropout",
)
"""A case of every kind: what the quick half compiles to the end."""


@each_case(CHOSEN)
@pytest.mark.parametrize("strategy", deep_except(["save least"], STRATEGIES))
def test_without_code_generation(case: ModelCase, strategy: str) -> None:
    cost_model = STRATEGIES[strategy]
    assert_equal_to_eager(
        case, lambda model: remat.compile(model, cost_model=cost_model, codegen=False, dynamic=case.dynamic)
    )


@each_case(CHOSEN)
@settings(drawn(RANDOM_PLANS), suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32 - 1))
def test_random_plans(case: ModelCase, seed: int) -> None:
    cost_model = Dice(seed)
    assert_equal_to_eager(
        case, lambda model: remat.compile(model, cost_model=cost_model, codegen=False, dynamic=case.dynamic)
    )


@each_case(CHOSEN)
def test_broken_plans_never_run(case: ModelCase) -> None:
    """A needed value missing, a ban broken: refused when torch asks for the plan, before anything runs."""
    torch.manual_seed(0)
    model, batch = case.build(), case.inputs()
    for graph in capture_all(model, *batch):
        problem = remat.plugin.base_problem(graph)
        plan = remat.solve(ByteTraffic().pose(graph)).plan
        broken = [Plan(plan.saved[1:], plan.recomputed)]
        never = [name for name, i in problem.index.items() if problem.cannot_recompute.mask[i]]
        broken += [Plan(tuple(n for n in plan.saved if n != name), (*plan.recomputed, name)) for name in never[:3]]
        for wrong in broken:
            with pytest.raises(InvalidPlan, match="the plan is not legal"):
                remat.check_plan(problem, wrong)
    step = remat.compile(model, plan=Plan((), ()), codegen=False, dynamic=case.dynamic)
    with pytest.raises(Exception, match="the plan is not legal"):
        step(*batch)


OTHERS_COMPILE = {
    *("pointwise chain", "batch normalization", "selective checkpoint of dropout"),
    "buffers written in both passes",
}
"""Kinds that others compile to the end in the quick half: offloaded steps, measured ones, draws, and old values."""
INDUCTOR = [
    *((CASES[name], SaveLeast()) for name in CHOSEN if name not in OTHERS_COMPILE),
    *(pytest.param(case, ByteTraffic(mode="aggressive"), marks=deep) for case in CASES.values()),
]
"""A plan for each case, and for a case of most kinds one that runs most of the forward pass again."""


@pytest.mark.parametrize(("case", "cost_model"), INDUCTOR, ids=lambda it: getattr(it, "name", None))
def test_through_inductor(case: ModelCase, cost_model: remat.CostModel) -> None:
    options = {"fallback_random": True}  # eager's random numbers
    assert_equal_to_eager(
        case, lambda model: remat.compile(model, cost_model=cost_model, options=options, dynamic=case.dynamic)
    )
