"""Makes plans of what PyTorch's own partitioner saves at each of its memory budgets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import fx

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.facts.graph import Graph, checked_graph
from remat.improve.legal_choices import LegalChoices
from remat.problem.constraints import base_problem
from remat.pytorch.inductor.to_fx import JointGraph
from remat.pytorch.read.capture import visit_joint_graphs
from remat.pytorch.read.extract import extract
from remat.pytorch.seam.torch_partitioner import torchs_choice
from remat.pytorch.seam.virtual_gpu import device_of

TENTHS = tuple(tenth / 10 for tenth in range(11))


def torchs_plans(
    model: Callable[..., Any], /, *args: Any, budgets: Iterable[float] = TENTHS, **kwargs: Any
) -> list[tuple[Graph, dict[float, Plan]]]:
    """Returns PyTorch's choice at each memory budget, for each joint graph of a model.

    Some of PyTorch's plans are not legal (see `remat.check_plan`): below a budget of 1, they recompute random numbers.

    Args:
        model: a module or function, called once.
        budgets: values of `torch._functorch.config.activation_memory_budget`, from 0 to 1.
    """
    plans: list[tuple[Graph, dict[float, Plan]]] = []
    shares = tuple(budgets)

    def read(joint_graph: fx.Graph, node_info: Any, num_fwd_outputs: int) -> None:
        graph = extract(joint_graph, node_info, num_fwd_outputs)
        chosen = {budget: plan_that_saves(graph, torchs_choice(joint_graph, node_info, budget)) for budget in shares}
        plans.append((graph, chosen))

    visit_joint_graphs(read, model, *args, **kwargs)
    return plans


def torchs_plans_of(
    graph: Graph, budgets: Iterable[float] = TENTHS, *, device: str | torch.device = "cpu", legal: bool = False
) -> dict[float, Plan]:
    """Returns PyTorch's choice at each memory budget for a graph alone, without a model.

    The joint FX graph is rebuilt (`remat.pytorch.inductor.to_fx`). Some of the plans are not legal, as in
    `torchs_plans`.

    Args:
        legal: whether to save also the values that PyTorch recomputes illegally: random numbers, mostly a few bytes of
            seeds.
        device: the device of its tensors, as in `remat.pytorch.inductor.scheduled.Scheduled`.

    Raises:
        CannotRebuild: an operator of the graph is not installed, or an argument is not recorded.
        InvalidOption: the graph is no `Graph`.
        UnknownName, NotInstalled, UnsupportedTorch: see `Scheduled`.
    """
    where, for_device = device_of(device)
    plans: dict[float, Plan] = {}

    def read(joint_graph: fx.Graph, node_info: Any, _: int) -> list[fx.Node]:
        chosen: list[fx.Node] = []
        for budget in budgets:
            chosen = torchs_choice(joint_graph, node_info, budget)
            plans[budget] = plan_that_saves(graph, chosen)
        return chosen

    with for_device():
        JointGraph.of(checked_graph(graph), where).partitioned(read)
    return legal_plans(graph, plans) if legal else plans


def legal_plans(graph: Graph, plans: Mapping[float, Plan]) -> dict[float, Plan]:
    """Adds to PyTorch's plans, by budget, the saved values that make them legal; legal plans stay as they are."""
    problem = base_problem(graph)
    legal = LegalChoices(problem)
    return {budget: legal.saving(Choice.from_plan(problem, plan).saved).plan(problem) for budget, plan in plans.items()}


def plan_that_saves(graph: Graph, nodes: list[fx.Node]) -> Plan:
    """Returns the plan that saves the values of these nodes."""
    names = {node.name for node in nodes}
    return Choice.from_saved(graph, np.array([name in names for name in graph.names], np.bool_)).plan(graph)
