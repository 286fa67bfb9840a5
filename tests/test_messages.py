"""An error names the argument, what was expected, and what came; `Problem.priced` refuses what a constructor does."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from remat import Choice, Problem, solve
from remat.plugin import Bans, InvalidProblem
from remat.words import spoken_gap


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"save_cost": [4, -4]}, r"Problem.save_cost\['v1'\].*negative.*-4"),
        ({"save_cost": [1.5, 2]}, "Problem.save_cost.*2..62.*float64"),
        ({"save_cost": [math.nan, 2]}, "Problem.save_cost.*2..62.*float64"),
        ({"save_cost": [-math.inf, 2]}, "Problem.save_cost.*2..62.*float64"),
        ({"save_cost": [1, [2]]}, "Problem.save_cost.*one-dimensional"),
        ({"recompute_cost": [1]}, r"Problem.recompute_cost.*\(2,\).*\(1,\)"),
        ({"recompute_cost": []}, r"Problem.recompute_cost.*\(2,\).*\(0,\)"),
        ({"save_bytes": [[1, 2]]}, r"save_bytes.*\(2,\).*\(1, 2\)"),
        ({"save_bytes": [1, -1]}, r"Problem.save_bytes\['v1'\].*negative.*-1"),
        ({"names": ["a"]}, r"names.*\(2\), got 1"),
        ({"names": ["a", "a"]}, "Problem.names.*unique.*'a' twice"),
        ({"needed": [2]}, r"needed.*2.*0 to 1"),
        ({"needed": [-1]}, r"needed.*-1.*0 to 1"),
        ({"needed": [False, True]}, "needed .*positions.*False"),
        ({"needed": ["v1"]}, "needed .*positions.*'v1'"),
        ({"cannot_save": {7: "big"}}, "cannot_save.*7.* 2"),
        ({"cannot_recompute": {7: "big"}}, "cannot_recompute.*7.* 2"),
        ({"edges": [(0, 2)]}, r"Problem use 0.*0.*2.*0 to 1"),
        ({"edges": [(0, 1), (0, 1)]}, "Problem.*once.*'v0' -> 'v1' twice"),
        ({"edges": [(1, 0)]}, "topological order.*'v0'.*'v1'"),
        ({"edges": [(0, 1), (1, 0)]}, "Problem.*cycle 'v[01]' -> 'v[01]' -> 'v[01]'"),
        ({"edges": [(0, 1, 1), (0, 1, 1)]}, r"edges.*producer, consumer.*\(0, 1, 1\)"),
        ({"edges": [(0, 0.9)]}, "edges.*2..62.*float64"),
        ({"budget_bytes": -1}, "Problem.budget_bytes.*negative.*None.*-1"),
        ({"budget_bytes": 1.5}, "Problem.budget_bytes.*negative.*None.*1.5"),
    ],
)
def test_a_problem_says_what_is_wrong_with_it(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidProblem, match=message):
        Problem.of(**{"save_cost": [1, 2], **arguments})


def test_a_ban_keeps_its_first_reason() -> None:
    first, second = Bans.of(3, {0: "random", 1: "a tuple"}), Bans.of(3, {1: "an input", 2: "an input"})
    assert (first | second).as_dict() == {0: "random", 1: "a tuple", 2: "an input"}
    assert [(first | second).reason(i) for i in range(3)] == ["random", "a tuple", "an input"]


def test_a_bound_that_tells_nothing_is_called_so() -> None:
    assert (spoken_gap(0.031), spoken_gap(0.031, 1, "gap "), spoken_gap(0.98)) == (
        "3.10%",
        "gap 3.1%",
        "no useful bound",
    )


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
