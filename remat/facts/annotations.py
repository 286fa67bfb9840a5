"""Sets marks on a graph's values, as a user would."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from remat.facts.graph import Graph, checked_graph

_CASTS = ("prims.convert_element_type.default", "aten._to_copy.default", "aten.clone.default")
_GATHERS = ("all_gather", "allgather", "wait_tensor")


def recompute_parameter_copies(graph: Graph) -> Graph:
    """Marks every copy of a parameter MUST_RECOMPUTE, so that no plan saves one.

    A copy is a cast, a view, a clone or a gathering of one parameter alone, or of another copy. The
    parameter is in memory anyway, or is gathered again when it is needed. Without the marks, autocast keeps a
    half-precision copy of all weights from the forward to the backward pass (DeepSpeed's
    DeepCompile measured 9.5 against 7.3 GB). Gathering twice means that a collective runs twice: these
    marks permit it. What is marked MUST_SAVE stays so, as torch marks what leaves a checkpointed region.

    Returns:
        the graph with the marks; bans on recomputing what is marked are lifted.
    """
    checked_graph(graph)
    copy = np.zeros(len(graph), np.bool_)
    # A copy of a buffer that the forward pass overwrites holds the old value: a second copy would hold the new one.
    lasting = graph.parameter & ~graph.cannot_recompute.mask
    for v, operands in enumerate(graph.operands):
        op = graph.ops[v]
        copies = bool(graph.view[v]) or op in _CASTS or any(word in op for word in _GATHERS)
        of_one_parameter = len(operands) == 1 and bool(lasting[operands[0]] or copy[operands[0]])
        copy[v] = copies and of_one_parameter and not graph.must_save[v]
    return replace(
        graph, must_recompute=graph.must_recompute | copy, cannot_recompute=graph.cannot_recompute.without(copy)
    )
