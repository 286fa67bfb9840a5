"""The collector of garbage is paused while plans are sought, and is as it was afterwards."""

from __future__ import annotations

import gc

import pytest

import remat
from costmodels import MemoryBudget
from remat.facts.collection import collection_paused
from remat.improve.byte_budgets import default_saved
from remat.predict.buffers import StepMemory


def test_the_collector_is_paused_while_plans_are_predicted_and_as_before_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, enabled, timeline = remat.Corpus.open().graph("small-dropout-mlp"), list[bool](), StepMemory._timeline

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


@pytest.mark.parametrize("name", ["small-bert", "small-gpt-fused-attention"])
def test_what_a_predicted_plan_consists_of_is_freed_without_the_collector(name: str) -> None:
    graph = remat.Corpus.open().graph(name)
    memory, saved = StepMemory(graph), default_saved(graph)
    assert saved is not None
    memory.peak(saved)  # what all plans share is made now
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        memory.peak(saved)
        gc.collect()
        # Other threads of the process leave garbage, too: only what belongs to the library counts.
        ours = {type(each).__name__ for each in gc.garbage if type(each).__module__.startswith("remat.")}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not ours


def test_the_collector_goes_on_after_an_error_and_when_the_last_of_several_blocks_has_ended() -> None:
    def failing() -> None:
        with collection_paused():
            raise KeyError

    with collection_paused():
        with pytest.raises(KeyError):
            failing()
        assert not gc.isenabled()
    assert gc.isenabled()
    first, second = collection_paused(), collection_paused()  # as of two threads
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()
