"""Computes what no plan can take away: a lower bound on the traffic of a training step.

`python -m experiments.traffic_study.traffic_floor` prints, for the transformers of
`experiments.traffic_study.compare_strategies`, what PyTorch's default plan and a refined one move, beside a floor
below which no plan is, however well a compiler fuses. Four parts add up to it:

- *calls*: what matrix products, attention and other calls of libraries read and write. Which there are is taken
  from a plan: the floor is one for all plans that make the same calls.
- *forward*: each result of a call that the forward pass goes on with is read, each argument of a call and each output
  is written, once.
- *backward*: the same for values that depend on tangents, and for gradients. What calls of the backward pass read of
  the other values was written, too, in either pass.
- *handed over*: what the other operators of the backward pass read of the forward pass's values. These reads cut one
  pass off from the other, and what is not written anyway is written for them. The cheapest such cut is a minimum cut.

Each is counted once, as if one kernel did all that lies between two calls. What lies between floor and plan is what
kernels read and write because they cannot be one: loops of different shapes, sums over rows beside sums over columns.
An operator is taken to read all of its arguments; where only a slice of its result is used, it may read less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table

import remat
from experiments.models.workloads import KERNEL_ZOO
from experiments.traffic_study.traffic_report import TRANSFORMERS
from remat import Graph, Plan
from remat.facts.columns import BoolArray, IntArray
from remat.improve.refine import Traffic
from remat.predict.kernels import Kernel
from remat.predict.kernels.rules import CONSTANTS
from remat.pytorch.measure.torch_budgets import torchs_plans

console = Console(width=max(Console().width, 160))

_PARTLY = frozenset(("aten.embedding", "aten.gather", "aten.index", "aten.index_select"))
"""These operators may read little of their arguments: none of what they read counts."""


@dataclass(frozen=True)
class Floor:
    """Counts the bytes that any plan with the same calls moves; its parts are explained in the module's docstring."""

    calls: int
    forward: int
    backward: int
    handed_over: int

    @property
    def bytes(self) -> int:
        """The sum of the four parts."""
        return self.calls + self.forward + self.backward + self.handed_over

    @classmethod
    def of(cls, graph: Graph, plan: Plan) -> Floor:
        """Computes the floor for plans that make the same calls as this one.

        Args:
            graph: the joint graph.
            plan: a legal plan for it.

        Raises:
            InvalidPlan: the plan is not legal, or was made for another graph.
        """
        uses = _Uses.of(graph, remat.predict_traffic(graph, plan).kernels)
        late, early = graph.in_tangents, graph.in_forward
        there = uses.given | uses.called
        forward = np.where(
            there, 0, np.maximum(uses.moved(uses.by_calls & early[uses.consumers]), uses.kept(graph.output))
        )
        backward = np.where(there, 0, np.maximum(uses.moved(uses.by_calls), uses.kept(graph.gradient)))
        backward[forward > 0] = 0
        went_on = uses.by_others & (early | late)[uses.consumers] & (early | late)[uses.producers]
        same_pass = went_on & (late[uses.producers] == late[uses.consumers])
        read = np.where(uses.called, uses.moved(same_pass), 0)
        written = there | (forward > 0) | (backward > 0)
        return cls(
            calls=uses.call_bytes,
            forward=int(forward.sum() + read[~late[graph.base]].sum()),
            backward=int(backward.sum() + read[late[graph.base]].sum()),
            handed_over=_handed_over(graph, uses, written),
        )


@dataclass(frozen=True, eq=False)
class _Uses:
    """Sorts the uses of a graph by who reads: calls, or the operators between them. Arrays: (n,) values, (m,) uses.

    Attributes:
        call_bytes: what the calls move.
        given, called: (n,) bases that are there before a step, and those that a call writes.
        in_calls: (n,) values that calls compute.
        producers, consumers: (m,) its ends.
        by_calls, by_others: (m,) a call reads; another operator does, which is no view.
    """

    graph: Graph
    call_bytes: int
    given: BoolArray
    called: BoolArray
    in_calls: BoolArray
    producers: IntArray
    consumers: IntArray
    by_calls: BoolArray
    by_others: BoolArray

    @classmethod
    def of(cls, graph: Graph, kernels: Iterable[Kernel]) -> _Uses:
        n = len(graph)
        computed, in_calls, given, called = np.zeros((4, n), np.bool_)
        for kernel in kernels:
            computed[list(kernel.values)] = True
            if not kernel.generated:
                in_calls[list(kernel.values)] = True
                called[list(kernel.writes)] = True
        given[graph.base[graph.leaf]] = True
        names = [op.rpartition(".")[0] for op in graph.ops]
        silent = np.fromiter((name in CONSTANTS or name in _PARTLY for name in names), np.bool_, n)
        others = computed & ~in_calls & ~graph.view & ~silent
        return cls(
            graph,
            sum(kernel.bytes for kernel in kernels if not kernel.generated),
            given,
            called,
            in_calls,
            graph.producers,
            graph.consumers,
            in_calls[graph.consumers],
            others[graph.consumers],
        )

    def moved(self, uses: BoolArray) -> IntArray:
        """Computes (n,), at bases, the most bytes that one of some uses reads."""
        most = np.zeros(len(self.graph), np.int64)
        read = self.producers[uses]
        np.maximum.at(most, self.graph.base[read], self.graph.moved_bytes[read])
        return most

    def kept(self, values: BoolArray) -> IntArray:
        """Computes (n,), at bases, the most bytes of some values."""
        most = np.zeros(len(self.graph), np.int64)
        np.maximum.at(most, self.graph.base[values], self.graph.moved_bytes[values])
        return most


def _handed_over(graph: Graph, uses: _Uses, written: BoolArray) -> int:
    """Prices the cheapest reads, and writes for them, that give the backward pass's operators what they need."""
    facts, ours = remat.plugin.base_problem(graph), graph.plannable
    needed = np.zeros(len(graph), np.bool_)
    needed[uses.producers[uses.by_others & graph.in_tangents[uses.consumers]]] = True
    price = np.where(written[graph.base], 1, 2) * graph.moved_bytes
    priced = facts.priced(
        save_cost=price[ours],
        recompute_cost=facts.recompute_cost,
        cannot_save=facts.cannot_save,
        cannot_recompute=facts.cannot_recompute.also(uses.in_calls[ours], "a call"),
        budget_bytes=None,
    )
    objective = remat.solve(replace(priced, needed=needed[ours])).objective
    assert objective is not None  # solve() raises where there is no plan
    return objective


def memory_floor(graph: Graph, plan: Plan) -> Callable[[int], int]:
    """Returns a function of saved bytes: below what it gives is no plan that saves so little and makes the same calls.

    Inductor may make other calls for another plan: it takes a sum into a product that nobody else reads. Then this is
    no bound: on LSTM-16 plans move 11% less.

    Who saves less than the results of the calls computes some calls again, and each reads its arguments and writes its
    result once more. What that takes at least is a hull of minimum cuts, which holds for every plan
    (`remat.Frontier.bound`). It is added to the floor of plans that make each call once: further calls take nothing
    away from its four parts.

    Args:
        graph: the joint graph.
        plan: a legal plan that makes no call twice, such as PyTorch's default.

    Raises:
        InvalidPlan: the plan is not legal, or was made for another graph.
    """
    once = Floor.of(graph, plan).bytes
    again = np.zeros(len(graph), np.int64)
    early = graph.in_forward & ~graph.view & ~graph.tuple_element
    for kernel in remat.predict_traffic(graph, plan).kernels:
        computed = [value for value in kernel.values if early[value]]
        if not kernel.generated and computed:
            again[computed[-1]] = kernel.bytes
    facts = remat.plugin.base_problem(graph)
    priced = facts.priced(
        save_cost=facts.save_cost,
        recompute_cost=again[graph.plannable],
        cannot_save=facts.cannot_save,
        cannot_recompute=facts.cannot_recompute,
        budget_bytes=None,
    )
    curve = remat.frontier(priced)
    return lambda saved_bytes: once + (curve.bound(saved_bytes) or 0)


def main(
    only: Annotated[list[str] | None, typer.Option(help="a model of KERNEL_ZOO; repeatable")] = None,
    time_limit: Annotated[float, typer.Option(help="seconds for each refinement")] = 120.0,
) -> None:
    """Prints a table of PyTorch's, the refined and the least traffic of each model."""
    unknown = [name for name in only or () if name not in KERNEL_ZOO]
    if unknown:
        raise typer.BadParameter(f"no model is named {unknown[0]!r}; there are: {', '.join(KERNEL_ZOO)}")
    columns = "model", "PyTorch", "refined", "floor", "calls", "forward", "backward", "handed over"
    table = Table(*columns, title="MB that a step moves, predicted; in brackets, of PyTorch's default plan")
    for name in only or TRANSFORMERS:
        torch.manual_seed(0)
        model, args = KERNEL_ZOO[name]()
        ((graph, plans),) = torchs_plans(model, *args, budgets=[1.0])
        kernels = len(remat.predict_traffic(graph, plans[1.0]).kernels)
        found = remat.refine(graph, plans[1.0], Traffic(kernels), time_limit_s=time_limit)
        floor = Floor.of(graph, found.plan)
        ends = (found.before[0], found.after[0], floor.bytes)
        parts = (floor.calls, floor.forward, floor.backward, floor.handed_over)
        shares = [f"{amount / 1e6:.2f} ({amount / found.before[0]:.2%})" for amount in (*ends, *parts)]
        table.add_row(name, *shares)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
