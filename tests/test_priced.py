"""`Problem.priced` is a new problem, checked as one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from remat import Problem, solve
from remat.answer.choice import Choice
from remat.errors import InvalidProblem
from remat.plugin import Bans

CHAIN = Problem.of([0, 0, 0], edges=[(0, 1), (1, 2)], needed=[2], cannot_recompute={0: "an input"})


def terms(**changed: Any) -> dict[str, Any]:
    usual = {
        "save_cost": np.array([4, 2, 9]),
        "recompute_cost": np.array([0, 0, 1]),
        "cannot_save": Bans.none(3),
        "cannot_recompute": CHAIN.cannot_recompute,
        "budget_bytes": None,
    }
    return usual | changed


def test_it_is_the_problem_that_a_constructor_would_make() -> None:
    assert Choice(np.array([False, True, False]), np.array([False, False, True])).cost(CHAIN.priced(**terms())) == 3
    assert solve(CHAIN.priced(**terms())).plan == solve(replace(CHAIN, **terms())).plan
    assert solve(CHAIN).objective == 0  # and the old one is as it was


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"save_cost": np.array([4, -2, 9])}, r"save_cost\['v1'\] must be a non-negative integer, got -2"),
        ({"recompute_cost": np.array([0.5, 0, 0])}, "recompute_cost must hold whole numbers"),
        ({"save_cost": np.array([4, 2])}, r"save_cost must be of shape \(3,\)"),
        ({"save_cost": np.array([2**61, 2**61, 0])}, "add up to less than"),
        ({"cannot_save": Bans.none(2)}, "cannot_save must have length 3, got 2"),
        ({"budget_bytes": -1}, "budget_bytes must be a non-negative integer or None, got -1"),
    ],
)
def test_what_a_constructor_refuses_is_refused(changed: dict[str, Any], message: str) -> None:
    for make in (lambda: CHAIN.priced(**terms(**changed)), lambda: replace(CHAIN, **terms(**changed))):
        with pytest.raises(InvalidProblem, match=message):
            make()
