"""Describes a compiled graph with its plan: what it saves, and what it shares with other graphs of the run."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
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
    saved_bytes: int  # by the plan, with saved inputs that other graphs computed
    saved: frozenset[str]  # the names of the storages that the plan saves, with such inputs
    activation_inputs: frozenset[str]  # names of the inputs that earlier graphs computed, and that need gradients
    boundary: Boundary
    is_careful: bool  # whether it saves as little as possible until it is known which other calls are alive
    may_take_all: bool  # whether it may use the whole budget, as far as is known

    @classmethod
    def of(
        cls,
        key: str,
        part: Subproblem,
        plan: Plan,
        activation_inputs: Collection[str],
        boundary: Boundary,
        *,
        is_careful: bool,
        may_take_all: bool,
    ) -> CompiledGraph:
        """Counts what a plan saves."""
        saved_bytes = Choice.from_plan(part.problem, plan).saved_bytes(part.problem)
        owners = counted_storages(part.graph, plan, boundary.inputs.values())
        saved = frozenset(part.graph.names[owner] for owner in owners)
        return cls(
            key, part, plan, saved_bytes, saved, frozenset(activation_inputs), boundary, is_careful, may_take_all
        )

    @cached_property
    def by_default(self) -> CompiledGraph:
        """Returns the graph as if it had PyTorch's default plan, or itself if there is none."""
        choice = default_choice(self.part.graph, self.part.problem)
        if choice is None:
            return self
        return CompiledGraph.of(
            self.key,
            self.part,
            choice.plan(self.part.problem),
            self.activation_inputs,
            self.boundary,
            is_careful=self.is_careful,
            may_take_all=self.may_take_all,
        )
