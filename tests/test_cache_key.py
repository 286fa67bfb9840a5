"""What can change a plan changes torch's cache key, however deep it lies; with the same settings the cache hits."""

from __future__ import annotations

import json
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
from remat.plugin import Estimator, IntArray, Terms, register, unregister
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


@pytest.mark.parametrize(
    ("model", "figure"),
    [
        (lambda path: MemoryBudget(estimator=Roofline(path)), "launch_ns"),
        (lambda path: MemoryBudget(estimator=Profile(ceilings=path)), "launch_ns"),
        (lambda path: MemoryBudget(offload=path), "host_bytes_per_s"),
    ],
)
def test_the_cache_key_changes_with_what_is_read_of_a_device(model: Any, figure: str, tmp_path: Path) -> None:
    keys: list[str] = []
    for value in (1000, 2000, 1000):
        replace(find_device("a100"), **{figure: value}).save(tmp_path / "device.json")
        keys.append(key(model(tmp_path / "device.json")))
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


PROGRAM = """
import json, sys
import torch
import remat
from costmodels import ByteTraffic, MemoryBudget, RecomputeTime
from remat.predict.time import Roofline
from remat.pytorch import Partitioner
from remat.pytorch.run.cache_key import key_of
from torch._dynamo.utils import counters

keys = [
    Partitioner.of(MemoryBudget(0.5) + (RecomputeTime(Roofline("h200")) + RecomputeTime()), "lagrangian").uuid(),
    Partitioner.of(ByteTraffic(rules={"random": False, "not_fusible": True})).uuid(),
    Partitioner.of(ByteTraffic()).uuid(),
    key_of(frozenset({"random", "not_fusible", "view"})),
    Partitioner.of().uuid(),
]
torch.manual_seed(0)
# Products alone: no kernel has to be compiled.
model = torch.nn.Sequential(torch.nn.Linear(8, 8, bias=False), torch.nn.Linear(8, 8, bias=False))
called = []
original = Partitioner._agreed
Partitioner._agreed = lambda self, *given, **settings: called.append(1) or original(self, *given, **settings)
found = []
for settings in sys.argv[1:]:
    mode, solver = settings.split()
    torch.compiler.reset()
    counters.clear()
    called.clear()
    remat.compile(model, cost_model=ByteTraffic(mode=mode), solver=solver)(torch.randn(4, 8)).sum().backward()
    hits = counters["aot_autograd"]["autograd_cache_hit"] + counters["inductor"]["fxgraph_cache_hit"]
    found.append({"hits": hits, "plans": len(called)})
print(json.dumps([[str(key) for key in keys], found]))
"""
SETTINGS = ("conservative ortools", "aggressive ortools", "conservative scipy")


def told(seed: str, *settings: str) -> tuple[list[str], list[dict[str, int]]]:
    """What the program prints in a process of its own: the settings that other tests left behind are parts of keys."""
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", PROGRAM, *settings]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    keys, found = json.loads(done.stdout.splitlines()[-1])
    return keys, found


def test_keys_and_hits_are_the_same_in_another_process_and_other_settings_never_hit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Python hashes text otherwise."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    keys, first = told("1", SETTINGS[0])
    assert first == [{"hits": 0, "plans": 1}]
    same_keys, (again, *others) = told("2", *SETTINGS)
    assert same_keys == keys
    assert len(keys) == 5
    assert again["hits"] >= 1
    assert again["plans"] == 0, "answered from the cache, without solving"
    assert [other["plans"] for other in others] == [1, 1]
