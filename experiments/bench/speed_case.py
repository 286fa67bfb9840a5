"""Runs one case of `experiments.bench.speed`, in a process of its own so that its peak memory is its own."""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import dataclass, replace
from typing import ClassVar

import remat
from costmodels import ByteTraffic
from experiments.models.synthetic import training_step


@dataclass(frozen=True)
class Priced(remat.CostModel):
    """Bans nothing, and prices recomputing at a third of a save: all of the network is open to the solver.

    Bans cut a network into pieces that are solved apart; this is the hard case.
    """

    name: ClassVar[str] = "priced"
    unit: ClassVar[str] = "bytes"

    def terms(self, graph: remat.Graph) -> remat.plugin.Terms:
        """Prices a save at the bytes it moves, and a recomputation at a third of them."""
        return replace(remat.plugin.Terms.nothing(graph), save_cost=3 * graph.bytes, recompute_cost=graph.bytes)


_MODELS: dict[str, remat.CostModel] = {
    "conservative": ByteTraffic(),
    "aggressive": ByteTraffic(mode="aggressive"),
    "priced": Priced(),
}


def main(solver: str, prices: str, size: int) -> None:
    """Times posing, solving and certifying one synthetic graph, and prints a JSON row."""
    graph = training_step(size)
    start = time.perf_counter()
    problem = _MODELS[prices].pose(graph)
    posed = time.perf_counter()
    solution = remat.solve(problem, solver)
    done = time.perf_counter()
    row = {
        "pose_s": posed - start,
        "solve_s": solution.solve_time_s,
        "certify_s": done - posed - solution.solve_time_s,
        "total_s": done - start,
        "peak_GiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "proven": solution.is_proven,
        "objective": solution.objective,
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
