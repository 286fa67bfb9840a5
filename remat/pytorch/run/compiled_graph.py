"""Describes a compiled graph with its plan: what it saves, and what it shares with other graphs of the run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.improve.byte_budgets import default_choice
from remat.improve.subproblem import Subproblem
from remat.pytorch.run.shared_storages import Boundary
from remat.pytorch.run.sizes import counted_storages


@dataclass(frozen=True, eq=False)
class CompiledGraph:
    """Holds a compiled graph with its plan, and what it shares with other graphs."""

    key: str  # equal for equal graphs of equal sizes
    part: Subproblem
    plan: Plan
    activation_inputs: frozenset[str]  # names of the inputs that earlier graphs computed, and that need gradients
    boundary: Boundary
    is_careful: bool  # whether it saves as little as possible until it is known which other calls are alive
    may_take_all: bool  # whether it may use the whole budget, as far as is known

    @cached_property
    def saved_bytes(self) -> int:
        """Returns the bytes that the plan saves, with saved inputs that other graphs computed."""
        return Choice.from_plan(self.part.problem, self.plan).saved_bytes(self.part.problem)

    @cached_property
    def saved(self) -> frozenset[str]:
        """Returns the names of the storages that the plan saves, with such inputs."""
        graph = self.part.graph
        return frozenset(graph.names[v] for v in counted_storages(graph, self.plan, self.boundary.inputs.values()))

    @cached_property
    def by_default(self) -> CompiledGraph:
        """Returns the graph as if it had PyTorch's default plan, or itself if there is none."""
        choice = default_choice(self.part.graph, self.part.problem)
        return self if choice is None else replace(self, plan=choice.plan(self.part.problem))
