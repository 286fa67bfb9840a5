"""Our choice of saved values, inside torch's own partitioner."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._inductor.custom_graph_pass import CustomPartitionerFn

from remat.costmodel import CostModel
from remat.pytorch import seam
from remat.pytorch.facts import extract
from remat.registry import find_costmodel, find_solver
from remat.solve import DEFAULT_SOLVER, solve
from remat.solver import Solver

DEFAULT_COST_MODEL = "byte-traffic"


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
    def of(
        cls, cost_model: str | CostModel = DEFAULT_COST_MODEL, solver: str | Solver = DEFAULT_SOLVER
    ) -> Partitioner:
        """A partitioner from names or instances."""
        return cls(
            find_costmodel(cost_model) if isinstance(cost_model, str) else cost_model,
            find_solver(solver) if isinstance(solver, str) else solver,
        )

    def __call__(
        self, gm: fx.GraphModule, joint_inputs: Sequence[object], **kwargs: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Splits a joint graph in two; called by torch."""
        return seam.partition(gm, joint_inputs, self._choose, **kwargs)

    def _choose(self, joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int) -> list[fx.Node]:
        graph = extract(joint_graph, node_info, num_fwd_outputs)
        plan = solve(self.cost_model.pose(graph), self.solver).plan
        assert plan is not None  # solve() raises where there is none
        saved = set(plan.saved)
        return [node for node in joint_graph.nodes if node.name in saved]

    def uuid(self) -> str:
        """Part of torch's cache key: everything that can change a plan."""
        from remat import __version__

        settings = (__version__, torch.__version__, repr(self.cost_model), repr(self.solver))
        return hashlib.sha256(repr(settings).encode()).hexdigest()
