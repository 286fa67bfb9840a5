"""Plans all graphs of a run within one budget, by what is alive at the same time.

A graph is planned when torch compiles it. At that time it is unknown which other graphs will hold saved values at the
same time. So in the first step, a graph after which others may follow saves as little as possible. From then on,
`live_calls` counts which calls are alive at the same time. Before the next step, all these graphs are planned together
(`joint_budget`) and compiled again. A graph that comes later is planned with the same Lagrange multiplier on memory.

If the budget is a fraction, each graph has its own share in the first two steps. Then the graphs of the second step are
planned together. A graph that comes later has its own share again.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.answer.registry import find_costmodel
from remat.answer.solver import Solver
from remat.errors import InvalidOption, RematError
from remat.facts.graph import Graph
from remat.improve.call_sequence import CallSequence
from remat.improve.choose import search
from remat.improve.joint_budget import budget_of, solve_jointly
from remat.improve.joint_peak import fit_joint_peak
from remat.improve.peak_rise import peak_rise
from remat.improve.subproblem import Subproblem, subproblem_of
from remat.problem.costmodel import CostModel
from remat.problem.features import ONE_BUDGET, check_features, features_of
from remat.problem.multipliers import Multipliers
from remat.pytorch.run import ranks
from remat.pytorch.run.live_calls import CallCounts, LiveCalls, Overlap, is_subset, maximal_sets
from remat.pytorch.run.planned_graph import ChosenPlan
from remat.pytorch.run.report import HeldMemory
from remat.pytorch.run.shared_storages import Boundary, CompiledGraph
from remat.pytorch.seam.compilations import frees_gradients
from remat.words import human_bytes

# All graphs are planned again at most so often; the last time, they save as little as possible, or their own shares.
#
# Dynamo runs code eagerly after eight compilations of it. Equal blocks that are called one after the other take two
# compilations each time, because the input of the first block needs no gradient.
_REPLANNED = 2
# Under a fraction, graphs that keep their shares are compiled again only if the new plans save this part of the cost.
_WORTHWHILE = 0.01
# Graphs are planned again when no call is alive, or after so many steps: in a pipeline, some call always is.
_WAITS = 8


class SharedBudget:
    """Limits the memory of all that is compiled with it: `remat.compile(block, cost_model=shared)` for each block.

    `remat.compile(model, cost_model=MemoryBudget("8GB"))` does so for the graphs of one model. Blocks that are
    compiled one by one, as for FSDP, share one object of this class instead.

    Args:
        cost_model: with a budget of saved memory or of the peak: a registered name or an instance.

    Raises:
        InvalidOption: the cost model has no budget.

    >>> from costmodels import MemoryBudget
    >>> shared = SharedBudget(MemoryBudget("8GB"))
    >>> shared.limit_bytes
    8000000000
    """

    def __init__(self, cost_model: str | CostModel) -> None:
        model = find_costmodel(cost_model)
        if not model.limits_memory:
            raise InvalidOption(f"SharedBudget needs a cost model with a budget, such as MemoryBudget, got {model!r}")
        self.cost_model = model
        self.is_alone = False  # whether it is the budget of one model, which no other model shares
        self.generation = 0
        self.largest: dict[int, dict[str, int]] = {}
        self._graphs: dict[str, CompiledGraph] = {}
        self.plans: Mapping[str, ChosenPlan] = {}
        self._price: Multipliers | None = None
        self._solver: Solver | None = None
        self._calls = LiveCalls(watches_results=model.limits_peak)
        self._planned: set[CallCounts] = set()
        self._dropped: dict[str, frozenset[str]] = {}  # what the plans take for dropped, by the keys of graphs
        self._waited = 0
        self._has_warned = self._has_warned_about_peak = False
        self._is_first_step = True

    @property
    def limit_bytes(self) -> int | None:
        """Returns the budget in bytes; None if it is a fraction."""
        limits = (*self.cost_model.saved_limits, *self.cost_model.peak_limits)
        return min((limit for limit in limits if isinstance(limit, int)), default=None)

    @property
    def held_bytes(self) -> int:
        """Returns how many bytes the calls that are alive now save, by their plans."""
        return self._held_bytes(self._calls.together, self._calls.now)

    def plan_for(
        self,
        graph: Graph,
        solver: Solver | None,
        activation_inputs: Collection[str],
        *,
        others: bool,
        copy_stream: bool,
    ) -> ChosenPlan:
        """Chooses a plan when a graph is compiled.

        Args:
            graph: the joint graph.
            solver: a solver for budgets; None for the default solver of `remat.solve`.
            activation_inputs: names of the inputs that earlier graphs computed, and that need gradients.
            others: whether other graphs may follow in the same step.
            copy_stream: whether kernels hide the copies of offloaded values. For graphs that are planned together, no
                copy is hidden.

        Raises:
            Infeasible, LimitReached: see `remat.choose`.
        """
        if (known := self.plans.get(ranks.key_of_graph(graph))) is not None:
            return known
        self._solver = solver
        part, limit = subproblem_of(graph, self.cost_model, activation_inputs), self.limit_bytes
        if limit is None:  # a fraction: each graph has its own share
            return self._within(part, None, copy_stream)
        if others:  # the least plan may break rows
            who = "a budget in bytes for several graphs (TORCH_LOGS=graph_breaks names breaks)"
            check_features(features_of(part.problem), who, ONE_BUDGET)
        alive = sum(times for _, times in self._calls.together)
        # As long as fewer calls are alive than may be, each of them leaves the part of this call.
        room = limit if alive < self.cost_model.calls_in_flight else max(limit - self.held_bytes, 0)
        if self._price is not None and not self.cost_model.limits_peak:
            choice = part.choice_at(self._price)
            if choice.saved_bytes(part.problem) <= min(room, limit // self.cost_model.calls_in_flight):
                return ChosenPlan(choice.plan(part.problem), "price of memory")
        if not others:
            try:
                return self._within(part, room, copy_stream)
            except RematError:
                if room == limit or part.problem.rows:  # nothing else is alive, or the least plan may break rows
                    raise
        return ChosenPlan(part.smallest_choice.plan(part.problem), "least saved")

    def _within(self, part: Subproblem, room: int | None, copy_stream: bool) -> ChosenPlan:
        limits = None if room is None else (room,)
        cost_model, solver = self.cost_model, self._solver
        return ChosenPlan.of(
            search(part.graph, part.problem, cost_model, solver, limits=limits, hides_copies=copy_stream)
        )

    def add_compiled(
        self, graph: Graph, plan: Plan, activation_inputs: Collection[str], boundary: Boundary, *, others: bool
    ) -> CompiledGraph:
        """Records a compiled graph with its plan; arguments are those of `plan_for`."""
        key, part = ranks.key_of_graph(graph), subproblem_of(graph, self.cost_model, activation_inputs)
        is_careful = key not in self.plans and self._price is None and (others or self.limit_bytes is None)
        may_take_all = key not in self.plans and not others
        inputs = frozenset(activation_inputs)
        self._graphs[key] = CompiledGraph(key, part, plan, inputs, boundary, is_careful, may_take_all)
        if may_take_all:
            self._warn_about_peak([part], [plan])
        return self._graphs[key]

    def begin_call(
        self,
        compiled_graph: CompiledGraph,
        from_other_graphs: Mapping[int, int],
        activations: Mapping[str, Tensor],
        node: Any,
    ) -> None:
        """Counts a call whose saved values are alive from now on, and warns once if the calls exceed the budget.

        Arguments are those of `LiveCalls.begin_call`.
        """
        self._graphs.setdefault(compiled_graph.key, compiled_graph)
        self._calls.begin_call(compiled_graph.key, from_other_graphs, activations, node, compiled_graph.saved)
        calls = sum(count for _, count in self._calls.together)
        counted = self.cost_model.calls_in_flight
        if self.cost_model.limits_peak and compiled_graph.may_take_all and calls > counted and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{calls} calls of the model are alive at the same time; {self.cost_model!r} counts only {counted}, so "
                f"the limit may be exceeded: run the backward pass of each call before the next, or say how many are "
                f"alive, such as MemoryBudget(..., in_flight={calls})",
                stacklevel=4,
            )
        if self._has_warned or self.cost_model.limits_peak:
            return
        if exceeded := self._exceeded(self._calls.together, self._calls.now):
            self._has_warned = True
            most, found = exceeded
            warnings.warn(
                f"the budget of {most} bytes ({human_bytes(most)}) is exceeded in this step: {calls} calls are alive "
                f"at the same time and save {found} bytes ({human_bytes(found)}). {self._next}",
                stacklevel=4,
            )

    @property
    def _has_rows(self) -> bool:
        return any(compiled_graph.part.problem.rows for compiled_graph in self._graphs.values())

    @property
    def _next(self) -> str:
        if self._has_rows:
            return "With budgets of regions nothing is planned again: run the backward pass of a call before the next."
        if ranks.several_ranks():
            return "With several ranks nothing is planned again: share the budget from the start (remat.SharedBudget)."
        if self.generation >= _REPLANNED:
            return f"After {_REPLANNED} new plans they save the least that is possible: raise the budget."
        return "Their graphs are planned again, together, for the next step; remat.SharedBudget does so from the start."

    def begin_step(self) -> None:
        """Plans all graphs together before a step, if calls were alive at the same time for which no plan was made.

        Raises:
            Infeasible, LimitReached: no plans keep the budget.
        """
        overlaps = self._calls.overlaps()
        new = overlaps.keys() - self._planned
        holds_more = any(names - self._calls.dropped_results(key) for key, names in self._dropped.items())
        if not (new or holds_more) or self.cost_model.device_limits or self._has_rows:
            return
        # Several calls come before a backward pass: wait for their end.
        if self._calls.together and self._waited < _WAITS:
            self._waited += 1
            return
        self._waited = 0
        # Graphs that fill a cache or initialize a model may never run again.
        if self.limit_bytes is None and self._is_first_step:
            self._is_first_step = False
            self._calls.forget()
            return
        over = holds_more or any(self._exceeded(together, overlaps[together]) for together in new)
        unplanned = any(self._is_unplanned([key for key, _ in together]) for together in new)
        if (unplanned or (over and not ranks.several_ranks())) and self.generation < _REPLANNED:
            self._plan_together(overlaps)
        elif holds_more:
            self._dropped = {}
            ranks.warn(
                "remat: since the first steps, you have begun to hold results of a graph during its backward pass. "
                "They are not counted, so the peak may exceed the limit."
            )
        self._planned |= new  # only now, so that every step raises the error if there are no plans

    def keep_plans(self) -> None:
        """Keeps the present plans after a search has failed, which would fail again before each further step."""
        self._planned |= self._calls.overlaps().keys()
        self._dropped = {}

    def _plan_together(self, overlaps: Mapping[CallCounts, Overlap]) -> None:
        is_last = self.generation == _REPLANNED - 1
        if self.limit_bytes is None and is_last:  # with its own share, each graph keeps the budget, whatever else runs
            self.plans, self.generation = {}, self.generation + 1
            return
        sets = maximal_sets(overlaps)
        if self.cost_model.limits_peak:
            self.plans, is_better = self._within_peak(overlaps, sets), True
        else:
            self.plans, is_better = self._within_saved(overlaps, sets, least=is_last)
        if not is_better:
            self.plans = {key: replace(one, plan=self._graphs[key].plan, gap=None) for key, one in self.plans.items()}
        elif any(self._graphs[key].plan != chosen.plan for key, chosen in self.plans.items()):
            self.generation += 1
            self._has_warned = False

    def _within_peak(self, overlaps: Mapping[CallCounts, Overlap], sets: Sequence[CallCounts]) -> dict[str, ChosenPlan]:
        times, orders = Counter[str](), {together: self._in_flight(overlaps[together].order) for together in sets}
        for order in orders.values():
            times |= Counter(order)  # the larger numbers
        keys = sorted(times)
        place = {key: i for i, key in enumerate(keys)}
        self._dropped = {key: self._calls.dropped_results(key) for key in keys}
        sequences: list[CallSequence] = []
        for together in sets:
            # Parts of the set were alive alone after the calls that began last had ended.
            in_reverse = all(one.in_reverse for part, one in overlaps.items() if is_subset(part, together))
            order = tuple(place[key] for key in orders[together])
            sequences.append(CallSequence(order, in_reverse, overlaps[together].shared))
        parts = [
            replace(self._graphs[key].part, times=times[key], dropped=self._dropped[key], gradients=gradients)
            for key, gradients in zip(keys, self._handed_back(keys, sequences), strict=True)
        ]
        choices, told = fit_joint_peak(parts, self.cost_model, sequences, self._solver)
        plans = [choice.plan(part.problem) for part, choice in zip(parts, choices, strict=True)]
        return {
            key: ChosenPlan(plan, "all graphs together", together=told) for key, plan in zip(keys, plans, strict=True)
        }

    # First steps may run fewer calls at a time than the cost model counts.
    def _in_flight(self, order: Sequence[str]) -> list[str]:
        calls, counts = [*order], Counter(order)
        for key in counts:
            calls += [key] * (self.cost_model.calls_in_flight - counts[key])
        return calls

    # The tangents of results that other graphs read. Other tangents come from the caller, who may keep them alive.
    def _handed_back(self, keys: Sequence[str], sequences: Sequence[CallSequence]) -> list[dict[str, str]]:
        taken = {
            (calls.order[call], name)
            for calls in sequences
            for _, uses in calls.shared
            for call, name in uses
            if len(uses) > 1 and frees_gradients()
        }
        tangents = (self._graphs[key].boundary.tangents.items() for key in keys)
        return [{name: one for name, one in of if (i, name) in taken} for i, of in enumerate(tangents)]

    def _within_saved(
        self, overlaps: Mapping[CallCounts, Overlap], sets: Sequence[CallCounts], *, least: bool
    ) -> tuple[dict[str, ChosenPlan], bool]:
        plans: dict[str, tuple[int, ChosenPlan]] = {}
        is_better = False
        for together in sets:
            keys, overlap = sorted(together), overlaps[together]
            in_flight = self.cost_model.calls_in_flight
            parts = [replace(self._graphs[key].part, times=max(times, in_flight)) for key, times in keys]
            place = {key: i for i, (key, _) in enumerate(keys)}
            shared = [(size, [(place[overlap.order[call]], name) for call, name in of]) for size, of in overlap.shared]
            other_bytes = overlap.handed_bytes
            new_plans, self._price, gap = solve_jointly(
                parts, self.cost_model, self._solver, other_bytes=other_bytes, shared=shared
            )
            by = "all graphs together"
            if least:
                new_plans, by, gap = [part.smallest_choice.plan(part.problem) for part in parts], "least saved", None
            self._warn_about_peak(parts, new_plans)
            is_better |= self._is_better(parts, [self._graphs[key].plan for key, _ in keys], new_plans, other_bytes)
            for (key, _), part, plan in zip(keys, parts, new_plans, strict=True):
                saved = Choice.from_plan(part.problem, plan).saved_bytes(part.problem)
                if key not in plans or saved < plans[key][0]:
                    plans[key] = saved, ChosenPlan(plan, by, gap)
        return {key: chosen for key, (_, chosen) in plans.items()}, is_better

    # Whether new plans are worth compiling all graphs again. They are if the present plans may exceed the limit.
    def _is_better(
        self, parts: Sequence[Subproblem], now: Sequence[Plan], then: Sequence[Plan], other_bytes: int
    ) -> bool:
        budget = budget_of(parts, self.cost_model, other_bytes)
        if self.limit_bytes is not None or budget is None:
            return True
        choices = [
            [Choice.from_plan(part.problem, plan) for part, plan in zip(parts, plans, strict=True)]
            for plans in (now, then)
        ]
        saved = [one.saved_bytes(part.problem) * part.times for part, one in zip(parts, choices[0], strict=True)]
        cost_now, cost_then = (
            sum(one.cost(part.problem) * part.times for part, one in zip(parts, of, strict=True)) for of in choices
        )
        return sum(saved) > budget or cost_then < (1 - _WORTHWHILE) * cost_now

    # Whether graphs that are alive at the same time were not planned together.
    def _is_unplanned(self, keys: Sequence[str]) -> bool:
        if self.limit_bytes is not None:
            return any(self._graphs[key].is_careful for key in keys)
        # If one graph left a part of its share to another graph, that part is lost while a third graph runs instead.
        ours = sum(key in self.plans for key in keys)
        return 1 < len(keys) > ours and (not self.plans or (ours > 0 and not ranks.several_ranks()))

    def most_held(self) -> HeldMemory:
        """Returns what all calls saved at the same time, by their present plans, when it was most."""
        overlaps = self._calls.overlaps()
        held = {together: self._held_bytes(together, overlap) for together, overlap in overlaps.items()}
        if not held:
            return HeldMemory(0, 0, None if self.cost_model.limits_peak else self.limit_bytes, {})
        together = max(held, key=held.__getitem__)
        by_default = {key: self._graphs[key].by_default for key, _ in together}
        default_bytes = self._held_bytes(together, overlaps[together], by_default)
        return HeldMemory(held[together], default_bytes, self._limit_of(together, default_bytes), dict(together))

    # The budget of calls that were alive at the same time. The shares of graphs that save the same storages add up to
    # more than a share of what all of them save.
    def _limit_of(self, together: CallCounts, default_bytes: int) -> int | None:
        if self.cost_model.limits_peak:
            return None
        if self.limit_bytes is not None:
            return self.limit_bytes
        parts = [replace(self._graphs[key].part, times=times) for key, times in together]
        counted_once = sum(self._graphs[key].by_default.saved_bytes * times for key, times in together) == default_bytes
        return budget_of(parts, self.cost_model) if counted_once else None

    # A budget of saved memory may raise the peak above that of PyTorch's default plans.
    def _warn_about_peak(self, parts: Sequence[Subproblem], plans: Sequence[Plan]) -> None:
        if self._has_warned_about_peak or self.cost_model.limits_peak:
            return
        choices = [Choice.from_plan(part.problem, plan) for part, plan in zip(parts, plans, strict=True)]
        rise = peak_rise(parts, choices)
        if rise is not None:
            self._has_warned_about_peak = True
            ranks.warn(rise)

    # Returns the budget and the bytes that the calls save; None if they keep the budget.
    def _exceeded(self, together: CallCounts, overlap: Overlap) -> tuple[int, int] | None:
        held = self._held_bytes(together, overlap)
        return (self.limit_bytes, held) if self.limit_bytes is not None and held > self.limit_bytes else None

    def _held_bytes(
        self, together: CallCounts, overlap: Overlap, graphs_of: Mapping[str, CompiledGraph] | None = None
    ) -> int:
        # Each storage counts once. Plans do not count inputs that unexpectedly come from other graphs.
        of = self._graphs if graphs_of is None else graphs_of
        held = sum(of[key].saved_bytes * times for key, times in together)
        for size, uses in overlap.shared:
            graphs = [(of[overlap.order[call]], name) for call, name in uses]
            saving = [(compiled_graph, name) for compiled_graph, name in graphs if name in compiled_graph.saved]
            counted = sum(
                name in compiled_graph.activation_inputs or name in compiled_graph.boundary.outputs.values()
                for compiled_graph, name in saving
            )
            held += size * (bool(saving) - counted)
        return held

    def __repr__(self) -> str:
        if not self._graphs:
            return f"<SharedBudget of {self.cost_model!r}: nothing is compiled>"
        most = human_bytes(self.most_held().bytes)
        return f"<SharedBudget of {self.cost_model!r}: {len(self._graphs)} graphs, at most {most} at once>"
