"""Computes the memory of a whole training step: parameters, gradients, optimizer state, and the activations of a plan.

A step clears the gradients of the step before, runs forward and backward, and then the optimizer. The optimizer
allocates its state in the first step, so later steps hold the state during both passes, too:

    first step    own + max(passes, gradients + the optimizer's peak with its new state)
    later steps   own + state + max(passes, gradients + the optimizer's workspace)

`own` is parameters, buffers and inputs. `passes` is the peak of both passes above `own`, with gradients
(`remat.predict.device_timeline`). The outputs of the forward pass are alive until the optimizer has run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat.answer.plan import Plan
from remat.errors import Infeasible, InvalidOption
from remat.facts.argument_checks import checked_bytes
from remat.facts.graph import Graph
from remat.predict.memory.timeline import Timeline
from remat.words import human_bytes


@dataclass(frozen=True)
class OptimizerMemory:
    """Holds the memory of an optimizer, in bytes; all zero without an optimizer.

    Attributes:
        state_bytes: what it keeps from step to step.
        first_bytes: the peak of its first step, with its new state, without parameters and gradients.
        workspace_bytes: the peak of a later step, without parameters, gradients and state.
        initial_bytes: the part of the state that exists before the first step.
    """

    state_bytes: int = 0
    first_bytes: int = 0
    workspace_bytes: int = 0
    initial_bytes: int = 0


@dataclass(frozen=True)
class PlanForecast:
    """Holds the memory of a training step under one plan, in bytes.

    Attributes:
        saved_bytes: activations that wait for the backward pass.
        passes_bytes: the peak of both passes, with gradients, without parameters, buffers and inputs.
        first_bytes: the peak of the first step, with everything.
        later_bytes: the peak of all later steps, with everything.
    """

    name: str
    plan: Plan
    saved_bytes: int
    passes_bytes: int
    first_bytes: int
    later_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Returns the peak of the whole training."""
        return max(self.first_bytes, self.later_bytes)


@dataclass(frozen=True)
class FixedMemory:
    """Holds the memory of training that does not depend on the plan of a graph, in bytes."""

    own_bytes: int  # parameters, buffers, inputs
    gradient_bytes: int  # results of the backward pass
    output_bytes: int  # results of the forward pass
    tangent_bytes: int  # arguments of the backward pass: the gradients of the outputs
    optimizer: OptimizerMemory

    @classmethod
    def of(cls, graph: Graph, own_bytes: int, optimizer: OptimizerMemory) -> FixedMemory:
        """Computes the bytes of a graph's outputs, gradients and tangents."""
        gradient = graph.owners(graph.gradient) & ~graph.input
        output = graph.owners(graph.output) & ~graph.input & ~gradient
        tangent = graph.in_tangents & (np.array(graph.ops) == "placeholder")
        fixed = (int(graph.bytes[mask].sum()) for mask in (gradient, output, tangent))
        return cls(own_bytes, *fixed, optimizer=optimizer)

    @property
    def outside_bytes(self) -> tuple[int, int]:
        """Returns the peaks of memory while the optimizer runs: in the first step, and in a later one."""
        always = self.own_bytes + self.gradient_bytes + self.output_bytes
        later = self.optimizer.state_bytes + self.optimizer.workspace_bytes
        return always + self.optimizer.first_bytes, always + later

    def forecast(self, name: str, plan: Plan, line: Timeline, waiting_bytes: int = 0) -> PlanForecast:
        """Computes the peaks of the steps under one plan from the timeline of both passes.

        `waiting_bytes` is what other calls hold that are alive at the same time.
        """
        passes = max(line.forward_peak_bytes, line.backward_peak_bytes + self.tangent_bytes) + waiting_bytes
        first, later = self.outside_bytes
        first = max(self.own_bytes + self.optimizer.initial_bytes + passes, first)
        later = max(self.own_bytes + self.optimizer.state_bytes + passes, later)
        return PlanForecast(name, plan, line.saved_bytes, passes, first, later)

    def available_for_passes(self, memory_bytes: int) -> int:
        """Returns how many bytes of a device's memory the two passes may take in every step."""
        available = memory_bytes - self.own_bytes - self.optimizer.state_bytes - self.tangent_bytes
        if max(self.outside_bytes) > memory_bytes or available < 0:
            raise Infeasible(
                f"training does not fit into {memory_bytes} bytes ({human_bytes(memory_bytes)}), whatever is "
                f"recomputed: {self}. Raise the budget."
            )
        return available

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
    """Holds the predicted memory of training a model, in bytes.

    Attributes:
        parameter_bytes, buffer_bytes, input_bytes: alive all the time.
        gradient_bytes: the results of the backward pass.
        plans: one forecast per plan, in the order of the request.
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
        for forecast in self.plans:
            if forecast.name == name:
                return forecast
        names = ", ".join(repr(forecast.name) for forecast in self.plans)
        raise InvalidOption(f"the forecast has no plan named {name!r}; there are: {names}")

    def fitting(self, memory: int | str) -> list[str]:
        """Returns the names of the plans with which training fits into an amount of memory.

        Args:
            memory: bytes, or a size such as "80GB".
        """
        most = checked_bytes("memory", memory)
        return [forecast.name for forecast in self.plans if forecast.peak_bytes <= most]

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
        width = max(len(forecast.name) for forecast in self.plans)
        lines.append(f"{'':{width}}  {'saved':>10}  {'passes':>10}  {'first step':>10}  {'later':>10}")
        for forecast in self.plans:
            sizes = forecast.saved_bytes, forecast.passes_bytes, forecast.first_bytes, forecast.later_bytes
            lines.append(f"{forecast.name:{width}}  " + "  ".join(f"{human_bytes(size):>10}" for size in sizes))
        return "\n".join(lines)
