"""Plans a graph within the memory of a device: `MemoryBudget("80GB", of="device")`.

Parameters, buffers, inputs and the optimizer's state, which later steps hold during both passes, take a part of the
memory. The rest is a limit on the peak of the two passes (`remat.improve.peak_search`).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from remat.answer.solution import Solution
from remat.answer.solver import Solver
from remat.errors import Infeasible, InvalidOption, LimitReached
from remat.facts.graph import Graph
from remat.improve.choose import search
from remat.predict.in_flight import argument_bytes
from remat.predict.whole_step import FixedMemory
from remat.problem.costmodel import CostModel
from remat.pytorch.read.optimizer_memory import MakeOptimizer, optimizer_from, optimizer_memory
from remat.pytorch.run.ranks import several_ranks
from remat.pytorch.seam.compilations import in_pipeline_stage
from remat.pytorch.seam.torch_names import storage_of


def check_device(cost_model: CostModel, *, is_alone: bool) -> None:
    """Raises `InvalidOption` if a device is limited, and there are several models, graphs or ranks."""
    if cost_model.device_limits and (not is_alone or several_ranks() or in_pipeline_stage()):
        raise InvalidOption(
            f"{cost_model!r} limits all memory of training, which works for a model with one graph on one rank. "
            f"Here are several graphs (TORCH_LOGS=graph_breaks names breaks; a nested_compile_region, and blocks that "
            f"are compiled one by one, have graphs of their own) or several ranks. "
            f'To limit the activations, say of="peak"'
        )
    for limit in cost_model.device_limits:
        optimizer_from(limit.optimizer)


def plan_on_device(
    graph: Graph,
    cost_model: CostModel,
    solver: Solver | None,
    alive: Sequence[Tensor],
    *,
    larger_bytes: int = 0,
    optimizer: MakeOptimizer | None = None,
) -> Solution:
    """Finds the fastest plan with which every step of training keeps the limits of a device.

    Args:
        graph: the joint graph of a step that clears the gradients first.
        alive: parameters, buffers and inputs, which are always alive. The optimizer updates the trainable parameters.
        larger_bytes: how many bytes more the inputs have at the sizes for which the graph is planned.
        optimizer: makes the optimizer; None for the optimizers that the limits name.
    """
    own_bytes, parameters = bytes_of(alive) + larger_bytes, trainable_parameters(alive)
    gpu = graph.meta.get("device") == "cuda"
    fixed = [
        FixedMemory.of(graph, own_bytes, optimizer_memory(make, parameters, gpu=gpu))
        for make in (optimizer or optimizer_from(limit.optimizer) for limit in cost_model.device_limits)
    ]
    limits = [one.available_for_passes(limit.bytes) for one, limit in zip(fixed, cost_model.device_limits, strict=True)]
    # Calls that wait hold their arguments, too.
    waiting = (cost_model.calls_in_flight - 1) * argument_bytes(graph)
    limits = [max(limit - waiting, 0) for limit in limits]
    problem = cost_model.pose_without_peak(graph)
    try:
        return search(graph, problem, cost_model, solver, limits=(*cost_model.peak_limits, *limits))
    except (Infeasible, LimitReached) as error:
        tightest = limits.index(min(limits))
        raise type(error)(
            f"{limits[tightest]} of {cost_model.device_limits[tightest].bytes} bytes are left for the two passes "
            f"({fixed[tightest]}), and {error}"
        ) from error


def bytes_of(tensors: Sequence[Tensor]) -> int:
    """Adds up the bytes of the storages behind tensors, each counted once."""
    return sum({storage_of(tensor): tensor.untyped_storage().nbytes() for tensor in tensors}.values())


def trainable_parameters(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Lists the parameters among tensors that an optimizer updates, each once."""
    return list({id(one): one for one in tensors if isinstance(one, nn.Parameter) and one.requires_grad}.values())
