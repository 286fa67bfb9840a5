"""What can change a plan changes torch's cache key, however deep in the settings it lies; nothing else does."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from costmodels import ByteTraffic, MemoryBudget, RecomputeTime
from remat import CostModel, Graph, Plan
from remat.facts.columns import IntArray
from remat.plugin import Estimator, Terms, register, unregister
from remat.predict.time import Profile, Roofline
from remat.predict.time.known_devices import find_device
from remat.pytorch import Partitioner
from solvers import NetworkX, ORTools


def key(cost_model: CostModel) -> str:
    return Partitioner.of(cost_model).uuid()


def test_the_cache_key_changes_with_whatever_can_change_a_plan() -> None:
    keys = [
        partitioner.uuid()
        for partitioner in (
            Partitioner.of(),
            Partitioner.of(ByteTraffic(mode="aggressive")),
            Partitioner.of(ByteTraffic(rules={"random": False})),
            Partitioner.of(solver=NetworkX()),
            Partitioner.of(solver=NetworkX(flow_func="dinitz")),
            Partitioner.of(ByteTraffic() + ByteTraffic()),
        )
    ]
    assert len(set(keys)) == len(keys)
    by_name = Partitioner.of("byte-traffic:prices=pytorch", solver="ortools")
    assert Partitioner.of(ByteTraffic(prices="pytorch"), ORTools()).uuid() == by_name.uuid()


@pytest.mark.parametrize("make", [Roofline, lambda path: Profile(ceilings=path)])
def test_the_cache_key_changes_with_what_an_estimator_reads(make: Any, tmp_path: Path) -> None:
    device = find_device("a100")
    keys: list[str] = []
    for launch_ns in (1000, 2000, 1000):
        dataclasses.replace(device, launch_ns=launch_ns).save(tmp_path / "device.json")
        keys.append(key(MemoryBudget(estimator=make(tmp_path / "device.json"))))
    assert keys[0] == keys[2] != keys[1]


def test_the_cache_key_changes_with_the_device_that_offloads(tmp_path: Path) -> None:
    device = find_device("a100")
    keys: list[str] = []
    for host_bytes_per_s in (1e9, 2e9, 1e9):
        dataclasses.replace(device, host_bytes_per_s=host_bytes_per_s).save(tmp_path / "device.json")
        keys.append(key(MemoryBudget(offload=tmp_path / "device.json")))
    assert keys[0] == keys[2] != keys[1]


MEASURED = {"said": "once"}


@dataclass(frozen=True)
class Measured(Estimator):
    """An estimator whose prices stand elsewhere, as those of a file do."""

    name: ClassVar[str] = "measured-elsewhere"
    unit: ClassVar[str] = "ns"

    def recompute_cost(self, graph: Graph) -> IntArray:
        return np.zeros(len(graph), np.int64)

    def data(self) -> str:
        return MEASURED["said"]


@dataclass(frozen=True)
class Timed(CostModel):
    """A stranger's model, which calls its estimator by another word."""

    name: ClassVar[str] = "timed"
    unit: ClassVar[str] = "ns"

    clock: Any = None
    table: Any = field(default=None, repr=False)

    def terms(self, graph: Graph) -> Terms:
        return Terms.nothing(graph)


@dataclass(frozen=True)
class ReadsAFile(Timed):
    """A model without an estimator that depends on more than its fields."""

    def data(self) -> str:
        return MEASURED["said"]


class Undeclared(CostModel):
    """A model that is no dataclass, so that its `repr` shows no options."""

    name: ClassVar[str] = "undeclared"
    unit: ClassVar[str] = "ns"

    def __init__(self, clock: Any) -> None:
        self.clock = clock

    def terms(self, graph: Graph) -> Terms:
        return Terms.nothing(graph)


@pytest.fixture
def by_name() -> Any:
    register(Measured)
    yield
    unregister(Measured.name)


B, X = MemoryBudget(estimator=Measured()), Timed()


@pytest.mark.usefixtures("by_name")
@pytest.mark.parametrize(
    "model",
    [
        RecomputeTime(Measured()),
        B + X + X,
        X + (X + (X + B)),
        (B + X) + (X + X),
        Timed(clock=Measured()),
        Timed(clock={"cpu": [Measured()]}),
        X + Timed(clock=Timed(clock=Measured())),
        Timed(clock="measured-elsewhere"),
        Timed(clock=frozenset({"cpu", "measured-elsewhere"})),
        X + Undeclared(Measured()),
        X + (X + ReadsAFile()),
    ],
)
def test_no_estimator_lies_too_deep(model: CostModel, monkeypatch: pytest.MonkeyPatch) -> None:
    before = key(model)
    assert key(model) == before
    monkeypatch.setitem(MEASURED, "said", "again")
    assert key(model) != before


def test_an_estimator_counts_that_is_registered_after_its_name_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = key(Timed(clock="measured-elsewhere"))
    register(Measured)
    try:
        before = key(Timed(clock="measured-elsewhere"))
        monkeypatch.setitem(MEASURED, "said", "again")
        assert len({unknown, before, key(Timed(clock="measured-elsewhere"))}) == 3
    finally:
        unregister(Measured.name)


def test_the_graph_that_a_plan_was_made_for_counts() -> None:
    one, other = Plan(("a",), (), ("a: sin, 4 bytes",)), Plan(("b",), (), ("b: cos, 4 bytes",))
    swapped = replace(one, graph=other.graph), replace(other, graph=one.graph)
    assert Partitioner.of(plan=(one, other)).uuid() != Partitioner.of(plan=swapped).uuid()


def test_a_sum_says_what_its_parts_say(monkeypatch: pytest.MonkeyPatch) -> None:
    both = X + (B + ReadsAFile())
    before = both.data()
    monkeypatch.setitem(MEASURED, "said", "again")
    assert before.count("once") == both.data().count("again") == 2
    assert RecomputeTime(Measured()).data() == "again"


def test_a_field_that_repr_hides_or_shortens_counts() -> None:
    long = np.arange(5000)
    other = long.copy()
    other[2500] = 0
    keys = [key(Timed(table=table)) for table in (None, 1, long, other, long.reshape(50, 100), long.astype(np.int32))]
    assert len(set(keys)) == len(keys)
    assert key(Timed(table=long)) == key(Timed(table=long.copy()))


SAME = """
from costmodels import ByteTraffic, MemoryBudget, RecomputeTime
from remat.predict.time import Roofline
from remat.pytorch import Partitioner
from remat.pytorch.run.cache_key import key_of
print(Partitioner.of(MemoryBudget(0.5) + (RecomputeTime(Roofline("h200")) + RecomputeTime()), "lagrangian").uuid())
print(Partitioner.of(ByteTraffic(rules={"random": False, "not_fusible": True})).uuid())
print(Partitioner.of(ByteTraffic()).uuid())
print(key_of(frozenset({"random", "not_fusible", "view"})))
print(Partitioner.of().uuid())
"""


def test_the_cache_key_is_the_same_in_another_process() -> None:
    """Also where Python hashes text otherwise."""
    environment = os.environ | {"PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    other = subprocess.run([sys.executable, "-c", SAME], capture_output=True, text=True, check=True, env=environment)
    with contextlib.redirect_stdout(io.StringIO()) as here:
        exec(SAME, {})
    assert other.stdout == here.getvalue()
    assert len(here.getvalue().splitlines()) == 5
