"""Our choice of saved values, inside torch's own partitioner."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from torch import fx
from torch._inductor.custom_graph_pass import CustomPartitionerFn

from remat.costmodel import CostModel, Sum
from remat.pytorch.facts import extract
from remat.pytorch.split import split
from remat.registry import DEFAULT_COST_MODEL, DEFAULT_SOLVER, find_costmodel, find_solver
from remat.solve import solve
from remat.solver import Solver


@dataclass(frozen=True)
class Partitioner(CustomPartitionerFn):
    """A partitioner for `torch._inductor.config.custom_partitioner_fn`.

    Every joint graph is posed under the cost model, solved, and certified; a plan that fails a
    check never runs.

    Attributes:
        cost_model: prices and bans.
        solver: who solves.
    """

    cost_model: CostModel
    solver: Solver

    @classmethod
    def of(cls, cost_model: str | CostModel = DEFAULT_COST_MODEL, solver: str | Solver = DEFAULT_SOLVER) -> Partitioner:
        """A partitioner from names or instances."""
        return cls(
            find_costmodel(cost_model) if isinstance(cost_model, str) else cost_model,
            find_solver(solver) if isinstance(solver, str) else solver,
        )

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Splits a joint graph in two; called by torch."""
        return split(gm, joint_inputs, self._choose, **kwargs)

    def _choose(self, joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int) -> list[fx.Node]:
        graph = extract(joint_graph, node_info, num_fwd_outputs)
        plan = solve(self.cost_model.pose(graph), self.solver).plan
        assert plan is not None  # solve() raises where there is none
        saved = set(plan.saved)
        return [node for node in joint_graph.nodes if node.name in saved]

    def uuid(self) -> str:
        """Part of torch's cache key: everything that can change a plan.

        Sources are hashed, not versions, so that a cost model under development is never answered
        from the cache of its former self.
        """
        digest = hashlib.sha256(repr((self.cost_model, self.solver)).encode())
        parts = self.cost_model.parts if isinstance(self.cost_model, Sum) else (self.cost_model,)
        for source in sorted(Path(__file__).parents[1].rglob("*.py")):
            digest.update(source.read_bytes())
        for plugin in (*parts, self.solver):
            digest.update(_version_of(type(plugin)))
        return digest.hexdigest()


def _version_of(plugin: type) -> bytes:
    """The source behind a class: its package's folder, or its module where it is in no package."""
    module = sys.modules[plugin.__module__]
    if getattr(module, "__file__", None) is None:
        return _version_in_notebook(plugin)
    file = Path(str(module.__file__))
    sources = sorted(file.parent.glob("*.py")) if module.__package__ else [file]
    return b"".join(source.read_bytes() for source in sources)


@cache
def _version_in_notebook(plugin: type) -> bytes:
    """A class without a file is known by itself alone, and for as long as the process lives."""
    del plugin
    return uuid4().bytes
