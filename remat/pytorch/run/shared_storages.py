"""Finds which storages several calls of compiled graphs have in common, so that each is counted once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    """

    inputs: Mapping[int, str] = field(default_factory=dict[int, str])
    outputs: Mapping[int, str] = field(default_factory=dict[int, str])

    @classmethod
    def of(cls, graph: Graph, joint_graph: fx.Graph) -> Boundary:
        """Reads the boundary of a joint graph; what torch does not describe is left out."""
        inputs = {
            node.meta["desc"].idx: node.name
            for node in joint_graph.find_nodes(op="placeholder")
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
        return cls(inputs, outputs)


class SharedStorages:
    """Records what calls take and give while they are alive; a storage that is freed is not taken for a later one."""

    def __init__(self) -> None:
        self._uses: dict[StorageWeakRef, tuple[int, list[tuple[int, str]]]] = {}

    def note(self, call: int, taken: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
        """Records which activations of the run a call takes, and what it makes, by their names in its graph."""
        for name, tensor in (*taken.items(), *given.items()):
            if storage_number(tensor) is not None:
                storage = tensor.untyped_storage()
                self._uses.setdefault(StorageWeakRef(storage), (storage.nbytes(), []))[1].append((call, name))

    def among(self, calls: Iterable[int]) -> Shared:
        """Lists what calls take from each other, or from outside of all graphs, by their positions in `calls`."""
        place = {call: i for i, call in enumerate(calls)}
        uses = ((size, [(place[call], name) for call, name in of if call in place]) for size, of in self._uses.values())
        return tuple((size, tuple(of)) for size, of in uses if of)

    def alive(self, call: int) -> dict[str, bool]:
        """Says of each activation that a call took or made, by its name there, whether somebody still holds it."""
        uses = ((storage, name) for storage, (_, of) in [*self._uses.items()] for one, name in of if one == call)
        return {name: not storage.expired() for storage, name in uses}

    def forget(self, *, all_of_them: bool) -> None:
        """Forgets storages that are freed, or all."""
        self._uses = {} if all_of_them else {one: of for one, of in self._uses.items() if not one.expired()}


def taken_and_given(
    boundary: Boundary, made_before: frozenset[str], handed: Mapping[int, int], args: Any, results: Any
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Finds the activations that a call takes and gives, by their names in its graph.

    Args:
        boundary: of the graph.
        made_before: inputs that are activations of the run, as is known when the graph is compiled.
        handed: further storages that are.
        args, results: of the call.
    """
    given: list[Any] = [*results] if isinstance(results, list | tuple) else [results]
    taken = {
        name: args[i]
        for i, name in boundary.inputs.items()
        if i < len(args) and isinstance(args[i], Tensor) and (name in made_before or storage_number(args[i]) in handed)
    }
    made = {name: given[i] for i, name in boundary.outputs.items() if i < len(given) and isinstance(given[i], Tensor)}
    return taken, made
