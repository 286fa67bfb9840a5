"""Decides whether some plan lets a kernel overwrite one value with another.

TorchInductor overwrites an argument that a kernel reads exactly where it writes. To find all positions at which the
kernel of some plan reads the old value, this module predicts kernels for the plan that saves all but its descendants.
"""

from __future__ import annotations

import numpy as np

from remat.facts.columns import BoolArray
from remat.facts.graph import Graph
from remat.predict.kernels import Fuser
from remat.predict.kernels.ir import Buffer
from remat.predict.kernels.loops import Nest

# From this rank on (images), the layout in memory depends on the other values that a pass computes.
_IMAGE = 4


def may_be_written_over(fuser: Fuser, old: int, new: int) -> bool:
    """Returns whether a kernel of some plan may overwrite `old` with `new`; False is certain, True is not.

    Args:
        old: a value that owns its storage.
        new: a value in the tangents' closure that owns its storage and depends on `old`.
    """
    graph = fuser.graph
    if graph.in_tangents[old] or len(graph.shapes[old]) >= _IMAGE:
        return True
    saved = ~graph.in_tangents & ~descendants(graph, old)
    saved[old] = True
    _, backward = fuser.passes(saved)
    nests = [nest for group in backward.groups for nest in group.nests]
    nest_of: dict[Buffer, Nest] = {buffer: nest for nest in nests for buffer in nest.loop.writes}
    target = backward.arguments.get(old)
    writers = [nest for buffer, nest in nest_of.items() if graph.base[buffer.value] == new]
    if target is None or len(writers) != 1 or not writers[0].loop.generated or len(writers[0].writes) != 1:
        return True
    (writer,) = writers
    ((_, *where),) = writer.writes
    if any(dep[0] is target and [*dep[1:]] == where for dep in writer.reads):
        return True
    return any(_is_inlined(dep[0], target, nest_of) for dep in writer.reads if dep[0] is not target)


# Whether a buffer depends on `target` without a reduction in between: another plan may not store the buffer.
def _is_inlined(buffer: Buffer, target: Buffer, nest_of: dict[Buffer, Nest]) -> bool:
    if buffer is target:
        return True
    nest = nest_of.get(buffer)
    if nest is None or nest.is_reduction:
        return False
    return any(_is_inlined(dep[0], target, nest_of) for dep in nest.reads)


def descendants(graph: Graph, v: int) -> BoolArray:
    """Returns a mask (n,) of the values that depend on a value, without the value itself."""
    reached = [False] * len(graph)
    reached[v] = True
    for u, reader in sorted(zip(graph.producers.tolist(), graph.consumers.tolist(), strict=True)):
        if reached[u]:
            reached[reader] = True
    reached[v] = False
    return np.array(reached, np.bool_)
