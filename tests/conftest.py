"""How many random inputs a test draws: HYPOTHESIS_PROFILE=ci (the default) or nightly."""

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "ci", max_examples=150, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("nightly", settings.get_profile("ci"), max_examples=5000, derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_configure(config: pytest.Config) -> None:
    # PuLP announces its version 4 with each variable that is made; remat asks for pulp<4.
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning:pulp")
