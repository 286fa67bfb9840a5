"""The frame of a script that `torch.distributed.run` starts once for each rank."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist


def print_what_every_rank_saw(scenarios: Mapping[str, Callable[[], Any]]) -> None:
    """Plays the scenarios on this rank, prints from rank 0 the results of all, as JSON, and ends the process."""
    dist.init_process_group("gloo")
    mine = {name: scenario() for name, scenario in scenarios.items()}
    everyone: list[object] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    if dist.get_rank() == 0:
        print(json.dumps(everyone))  # noqa: T201  # read by the test
    dist.destroy_process_group()
    sys.stdout.flush()
    # A thread of torch that wants Python's lock as Python ends aborts: 2 of 30 runs of plain torch.compile (2.13).
    os._exit(0)
