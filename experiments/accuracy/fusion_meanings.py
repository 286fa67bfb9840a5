"""Counts where meanings of "fusible" disagree: `python -m experiments.accuracy.fusion_meanings [INSTANCE ...]`.

Each question about a plan has its own notion of what a compiler fuses (docs/fusion.md). Here all of them answer one
question, so that they can be compared: does a pass write this storage to memory? Asked are two plans of each
instance of the corpus; every row goes to `experiments/results/fusion_meanings.csv`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from costmodels import ByteTraffic, MemoryBudget
from remat import Graph, solve
from remat.answer.choice import Choice
from remat.facts.columns import BoolArray, IntArray
from remat.predict.kernels import Fuser
from remat.predict.memory.lifetimes import Lifetimes
from remat.predict.memory.order import Order
from remat.predict.memory.storages import Storages
from remat.predict.time.work import Work

EXPERIMENTS = Path(__file__).parents[1]
COST_MODELS = {"byte-traffic": ByteTraffic(), "memory-budget:budget=0.5": MemoryBudget(0.5)}


@dataclass(frozen=True, eq=False)
class WrittenStorages:
    """Says which of the k storages that one pass computes it writes to memory, by each meaning: arrays of (k,).

    Attributes:
        values: positions of the values that own the storages.
        bytes: sizes.
        lists: by the lists of torch's partitioner (`Graph.fusible_uses`).
        memory: by the simulation of live bytes (`remat.predict.memory.registers`).
        kernels: by the predicted kernels (`remat.predict.kernels`).
        called: a call of a library computes it, by the predicted kernels.
        timed: the backward pass recomputes it, and an estimator has a price for that.
        time: an estimator charges a kernel of its own (`Work.own_kernel`).
    """

    values: IntArray
    bytes: IntArray
    lists: BoolArray
    memory: BoolArray
    kernels: BoolArray
    called: BoolArray
    timed: BoolArray
    time: BoolArray


def stores(graph: Graph, saved: BoolArray) -> tuple[WrittenStorages, WrittenStorages]:
    """Finds what the forward and the backward pass write, when `saved` (n,) is saved."""
    facts, work = Storages.of(graph), Work.of(graph)
    order = Order.of(facts, saved)
    lives, kernels = Lifetimes.of(facts, order, True), Fuser(graph).kernels(saved)

    def of(values: IntArray, returned: BoolArray, backward: bool) -> WrittenStorages:
        inside = _flags(graph, values)
        own = inside & (graph.base == np.arange(len(graph))) & ~facts.foreign & (graph.bytes > 0)
        mine = [kernel for kernel in kernels if kernel.backward == backward]
        found = np.flatnonzero(own)
        columns = (
            _stored_by_lists(graph, inside, returned),
            _flags(graph, lives.base[lives.backward == backward]),
            _flags(graph, [v for kernel in mine for v in kernel.writes]),
            _flags(graph, [v for kernel in mine if not kernel.generated for v in kernel.writes]),
            order.recomputed & ~work.free & backward,
            work.own_kernel,
        )
        return WrittenStorages(found, graph.bytes[found], *(column[found] for column in columns))

    forward = of(order.forward, graph.output | order.saved, backward=False)
    return forward, of(order.backward, graph.gradient, backward=True)


def _stored_by_lists(graph: Graph, inside: BoolArray, returned: BoolArray) -> BoolArray:
    """Marks (n,) what the pass returns, or reads over a use that cannot be fused: as `Graph.materialized`."""
    stored = inside & returned
    stored[graph.producers[inside[graph.consumers] & ~graph.fusible_uses]] = True
    return _flags(graph, graph.base[stored])[graph.base]


def _flags(graph: Graph, positions: IntArray | list[int]) -> BoolArray:
    flags = np.zeros(len(graph), np.bool_)
    flags[positions] = True
    return flags


def row(graph: Graph, saved: BoolArray) -> dict[str, float]:
    """Computes the shares of storages, and of bytes, on which a meaning differs from the predicted kernels."""
    passes = stores(graph, saved)
    joined = {
        name: np.concatenate([getattr(each, name) for each in passes]) for name in WrittenStorages.__annotations__
    }
    size, kernels = joined["bytes"], joined["kernels"]
    everything = np.ones(len(size), np.bool_)
    found: dict[str, float] = {"storages": len(size), "recomputed": int(joined["timed"].sum())}
    for name, asked in (("lists", everything), ("memory", everything), ("time", joined["timed"])):
        differs = asked & (joined[name] != kernels)
        found[name] = float(differs.sum() / max(asked.sum(), 1))
        found[f"{name}_bytes"] = float(size[differs].sum() / max(size[asked].sum(), 1))
    return found


def rows(names: list[str]) -> Iterator[dict[str, Any]]:
    """Makes one row for each instance and cost model."""
    for name in names:
        graph = Graph.load(EXPERIMENTS / "instances" / f"{name}.json.gz")
        for text, cost_model in COST_MODELS.items():
            problem = cost_model.pose(graph)
            plan = solve(problem, "ortools" if problem.budget_bytes is None else "lagrangian").plan
            assert plan is not None
            yield {"instance": name, "cost_model": text, **row(graph, Choice.from_plan(graph, plan).saved)}


def main() -> None:
    """Measures the named instances, or all where none is named, and writes their rows into the table."""
    every = sorted(path.name.removesuffix(".json.gz") for path in (EXPERIMENTS / "instances").glob("*.json.gz"))
    frame = pd.DataFrame(rows(sys.argv[1:] or every))
    table = EXPERIMENTS / "results" / "fusion_meanings.csv"
    if sys.argv[1:]:
        written = pd.read_csv(table)
        frame = pd.concat([written[~written.instance.isin(sys.argv[1:])], frame]).sort_values("instance", kind="stable")
    frame.to_csv(table, index=False, float_format="%.4f")
    print(frame.to_string(index=False, float_format="{:.1%}".format))
    for name in ("lists", "memory", "time"):
        for column in (name, f"{name}_bytes"):
            worst = frame.loc[frame[column].idxmax()]
            print(f"{column}: median {frame[column].median():.1%}, worst {worst[column]:.1%} on {worst['instance']}")


if __name__ == "__main__":
    main()
