"""Splits a joint graph into its forward and backward graphs, for capture and compile alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx

from remat.pytorch.read.mutated_inputs import keep_old_values
from remat.pytorch.seam.torch_partitioner import Chooser, partition


def split(
    joint_module: fx.GraphModule, joint_inputs: Sequence[object], chooser: Chooser, **kwargs: Any
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Splits a joint graph with torch's partitioner and our choice of saved values; the graph is changed in place."""
    keep_old_values(joint_module)
    return partition(joint_module, joint_inputs, chooser, **kwargs)
