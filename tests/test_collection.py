"""The collector of garbage is paused while plans are sought, and is as it was afterwards."""

from __future__ import annotations

import gc

import pytest

import remat
from costmodels import MemoryBudget
from remat.facts.collection import collection_paused
from remat.predict.buffers import StepMemory


def test_the_collector_is_paused_in_a_search_and_as_before_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, enabled, timeline = remat.Corpus.open().graph("small-bert"), list[bool](), StepMemory._timeline

    def seen(*args: object) -> object:
        enabled.append(gc.isenabled())
        return timeline(*args)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(StepMemory, "_timeline", seen)
    remat.choose(graph, MemoryBudget(0.8, of="peak"))
    assert enabled
    assert not any(enabled)
    assert gc.isenabled()
    gc.disable()
    try:
        remat.timeline(graph, remat.choose(graph).plan)
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_the_collector_goes_on_after_an_error_and_cycles_are_freed_in_between() -> None:
    class Cycle:
        freed = 0

        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            Cycle.freed += 1

    def failing() -> None:
        with collection_paused():
            with collection_paused():
                Cycle()
            assert Cycle.freed == 1
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert gc.isenabled()
