"""Finds the sizes for which a graph with symbolic sizes is planned, so that all its calls keep the budget.

One compiled graph runs with many sizes, and a plan saves more if they are larger. If the user or the model says how
large a size can be, the plan is made for that size. Otherwise it is made for the sizes of the present call, with a
guard: Dynamo compiles another graph for a call that would exceed the budget. From the second such graph on, each size
is rounded up to a power of two. Without that, slowly growing sizes would reach Dynamo's limit of compilations, after
which it runs a model eagerly.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import fx

from remat.answer.plan import Plan
from remat.errors import InvalidPlan
from remat.facts.graph import Graph
from remat.problem.costmodel import CostModel
from remat.pytorch.run import ranks
from remat.pytorch.seam.compilations import times_compiled
from remat.pytorch.seam.symbols import has_jagged_sizes, keep_at_most, symbols

Sizes = Mapping[str, int]
"""Sizes by the names of symbols; empty for the sizes of the call for which the graph is compiled."""

# Dynamo first compiles code for fixed sizes, and then for sizes that vary; a third compilation follows a guard.
_EXACT = 2


def limits_of(cost_model: CostModel) -> tuple[int | None, int | None]:
    """Finds the budgets of a cost model in bytes: of the memory that one call saves, and of the peak.

    A budget of a device counts as one of the peak, and so does one of a region: for these, each size is guarded.
    Fractions are left out, because their bytes grow with the sizes.
    """
    calls = cost_model.calls_in_flight
    saved = [limit // calls for limit in cost_model.saved_limits if isinstance(limit, int)]
    peak = [limit for limit in cost_model.peak_limits if isinstance(limit, int)]
    peak += [limit.bytes for limit in cost_model.device_limits]
    peak += [limit for limit in cost_model.row_limits if isinstance(limit, int)]
    return min(saved, default=None), min(peak, default=None)


def sizes_to_plan_for(joint_graph: fx.Graph, cost_model: CostModel, earlier: Sizes) -> list[Sizes]:
    """Lists the sizes to plan for, the largest first; the first ones for which there is a plan are taken.

    Args:
        earlier: the sizes for which the same graph was planned before.
    """
    varying = symbols(joint_graph)
    if not varying or limits_of(cost_model) == (None, None):
        return [{}]
    now = {symbol.name: symbol.value for symbol in varying}
    # More than the smallest size: a guard that allows one size only is an error if the user says that the size varies.
    usual = {symbol.name: max(symbol.value, symbol.minimum + 1, earlier.get(symbol.name, 0)) for symbol in varying}
    if times_compiled() >= _EXACT and not ranks.several_ranks():
        usual = {name: 1 << (size - 1).bit_length() for name, size in usual.items()}
    most = {symbol.name: symbol.maximum for symbol in varying if symbol.maximum is not None}
    bounded = {name: min(size, most.get(name, size)) for name, size in usual.items()}
    tried: list[Sizes] = []
    for sizes in (bounded | most, bounded, now):
        if sizes not in tried:
            tried.append(sizes)
    return tried


def keep_within(
    joint_graph: fx.Graph, saved: Sequence[Any], sizes: Sizes, saved_limit: int | None, peak_limit: int | None
) -> None:
    """Makes Dynamo compile another graph for sizes at which the plan would exceed the budget.

    There are no guards with several ranks, because a rank that compiles again would wait for the plans of the others
    for ever; and none for jagged tensors, because torch may fail to make them. Instead there is a warning, unless all
    sizes are known to be at most those for which the plan is made.

    Args:
        saved: the bytes of each storage that the plan saves (`saved_sizes`).
        sizes: the sizes for which the plan is made.
        saved_limit, peak_limit: the budgets in bytes, as `limits_of` returns them.
    """
    varying = symbols(joint_graph) if sizes else []
    why = "there are several ranks" if ranks.several_ranks() else ""
    if has_jagged_sizes(joint_graph):
        why = "torch cannot guard the sizes of a jagged tensor"
    if why:
        open_ended = [symbol for symbol in varying if symbol.maximum is None or symbol.maximum > sizes[symbol.name]]
        if open_ended:
            held = ", ".join(f"{symbol.name} up to {sizes[symbol.name]}" for symbol in open_ended)
            ranks.warn(
                f"the budget holds for these sizes of the arguments: {held}. Larger ones are not checked, because "
                f"{why}; say how large they can get: torch._dynamo.mark_dynamic(x, 0, min=2, max=...)"
            )
        return
    if varying and saved_limit is not None and not keep_at_most(saved, saved_limit):
        raise InvalidPlan(f"a plan that was made for {dict(sizes)} saves more than {saved_limit} bytes in this call")
    if peak_limit is not None:
        for symbol in varying:
            keep_at_most([symbol.size], sizes[symbol.name])


def counted_storages(graph: Graph, plan: Plan, activation_inputs: Collection[str]) -> list[int]:
    """Lists the storages that a plan saves on the device. Of inputs, only those named in `activation_inputs` count."""
    owners = {int(graph.base[graph.index[name]]) for name in plan.saved} - {
        graph.index[name] for name in plan.offloaded
    }
    return [owner for owner in sorted(owners) if not graph.input[owner] or graph.names[owner] in activation_inputs]


def saved_sizes(joint_graph: fx.Graph, graph: Graph, owners: Sequence[int]) -> list[Any]:
    """Lists the bytes of some storages, as symbolic expressions if they vary."""
    names = {graph.names[owner]: owner for owner in owners}
    values = {node.name: node.meta.get("val") for node in joint_graph.nodes if node.name in names}
    return [
        value.numel() * value.itemsize if hasattr(value, "itemsize") else int(graph.bytes[names[name]])
        for name, value in values.items()
    ]
