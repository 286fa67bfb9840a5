"""Writes a problem without a budget as a maximum flow in the DIMACS format, which most maximum-flow codes read.

The flow network is that of `remat.answer.network`, with vertices counted from 1: 1 is the source, 2 the sink. Two facts
are not part of it, and are in comment lines, which solvers skip: the cost of every plan outside the network, and the
two vertices of each value:

    c base 120                every plan pays this; the least cost is this plus the maximum flow
    c value 7 9 31            value 7 is saved if the cut separates 9 from 31, recomputed if both are on the sink's side
    p max 64 210              vertices, arcs
    n 1 s
    n 2 t
    a 9 31 4096               an arc with its capacity
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from remat.answer.network import SINK, SOURCE, Reduction
from remat.facts.files import write_file
from remat.problem.feasibility import check_feasible, forced_values
from remat.problem.features import check_features, features_of
from remat.problem.problem import Problem


def write_dimacs(problem: Problem, path: Path) -> None:
    """Writes a problem as a DIMACS maximum flow; the same problem always gives the same bytes.

    Raises:
        UnsupportedProblem: the problem has a budget, which no cut can state, or values can be offloaded.
        Infeasible: the bans allow no plan.
    """
    check_features(features_of(problem), "a maximum flow in a DIMACS file", advice="; use MPS or JSON")
    rules = forced_values(problem)
    check_feasible(problem, rules)
    write_file(path, "".join(f"{line}\n" for line in _lines(Reduction.of(problem, rules=rules))).encode("ascii"))


def _lines(reduction: Reduction) -> Iterator[str]:
    network = reduction.network
    yield f"c base {reduction.base}"
    ends = zip((reduction.in_vertex + 1).tolist(), (reduction.out_vertex + 1).tolist(), strict=True)
    yield from (f"c value {v} {inside} {outside}" for v, (inside, outside) in enumerate(ends))
    yield f"p max {network.num_vertices} {len(network.tails)}"
    yield from (f"n {SOURCE + 1} s", f"n {SINK + 1} t")
    arcs = zip((network.tails + 1).tolist(), (network.heads + 1).tolist(), network.capacities.tolist(), strict=True)
    yield from (f"a {tail} {head} {capacity}" for tail, head, capacity in arcs)
