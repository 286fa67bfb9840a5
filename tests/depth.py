"""How deep the tests go: a quick half for whoever waits, a deep half for machines.

Plain `pytest` runs the quick half: every property, on few random inputs and on chosen cases. `pytest --deep` runs
what is marked `deep`, and every test that draws random inputs once more, on many of them. HYPOTHESIS_PROFILE
overrules how many: `quick`, `deep`, or `nightly`, whose inputs are new on every run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

DEEP_EXAMPLES = 100

settings.register_profile(
    "deep", max_examples=DEEP_EXAMPLES, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("deep"), max_examples=10)
settings.register_profile("nightly", settings.get_profile("deep"), max_examples=5000, derandomize=False)

deep = pytest.mark.deep
"""Runs in the deep half only."""

deeper = pytest.mark.deeper
"""Runs in both halves, as tests do that draw their inputs: for those that leave the drawing to `remat.testing`."""


def examples(in_the_deep_half: int) -> int:
    """How many inputs to draw, in proportion to the profile: that many in the deep half, a tenth in the quick one."""
    return max(1, in_the_deep_half * settings.default.max_examples // DEEP_EXAMPLES)


def drawn(in_the_deep_half: int) -> settings:
    """A decorator that has Hypothesis draw that many inputs in the deep half, and in proportion in others."""
    return settings(max_examples=examples(in_the_deep_half))


def deep_except(chosen: Collection[Any], every: Iterable[Any]) -> list[Any]:
    """The parameters of a test of which the quick half runs the chosen ones only."""
    parameters = list(every)
    unknown = [value for value in chosen if value not in parameters]
    assert not unknown, f"not among the parameters: {unknown}"
    return [value if value in chosen else pytest.param(value, marks=deep) for value in parameters]
