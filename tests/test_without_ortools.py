"""Without OR-Tools the defaults are what is there, and say so once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
from examples import chain

import remat
from costmodels import ByteTraffic
from remat.answer import registry, solver


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    """Packages that are not installed, for the time of a test."""
    gone = {"ortools"}
    monkeypatch.setattr(solver, "find_spec", lambda name: None if name in gone else find_spec(name))
    registry.default_is_missing.cache_clear()
    yield gone
    registry.default_is_missing.cache_clear()


def test_minimum_cuts_are_found_by_scipy_and_it_is_said_once(without: set[str]) -> None:
    problem = ByteTraffic().pose(chain(5))
    with pytest.warns(UserWarning, match=r"ortools is not installed, so scipy or networkx .*\.\[ortools\]"):
        found = remat.solve(problem)
    assert found.solver == "scipy"
    assert found.is_proven
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert remat.solve(problem).plan == found.plan
        assert remat.frontier(problem).points[-1].cost == found.objective


def test_by_networkx_where_scipy_is_missing_too_or_cannot_count_so_far(without: set[str]) -> None:
    problem = ByteTraffic().pose(chain(5))
    large: Any = replace(problem, save_cost=problem.save_cost * 2**40, recompute_cost=problem.recompute_cost * 2**40)
    with pytest.warns(UserWarning, match="ortools"):
        assert remat.solve(large).solver == "networkx"
    without.add("scipy")
    assert remat.solve(problem).solver == "networkx"


def test_a_budget_is_solved_without_cpsat(without: set[str]) -> None:
    problem = ByteTraffic().pose(chain(5))
    most = remat.solve(problem, "networkx").plan
    assert most is not None
    with pytest.warns(UserWarning, match="ortools"):
        found = remat.solve(replace(problem, budget_bytes=int(problem.save_bytes.sum()) - 1))
    assert found.solver == "portfolio"


def test_a_solver_that_was_asked_for_is_still_refused(without: set[str]) -> None:
    with pytest.raises(remat.errors.NotInstalled, match="ortools"):
        remat.solve(ByteTraffic().pose(chain(5)), "ortools")
