"""Models how long each part of a training step takes on a device, whatever the plan: see `remat.predict.offloading`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from remat.answer.plan import Plan
from remat.answer.plan_facts import no_recompute_plan
from remat.errors import InvalidOption, InvalidPlan
from remat.facts.columns import IntArray
from remat.facts.graph import Graph, Region, checked_graph
from remat.predict.kernels import kernels
from remat.predict.memory.storages import StorageFacts
from remat.predict.time.device import DeviceProfile
from remat.predict.time.known_devices import find_device
from remat.predict.time.modelled_step import modelled_time
from remat.predict.time.roofline import Roofline
from remat.predict.time.work import whole_prices
from remat.problem.constraints import base_problem
from remat.proof.budget import least_bytes
from remat.proof.certify import check_plan


@dataclass(frozen=True, eq=False)
class StepClock:
    """Holds the times of a step with n values on a device, in whole nanoseconds, whatever the plan.

    Attributes:
        device: a device with a link to the host.
        forward_ns, backward_ns: (n,) the times of the kernels. A kernel's time is the entry of the last value that the
            kernel computes (in the backward pass: the last one that depends on a gradient). All other entries are 0.
        again_ns: (n,) the time to recompute a value, by the roofline model or by an estimator (`priced`).
        copy_ns: (n,) the time to copy the value's storage to the host, or back.
        written_ns: (n,) when the forward pass has written the value.
        facts: the facts about storages that do not depend on the plan.
    """

    graph: Graph
    device: DeviceProfile
    forward_ns: IntArray
    backward_ns: IntArray
    again_ns: IntArray
    copy_ns: IntArray
    written_ns: IntArray
    facts: StorageFacts

    @classmethod
    def of(cls, graph: Graph, device: str | Path | DeviceProfile) -> StepClock:
        """Models the times of a graph on a device.

        Args:
            graph: the joint graph; its kernels are predicted for a GPU.
            device: a known name, a file, "here", or a profile.

        Raises:
            InvalidOption: the device has no link to a host.
            UnknownName: no device has this name.
            Infeasible: the graph has no plan.
        """
        profile = linked(device)
        launches = kernels(graph, _plain_plan(checked_graph(graph)), backend="triton")
        times = modelled_time(graph, launches, profile).kernels
        n, facts = len(graph), StorageFacts.of(graph)
        per_pass, written_at = np.zeros((2, n), np.int64), np.arange(n)
        always = (graph.region == Region.FORWARD) & facts.computed, facts.live  # whatever the plan
        carried = [0, 0]
        for kernel, time in zip(launches, times, strict=True):
            which = int(kernel.backward)
            if which and kernel.values and (graph.region[list(kernel.values)] == Region.FORWARD).all():
                continue  # a recomputation that annotations require: it is priced separately
            carried[which] += round(time.ns)
            if own := [v for v in kernel.values if always[which][v]]:  # a copy into another layout computes nothing
                per_pass[which, own[-1]] += carried[which]
                carried[which] = 0
                if not which:
                    written_at[own] = own[-1]
        forward, backward = per_pass
        again = np.where(graph.region == Region.FORWARD, Roofline(profile).recompute_cost(graph), 0)
        written = forward.cumsum()[written_at]
        return cls(graph, profile, forward, backward, again, copy_ns(graph, profile), written, facts)

    def priced(self, recompute_cost: IntArray) -> StepClock:
        """Returns the same step with the recompute times of an estimator; inputs and constants take none.

        Args:
            recompute_cost: (k,) `Problem.recompute_cost`, of the values that a plan decides about.
        """
        return replace(self, again_ns=np.where(self.facts.computed, self.graph.for_all_values(recompute_cost), 0))

    @property
    def forward_end_ns(self) -> int:
        """Returns the time when the last kernel of the forward pass has run."""
        return int(self.forward_ns.sum())

    @property
    def compute_ns(self) -> int:
        return self.forward_end_ns + int(self.backward_ns.sum())


def copy_ns(graph: Graph, device: DeviceProfile) -> IntArray:
    """Returns an array (n,): how long a copy of each value's storage takes in each direction, in whole nanoseconds."""
    ns = np.array(1e9 * graph.storage_bytes / device.host_bytes_per_s + device.host_latency_ns, np.float64)
    return whole_prices(f"copies between {device.name} and its host", ns)


# The plan without recomputation; if it is not legal, the plan that saves the fewest bytes.
def _plain_plan(graph: Graph) -> Plan:
    plan = no_recompute_plan(graph)
    try:
        check_plan(base_problem(graph), plan)
    except InvalidPlan:
        plan = least_bytes(base_problem(graph)).choice.plan(base_problem(graph))
    return plan


def linked(device: str | Path | DeviceProfile) -> DeviceProfile:
    """Returns the profile of a device, or raises `InvalidOption` if it has no link to a host."""
    profile = find_device(device)
    if not profile.host_bytes_per_s:
        raise InvalidOption(
            f'device "{profile.name}" has no link to a host (DeviceProfile.host_bytes_per_s is 0), so that nothing can '
            f"be offloaded from it; name a GPU, such as 'h100'"
        )
    return profile
