"""Finds which storages several calls of compiled graphs have in common, so that each is counted once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor, fx
from torch.multiprocessing.reductions import StorageWeakRef

from remat.facts.graph import Graph
from remat.pytorch.seam.torch_names import storage_number

Shared: TypeAlias = tuple[tuple[int, tuple[tuple[int, str], ...]], ...]
"""The bytes of each storage, and who may save it: the positions of calls, each with the name that it has there."""


@dataclass(frozen=True)
class Boundary:
    """Holds the names of what a graph takes and gives, by position.

    Attributes:
        inputs: the names of tensors that it takes.
        outputs: the names of the values in whose storages its results are; of those alone that it makes itself.
        tangents: the name of the tangent of each of these values.
    """

    inputs: Mapping[int, str] = field(default_factory=dict[int, str])
    outputs: Mapping[int, str] = field(default_factory=dict[int, str])
    tangents: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, graph: Graph, joint_graph: fx.Graph) -> Boundary:
        """Reads the boundary of a joint graph; what torch does not describe is left out."""
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
    """Records what calls take and give while they are alive; a storage that is freed is not taken for a later one."""

    def __init__(self) -> None:
        self._uses: dict[StorageWeakRef, tuple[int, list[tuple[int, str]]]] = {}

    def note(self, call: int, activations: Mapping[str, Tensor]) -> None:
        """Records which activations of the run a call takes, and what it makes, by their names in its graph."""
        for name, tensor in activations.items():
            if storage_number(tensor) is not None:
                storage = tensor.untyped_storage()
                self._uses.setdefault(StorageWeakRef(storage), (storage.nbytes(), []))[1].append((call, name))

    def among(self, calls: Iterable[int]) -> Shared:
        """Lists what calls take from each other, or from outside of all graphs, by their positions in `calls`."""
        place = {call: i for i, call in enumerate(calls)}
        uses = ((size, [(place[call], name) for call, name in of if call in place]) for size, of in self._uses.values())
        return tuple((size, tuple(of)) for size, of in uses if of)

    def liveness(self, call: int, *, alone: bool) -> dict[str, bool]:
        """Says of activations that a call took or made, by their names there, whether somebody still holds them.

        Args:
            call: its number.
            alone: leave out what other calls took or made, too.
        """
        uses = ((storage, of, name) for storage, (_, of) in [*self._uses.items()] for one, name in of if one == call)
        return {name: not storage.expired() for storage, of, name in uses if len(of) == 1 or not alone}

    def forget(self, *, all_of_them: bool) -> None:
        """Forgets storages that are freed, or all."""
        self._uses = {} if all_of_them else {one: of for one, of in self._uses.items() if not one.expired()}


def activations_of(
    boundary: Boundary,
    made_before: frozenset[str],
    made_elsewhere: Mapping[int, int],
    args: Sequence[Any],
    results: Any,
) -> dict[str, Tensor]:
    """Finds the activations of the run that a call takes and makes, by their names in its graph.

    Args:
        boundary: of the graph.
        made_before: inputs that are activations of the run, as is known when the graph is compiled.
        made_elsewhere: further storages that are.
        args, results: of the call.
    """
    outputs: list[Any] = [*results] if isinstance(results, list | tuple) else [results]
    taken = {name: args[i] for i, name in boundary.inputs.items() if i < len(args) and isinstance(args[i], Tensor)}
    made = {name: outputs[i] for i, name in boundary.outputs.items() if i < len(outputs)}

    def is_activation(name: str, tensor: Any) -> bool:
        if name in taken:
            return name in made_before or storage_number(tensor) in made_elsewhere
        return isinstance(tensor, Tensor)

    return {name: tensor for name, tensor in (taken | made).items() if is_activation(name, tensor)}
