"""Adds up what a whole training step holds: parameters, gradients, optimizer state, and the activations of a plan.

A step forgets the gradients of the one before, runs forward and backward, and lets the optimizer update. The optimizer
makes its state in the first step, so that later ones hold it during both passes, too:

    first step    own + max(passes, gradients + the optimizer's peak with its new state)
    later steps   own + state + max(passes, gradients + the optimizer's workspace)

`own` is what is alive anyway: parameters, buffers, inputs. `passes` is the peak of both passes above that, gradients
included, by the simulation of live bytes (`remat.predict.device_timeline`). What the forward pass returns is alive
until the optimizer has run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat.answer.plan import Plan
from remat.errors import Infeasible, InvalidOption
from remat.facts.columns import is_whole
from remat.facts.graph import Graph
from remat.predict.memory.timeline import Timeline
from remat.words import human_bytes, parse_bytes


@dataclass(frozen=True)
class OptimizerMemory:
    """Holds what an optimizer takes, in bytes; all zero if there is none.

    Attributes:
        state_bytes: what it keeps from step to step.
        first_bytes: the most that its first step holds beside parameters and gradients, its new state included.
        workspace_bytes: the most that a later step holds beside parameters, gradients and state.
        initial_bytes: the part of its state that it has before its first step.
    """

    state_bytes: int = 0
    first_bytes: int = 0
    workspace_bytes: int = 0
    initial_bytes: int = 0


@dataclass(frozen=True)
class PlanForecast:
    """Holds what a training step takes under one plan, in bytes.

    Attributes:
        name: of the plan.
        plan: what is saved and recomputed.
        saved_bytes: activations that wait for the backward pass.
        passes_bytes: the most that both passes hold beside parameters, buffers and inputs; gradients included.
        first_bytes: the most that the first step holds, all included.
        later_bytes: the most that any later step holds.
    """

    name: str
    plan: Plan
    saved_bytes: int
    passes_bytes: int
    first_bytes: int
    later_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Returns the most that training holds."""
        return max(self.first_bytes, self.later_bytes)


@dataclass(frozen=True)
class Surroundings:
    """Holds what training takes around the two passes of a graph, in bytes: the same under any plan."""

    own_bytes: int  # parameters, buffers, inputs
    gradient_bytes: int  # what the backward pass returns
    output_bytes: int  # what the forward pass returns
    tangent_bytes: int  # what the backward pass is given: the gradients of the outputs
    optimizer: OptimizerMemory  # what the optimizer takes

    @classmethod
    def of(cls, graph: Graph, own_bytes: int, optimizer: OptimizerMemory) -> Surroundings:
        """Reads from a graph what its passes return and are given."""
        returned = np.zeros((2, len(graph)), np.bool_)
        returned[0, graph.base[graph.gradient]] = True
        returned[1, graph.base[graph.output]] = True
        returned &= ~graph.input
        tangent = graph.in_tangents & (np.array(graph.ops) == "placeholder")
        gradients, outputs, tangents = (
            int(graph.bytes[mask].sum()) for mask in (returned[0], returned[1] & ~returned[0], tangent)
        )
        return cls(own_bytes, gradients, outputs, tangents, optimizer)

    @property
    def outside_bytes(self) -> tuple[int, int]:
        """Returns the most that the first step, and a later one, hold while the optimizer runs."""
        always = self.own_bytes + self.gradient_bytes + self.output_bytes
        later = self.optimizer.state_bytes + self.optimizer.workspace_bytes
        return always + self.optimizer.first_bytes, always + later

    def forecast(self, name: str, plan: Plan, line: Timeline) -> PlanForecast:
        """Adds up the steps of one plan, given the timeline of both passes under it."""
        passes = max(line.forward_peak_bytes, line.backward_peak_bytes + self.tangent_bytes)
        first, later = self.outside_bytes
        return PlanForecast(
            name,
            plan,
            line.saved_bytes,
            passes,
            max(self.own_bytes + self.optimizer.initial_bytes + passes, first),
            max(self.own_bytes + self.optimizer.state_bytes + passes, later),
        )

    def room(self, memory_bytes: int) -> int:
        """Returns how much of a device's memory the two passes may take in any step."""
        room = memory_bytes - self.own_bytes - self.optimizer.state_bytes - self.tangent_bytes
        if max(self.outside_bytes) > memory_bytes or room < 0:
            raise Infeasible(
                f"training does not fit into {memory_bytes} bytes ({human_bytes(memory_bytes)}), whatever is "
                f"recomputed: {self}. Raise the budget."
            )
        return room

    def __str__(self) -> str:
        held = {
            "parameters, buffers and inputs": self.own_bytes,
            "gradients": self.gradient_bytes,
            "the optimizer's state": self.optimizer.state_bytes,
            "its workspace": self.optimizer.workspace_bytes,
        }
        return ", ".join(f"{what}: {human_bytes(size)}" for what, size in held.items())


@dataclass(frozen=True)
class Forecast:
    """Holds what training a model will take, in bytes, before it runs.

    Attributes:
        parameter_bytes, buffer_bytes, input_bytes: alive all the time.
        gradient_bytes: what the backward pass returns.
        optimizer: what the optimizer takes.
        plans: a forecast for each plan, in the order in which they were asked for.
    """

    parameter_bytes: int
    buffer_bytes: int
    input_bytes: int
    gradient_bytes: int
    optimizer: OptimizerMemory
    plans: tuple[PlanForecast, ...]

    def __getitem__(self, name: str) -> PlanForecast:
        """Returns the forecast of a plan by name.

        Raises:
            InvalidOption: there is no plan of this name.
        """
        for found in self.plans:
            if found.name == name:
                return found
        known = ", ".join(repr(found.name) for found in self.plans)
        raise InvalidOption(f"the forecast has no plan named {name!r}; there are: {known}")

    def fitting(self, memory: int | str) -> list[str]:
        """Lists the names of the plans with which training fits into so much memory.

        Args:
            memory: bytes, or a size such as "80GB".
        """
        most = read_memory(memory)
        return [found.name for found in self.plans if found.peak_bytes <= most]

    def __str__(self) -> str:
        held = {
            "parameters": self.parameter_bytes,
            "buffers": self.buffer_bytes,
            "inputs": self.input_bytes,
            "gradients": self.gradient_bytes,
            "optimizer state": self.optimizer.state_bytes,
            "optimizer workspace": self.optimizer.workspace_bytes,
        }
        lines = [f"{human_bytes(size):>10}  {what}" for what, size in held.items()]
        width = max(len(found.name) for found in self.plans)
        lines.append(f"{'':{width}}  {'saved':>10}  {'passes':>10}  {'first step':>10}  {'later':>10}")
        for found in self.plans:
            sizes = found.saved_bytes, found.passes_bytes, found.first_bytes, found.later_bytes
            lines.append(f"{found.name:{width}}  " + "  ".join(f"{human_bytes(size):>10}" for size in sizes))
        return "\n".join(lines)


def read_memory(memory: object) -> int:
    """Reads an amount of memory: a whole number of bytes, or a size such as "80GB".

    Raises:
        InvalidOption: it is neither.
    """
    if isinstance(memory, str):
        return parse_bytes(memory, "memory")
    if not is_whole(memory) or int(memory) < 0:  # type: ignore[call-overload]
        raise InvalidOption(f'memory must be a whole number of bytes, or a size such as "80GB", got {memory!r}')
    return int(memory)  # type: ignore[call-overload]
