"""Divides the suite into its quick and its deep half: see `depth.py`."""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Iterator
from importlib import import_module

import depth  # noqa: F401  # registers the profiles
import pytest
from hypothesis import Phase, is_hypothesis_test, settings
from missing import missing_here

# For torch, which is loaded later, and for processes of tests. Where each core has a worker of its own, a thread
# that waits must not keep a core busy, and Inductor's helpers would each import torch, to compile next to nothing.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--deep", action="store_true", help="run the deep half of the suite instead of the quick one")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "deep" if config.getoption("--deep") else "quick"))
    # PuLP announces its version 4 with each variable that is made; remat asks for pulp<4.
    config.addinivalue_line("filterwarnings", "ignore::DeprecationWarning:pulp")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = in_the_deep_half if config.getoption("--deep") else in_the_quick_half
    config.hook.pytest_deselected(items=[item for item in items if not wanted(item)])
    items[:] = [item for item in items if wanted(item)]
    missing = missing_here()
    for item in items:
        if item.name in missing:
            item.add_marker(pytest.mark.xfail(reason=missing[item.name], strict=True))


def pytest_collection_finish() -> None:
    """What torch notes of each compilation, for its own developers, is neither taken nor written down."""
    # Pytest listens to each logger that does not propagate; and if anybody listens, torch writes its graphs as text.
    logging.getLogger("torch.__trace").propagate = True
    if "torch" in sys.modules:
        guards = vars(import_module("torch._dynamo.guards"))
        if "profile_guard_manager" in guards:  # empties the caches of the processor, to time guards from there
            guards["profile_guard_manager"] = no_time


def no_time(*_: object) -> float:
    return 0.0


@pytest.fixture(autouse=True, scope="module")
def only_new_objects_are_looked_at() -> None:
    """Python's collector no longer looks at what was imported, and at what torch's compiler keeps of earlier files.

    It would look at all of it each time that it runs, which took a tenth of the time of tests that compile.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def the_collector_runs_rarely() -> None:
    """A compilation makes millions of objects, most of which need no collector."""
    gc.set_threshold(20_000, 20, 10)


def in_the_quick_half(item: pytest.Item) -> bool:
    return item.get_closest_marker("deep") is None


def in_the_deep_half(item: pytest.Item) -> bool:
    marked = any(item.get_closest_marker(name) for name in ("deep", "deeper"))
    return marked or is_hypothesis_test(getattr(item, "obj", None))


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    """What earlier tests compiled does not count: Dynamo runs a function eagerly after eight of its graphs."""
    if "torch._dynamo" in sys.modules:
        sys.modules["torch"].compiler.reset()


@pytest.fixture
def no_shrinking() -> Iterator[None]:
    """The first failure will do: making it small takes most of the time."""
    profile = settings.get_current_profile_name()
    settings.register_profile("no shrinking", settings.default, phases=[Phase.generate])
    settings.load_profile("no shrinking")
    yield
    settings.load_profile(profile)
