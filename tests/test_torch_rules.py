"""Our rules ban what PyTorch's partitioner bans, on real graphs, but for what we say differently."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from torch import fx

from costmodels import ByteTraffic
from experiments.models.cases import CASES
from remat.pytorch.read.capture import visit_joint_graphs
from remat.pytorch.read.extract import extract
from remat.pytorch.seam.torch_partitioner import torchs_choice


def differences(model: Any, args: tuple[Any, ...]) -> set[str]:
    """What one of the two bans and the other does not, but for the deliberate differences."""
    found: set[str] = set()

    def visit(joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int) -> None:
        from torch._functorch import partitioners

        original, banned = partitioners.solve_min_cut, set[str]()

        def spy(*arguments: Any) -> Any:
            saved, nodes = original(*arguments)
            banned.update(node.name for node in nodes)
            return saved, nodes

        with patch.object(partitioners, "solve_min_cut", spy):
            torchs_choice(joint_graph, node_info)
        graph = extract(joint_graph, node_info, num_fwd_outputs)
        problem = ByteTraffic().pose(graph)
        ours = {problem.names[i] for i in np.flatnonzero(problem.cannot_recompute.mask)}
        apart = {
            name
            for name, i in graph.index.items()
            if graph.input[i]
            # torch takes its graph's output node for an unfusible user, so it bans forward outputs; we do not.
            or graph.output[i]
            # An element is banned with its tuple: torch leaves that to the network, our rules say it.
            or graph.ops[i] == "getitem"
            # Inductor expands seeds in pointwise kernels; torch's lists do not know these operators.
            or graph.ops[i].startswith("prims.inductor_")
        }
        found.update((ours ^ banned) - apart)

    visit_joint_graphs(visit, model, *args)
    return found


@pytest.mark.parametrize("name", ["pointwise chain", "batch normalization", "recurrent cells", "encoder layer"])
def test_on_small_cases(name: str) -> None:
    assert differences(CASES[name].build(), CASES[name].inputs()) == set()
