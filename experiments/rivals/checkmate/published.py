"""Reads the instances that MOCCASIN's authors publish, from a folder that the user has, and solves them.

Their repository (github.com/haoming-codes/moccasin) is under the GPL, version 3: nothing of it is here but figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from experiments.rivals.checkmate.instance import Instance, replay
from experiments.rivals.checkmate.price import told
from experiments.rivals.checkmate.program import Rules
from experiments.rivals.checkmate.solve import least_cost

LARGEST = 100
"""Nodes: the program has as many variables as nodes times stages, and some three times that."""

SHARES = (0.9, 0.8)
"""The budgets of their README, of the peak without recomputation in the topological order of the file."""


def read(path: Path) -> Instance:
    """Reads a graph: in node-link form, with `cost_cpu` and `cost_ram`, or `duration` and `out_cost`, of each node.

    All nodes are stages, in the order of the file if there is one. The backward pass, where the file tells it, begins
    with the first node that is marked so. Nothing is held for a caller: what nobody reads is freed at once.
    """
    document = json.loads(path.read_text())
    source, target = ("source", "target") if "source" in document["links"][0] else ("0", "1")
    nodes = {node.get("id", node["name"]): node for node in document["nodes"]}
    reads: dict[Any, list[Any]] = {key: [] for key in nodes}
    for link in document["links"]:
        reads[link[target]].append(link[source])
    order = document["graph"].get("order") or [*TopologicalSorter(dict(sorted(reads.items()))).static_order()]
    at = {key: i for i, key in enumerate(order)}
    backward = [i for i, key in enumerate(order) if nodes[key].get("backward")]
    return Instance(
        names=tuple(str(nodes[key]["name"]) for key in order),
        sizes=tuple(int(nodes[key].get("cost_ram", nodes[key].get("out_cost"))) for key in order),
        costs=tuple(int(nodes[key].get("cost_cpu", nodes[key].get("duration"))) for key in order),
        operands=tuple(tuple(sorted(at[u] for u in reads[key])) for key in order),
        stages=tuple(range(len(order))),
        turn=min(backward, default=len(order)) - 1,
    )


def rows(folder: Path, time_limit_s: float) -> Iterator[dict[str, Any]]:
    """Solves the training graphs that are small enough, at both budgets, as Checkmate's program and as our model."""
    for path in sorted(path for path in folder.glob("*.json") if "_test_" not in path.name):
        instance = read(path)
        name = path.name.split(" (")[0].split("_w0.")[0]
        row: dict[str, Any] = {"graph": name, "nodes": len(instance), "uses": sum(map(len, instance.operands))}
        if len(instance) > LARGEST:
            yield row | {"left_out": f"more than {LARGEST} nodes"}
            continue
        most = replay(instance, range(len(instance))).peak_bytes
        for share in SHARES:
            budget = -(-most * round(10 * share) // 10)
            models: tuple[Rules, ...] = ("ours", "checkmate") if instance.turn + 1 < len(instance) else ("checkmate",)
            found = {
                rules: told(least_cost(instance, budget, rules=rules, time_limit_s=time_limit_s)) for rules in models
            }
            yield row | {"share": share, "cost": sum(instance.costs), "budget_bytes": budget} | found
