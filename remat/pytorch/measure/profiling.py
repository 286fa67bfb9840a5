"""Times a graph's operators on this machine, each distinct call once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch

from remat.errors import CannotRebuild
from remat.facts.graph import Graph
from remat.pytorch.measure.timing import undisturbed
from remat.pytorch.read.sample_call import rebuild, result_mismatch
from remat.pytorch.seam.torch_names import fork_rng

TimeCall = Callable[[Callable[[], object]], int]
"""Takes a function without arguments, and returns how many nanoseconds a call takes."""


def time_values(
    graph: Graph, value_of: Mapping[str, int], device: torch.device, time_call: TimeCall
) -> tuple[dict[str, int], dict[str, str]]:
    """Runs and times one value of the graph for each key; restores the random number generators.

    Args:
        value_of: key -> the value to time.

    Returns:
        nanoseconds by key; and for keys that could not be timed, the reason.
    """
    times: dict[str, int] = {}
    failures: dict[str, str] = {}
    devices: Iterable[torch.device] = [device] if device.type == "cuda" else []
    with undisturbed(device), fork_rng(devices):
        for key, value in value_of.items():
            try:
                call = rebuild(graph, value, device)
                wrong = result_mismatch(graph, value, call())
                if wrong:
                    raise CannotRebuild(f"it gives {wrong}")
                times[key] = time_call(call)
            # An operator may raise any exception. It is reported, and another estimator replaces the time.
            except Exception as error:
                failures[key] = (str(error).splitlines() or [type(error).__name__])[0]
    return times, failures
