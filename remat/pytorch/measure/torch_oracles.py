"""Defines the oracles of `remat.refine` that need torch: TorchInductor's count of its kernels, and a clock."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import fx

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.errors import InvalidOption
from remat.facts.graph import Graph
from remat.improve.refine.objectives import KernelObjective, Launch, Objective, Score, Time
from remat.improve.refine.oracles import BatchScorer, Oracle, each_once
from remat.improve.refine.states import State
from remat.pytorch.inductor.scheduled import Scheduled, outputs_of
from remat.pytorch.measure.timing import Stopwatch, timed_device
from remat.pytorch.seam.inductor_lowering import compile_pass

# Runs of each step, in turns; the score is the median.
_ROUNDS = 15


class Inductor(Oracle):
    """Scores plans by the kernels that Inductor schedules for both passes (see `inductor.scheduled`): seconds per plan.

    Attributes:
        device: as in `Scheduled`; None for that of the graph.
    """

    name: ClassVar[str] = "inductor"
    asked_in_search: ClassVar[bool] = True

    def __init__(self, device: str | None = None) -> None:
        self.device = device

    def terms(self, objective: Objective) -> tuple[str, ...]:
        """Returns the terms of the objective, which must depend on the bytes of kernels."""
        return _by_bytes(objective).terms

    def on(self, graph: Graph, objective: Objective) -> BatchScorer:
        """Returns a scorer that rebuilds the joint graph from the columns of `graph`."""
        cost = _by_bytes(objective).cost(graph)
        scheduled = Scheduled(graph, device=self.device)

        def score(state: State) -> Score:
            launches = [Launch((), kernel.bytes) for kernel in scheduled.kernels(state.choice.plan(graph))]
            return cost(launches, state)

        return each_once(score)


class Device(Oracle):
    """Scores plans by the measured time of the compiled step on this machine: on CUDA if there is any, else the CPU.

    Inductor compiles both passes of each plan, which takes seconds to minutes per plan. They run on random numbers
    (integers are zeros), and the plans take turns.
    """

    name: ClassVar[str] = "device"

    def terms(self, objective: Objective) -> tuple[str, ...]:
        """Returns the terms of a score, the measured time first; the objective of the search must be time."""
        if not isinstance(objective, Time):
            raise InvalidOption(
                f"the oracle 'device' measures only time, got the objective {objective.name!r}; "
                "take the oracle 'model', or the objective 'time'"
            )
        return "measured_ns", "saved_bytes"

    def on(self, graph: Graph, objective: Objective) -> BatchScorer:
        """Returns a scorer that compiles each plan once, and times all plans again in each call."""
        self.terms(objective)
        device = timed_device(None)
        scheduled, watch = Scheduled(graph, device=device), Stopwatch(device)
        steps: dict[Choice, _Step] = {}

        def scores(states: Sequence[State]) -> list[Score]:
            for state in states:
                if state.choice not in steps:
                    steps[state.choice] = _Step(scheduled, state.choice.plan(graph), device)
            runs = [[watch.one_ns(steps[state.choice]) for state in states] for _ in range(_ROUNDS)]
            medians = [round(statistics.median(times)) for times in zip(*runs, strict=True)]
            return [(ns, state.saved_bytes) for ns, state in zip(medians, states, strict=True)]

        return scores


# A call runs both passes.
class _Step:
    def __init__(self, scheduled: Scheduled, plan: Plan, device: torch.device) -> None:
        forward, backward = scheduled.split(plan)
        inputs, late_inputs = ([*module.graph.find_nodes(op="placeholder")] for module in (forward, backward))
        self._takes, self._backward_takes = ([node.name for node in of] for of in (inputs, late_inputs))
        self._returns = [getattr(node, "name", "") for node in outputs_of(forward)]
        at_hand = {*self._takes, *self._returns}
        made_up = [*inputs, *(node for node in late_inputs if node.name not in at_hand)]
        self._samples = {node.name: _made_up(node, device) for node in made_up}
        self._forward, self._backward = compile_pass(forward, backward=False), compile_pass(backward, backward=True)
        self()

    def __call__(self) -> None:
        results = self._forward([self._samples[name] for name in self._takes])
        at_hand = {**self._samples, **dict(zip(self._returns, results, strict=True))}
        del results
        self._backward([at_hand[name] for name in self._backward_takes])


def _made_up(node: fx.Node, device: torch.device) -> torch.Tensor:
    fake = node.meta["val"]
    made = torch.empty_strided(fake.shape, fake.stride(), dtype=fake.dtype, device=device)
    return made.normal_() if made.is_floating_point() else made.zero_()


def _by_bytes(objective: Objective) -> KernelObjective:
    if isinstance(objective, KernelObjective) and objective.goes_by_bytes:
        return objective
    raise InvalidOption(
        f"the oracle 'inductor' counts only the bytes that kernels move, got the objective {objective.name!r}; "
        "take the oracle 'model', or the objective 'traffic' or 'saved'"
    )
