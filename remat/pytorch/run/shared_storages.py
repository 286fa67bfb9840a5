"""Describes compiled graphs, and finds the storages that several of their calls use: each storage is counted once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from torch import Tensor, fx
from torch.multiprocessing.reductions import StorageWeakRef

from remat.answer.choice import Choice
from remat.answer.plan import Plan
from remat.facts.graph import Graph
from remat.improve.byte_budgets import default_choice
from remat.improve.subproblem import Subproblem
from remat.pytorch.run.sizes import counted_storages
from remat.pytorch.seam.torch_names import storage_number

Shared: TypeAlias = tuple[tuple[int, tuple[tuple[int, str], ...]], ...]
"""For each storage its bytes, and the calls that may save it: their positions, with the name of the value there."""


@dataclass(frozen=True)
class Boundary:
    """Holds the names of the inputs and results of a graph, by position.

    Attributes:
        inputs: the names of the tensors that it reads.
        outputs: for each result that it computes itself, the name of the value that owns the storage.
        tangents: for each of these values, the name of its tangent.
    """

    inputs: Mapping[int, str] = field(default_factory=dict[int, str])
    outputs: Mapping[int, str] = field(default_factory=dict[int, str])
    tangents: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, graph: Graph, joint_graph: fx.Graph) -> Boundary:
        """Reads the inputs and results of a joint graph, except those that torch does not describe."""
        placeholders = joint_graph.find_nodes(op="placeholder")
        inputs = {
            node.meta["desc"].idx: node.name
            for node in placeholders
            if hasattr(node.meta.get("desc"), "idx") and node.name in graph.index
        }
        (output,) = joint_graph.find_nodes(op="output")
        outputs: dict[int, str] = {}
        for node, description in zip(output.args[0], output.meta.get("desc", ()), strict=False):
            position = getattr(description, "idx", None)
            if isinstance(node, fx.Node) and node.name in graph.index and position is not None:
                owner = int(graph.base[graph.index[node.name]])
                if description.expr() == f"output[{position}]" and not graph.input[owner]:
                    outputs[position] = graph.names[owner]
        described = {node.name: getattr(node.meta.get("desc"), "output", None) for node in placeholders}
        results = {name: getattr(output, "idx", None) for name, output in described.items() if name in graph.index}
        return cls(inputs, outputs, {outputs[i]: name for name, i in results.items() if i in outputs})


class SharedStorages:
    """Records the storages that calls read and return while they are alive.

    Weak references distinguish a freed storage from a later one at the same address.
    """

    def __init__(self) -> None:
        self._uses: dict[StorageWeakRef, tuple[int, list[tuple[int, str]]]] = {}

    def note(self, call: int, activations: Mapping[str, Tensor]) -> None:
        """Records the activations that a call reads and returns, by their names in its graph."""
        for name, tensor in activations.items():
            if storage_number(tensor) is not None:
                storage = tensor.untyped_storage()
                self._uses.setdefault(StorageWeakRef(storage), (storage.nbytes(), []))[1].append((call, name))

    def among(self, calls: Iterable[int]) -> Shared:
        """Lists the storages that some calls read or return, with the positions of these calls in `calls`."""
        place = {call: i for i, call in enumerate(calls)}
        uses = ((size, [(place[call], name) for call, name in of if call in place]) for size, of in self._uses.values())
        return tuple((size, tuple(of)) for size, of in uses if of)

    def liveness(self, call: int, *, alone: bool) -> dict[str, bool]:
        """Returns whether each activation that a call read or returned is still alive, by its name in the call's graph.

        With `alone`, activations that other calls read or returned, too, are left out.
        """
        uses = ((storage, of, name) for storage, (_, of) in [*self._uses.items()] for one, name in of if one == call)
        return {name: not storage.expired() for storage, of, name in uses if len(of) == 1 or not alone}

    def forget(self, *, all_of_them: bool) -> None:
        """Forgets all storages, or only those that are freed."""
        self._uses = {} if all_of_them else {one: of for one, of in self._uses.items() if not one.expired()}


def activations_of(
    boundary: Boundary,
    activation_inputs: frozenset[str],
    from_other_graphs: Mapping[int, int],
    args: Sequence[Any],
    results: Any,
) -> dict[str, Tensor]:
    """Finds the activations of the run that a call reads and returns, by their names in its graph.

    Args:
        activation_inputs: names of the inputs that are known as activations when the graph is compiled.
        from_other_graphs: the storages of further inputs that other graphs computed.
        args, results: those of the call.
    """
    outputs: list[Any] = [*results] if isinstance(results, list | tuple) else [results]
    taken = {name: args[i] for i, name in boundary.inputs.items() if i < len(args) and isinstance(args[i], Tensor)}
    made = {name: outputs[i] for i, name in boundary.outputs.items() if i < len(outputs)}

    def is_activation(name: str, tensor: Any) -> bool:
        if name in taken:
            return name in activation_inputs or storage_number(tensor) in from_other_graphs
        return isinstance(tensor, Tensor)

    return {name: tensor for name, tensor in (taken | made).items() if is_activation(name, tensor)}


@dataclass(frozen=True, eq=False)
class CompiledGraph:
    """Holds a compiled graph with its plan, and what it shares with other graphs."""

    key: str  # equal for equal graphs of equal sizes
    part: Subproblem
    plan: Plan
    activation_inputs: frozenset[str]  # names of the inputs that earlier graphs computed, and that need gradients
    boundary: Boundary
    is_careful: bool  # whether it saves as little as possible until it is known which other calls are alive
    may_take_all: bool  # whether it may use the whole budget, as far as is known

    @cached_property
    def saved_bytes(self) -> int:
        """Returns the bytes that the plan saves, with saved inputs that other graphs computed."""
        return Choice.from_plan(self.part.problem, self.plan).saved_bytes(self.part.problem)

    @cached_property
    def saved(self) -> frozenset[str]:
        """Returns the names of the storages that the plan saves, with such inputs."""
        graph = self.part.graph
        return frozenset(graph.names[v] for v in counted_storages(graph, self.plan, self.boundary.inputs.values()))

    @cached_property
    def by_default(self) -> CompiledGraph:
        """Returns the graph as if it had PyTorch's default plan, or itself if there is none."""
        choice = default_choice(self.part.graph, self.part.problem)
        return self if choice is None else replace(self, plan=choice.plan(self.part.problem))
