"""Finds which value of a joint graph is which result of an eager operator.

The joint graph was decomposed, stripped of common subexpressions, and changed by passes; eager runs whole operators. So
every eager operator is decomposed like in the compiler, and its pieces are looked up in the joint graph. A piece and a
node are the same value if operator, constants, shape, dtype and all arguments agree; two arguments agree if their
contents were found to be the same before. Names, counts and positions decide nothing, except between nodes that agree
in everything else.

Values that eager computes in another way than the compiler (dropout, on CPUs) are not found themselves, but their
readers are: a content that was not found matches whatever its readers read in the joint graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from torch import Tensor, fx

from remat.pytorch.eager.expansion import Expansion
from remat.pytorch.eager.recording import Content, EagerCall
from remat.pytorch.read.node_inputs import Inputs
from remat.pytorch.read.operators import Operators
from remat.pytorch.read.sharing import bases
from remat.pytorch.seam.fakes import hint
from remat.pytorch.seam.torch_names import is_mutable, tree_flatten, tree_leaves

# A content, or a piece inside a call: (position of the call, name).
_Key: TypeAlias = Content | tuple[int, str]


@dataclass(frozen=True)
class Correspondence:
    """Maps the values of the joint graph that own a storage to the places where eager mode computes them."""

    # value -> each (position of the call, content) where eager computes it: several if equal calls are one node in the
    # joint graph.
    returned: dict[str, list[tuple[int, Content]]] = field(default_factory=dict[str, list[tuple[int, Content]]])
    # value -> position of the call that computes it internally, but does not return it.
    inside: dict[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def of(
        cls, joint_graph: fx.Graph, node_info: Any, calls: Sequence[EagerCall], expansions: Sequence[Expansion | None]
    ) -> Correspondence:
        nodes = [node for node in joint_graph.nodes if node.op != "output" and node not in node_info.tangents_closure]
        search = _Lookup(_Pieces.of(nodes), calls, expansions)
        for position in range(len(calls)):
            search.look_up(position)
        return search.answer()


@dataclass(frozen=True)
class _Pieces:
    nodes: Sequence[fx.Node]
    base: dict[fx.Node, fx.Node]

    @classmethod
    def of(cls, nodes: Sequence[fx.Node]) -> _Pieces:
        base = bases(nodes, Inputs.of(nodes), Operators.of(nodes))
        return cls(nodes, dict(zip(nodes, map(nodes.__getitem__, base), strict=True)))

    # Nodes without inputs, views, and the writes that functionalization adds.
    @property
    def computed(self) -> Iterable[fx.Node]:
        for node in self.nodes:
            if node.op == "call_function" and self.base[node] is node and not is_mutable(node.target):
                yield node


class _Lookup:
    def __init__(self, joint: _Pieces, calls: Sequence[EagerCall], expansions: Sequence[Expansion | None]) -> None:
        self.joint = joint
        self.calls = calls
        self.expansions = expansions
        self.maker = {content: i for i, call in reversed(list(enumerate(calls))) for content in _contents(call)}
        self.node_of: dict[_Key, fx.Node] = {}
        self.standing_for: dict[fx.Node, _Key] = {}
        self.taken: set[fx.Node] = set()
        self.by_argument: defaultdict[tuple[Any, fx.Node | None], list[fx.Node]] = defaultdict(list)
        for node in joint.computed:
            sources = node.all_input_nodes
            self.by_argument[node.target, None].append(node)
            if sources:
                self.by_argument[node.target, joint.base[sources[0]]].append(node)

    def look_up(self, position: int) -> None:
        call, expansion = self.calls[position], self.expansions[position]
        if expansion is None:
            return
        *nodes, _ = expansion.graph.nodes
        pieces = _Pieces.of(nodes)
        inputs = [node for node in nodes if node.op == "placeholder"]
        contents: dict[fx.Node, _Key]
        contents = {node: operand.content for node, operand in zip(inputs, call.operands, strict=True)}
        for result, operand in zip(expansion.results, call.results, strict=True):
            # A decomposition may differ from eager: for example, statistics of a bfloat16 layer_norm are float32
            # in eager on CPUs, and bfloat16 in the compiler.
            if operand and isinstance(result, fx.Node) and _kind(result) == ((operand.dtype, *operand.shape),):
                contents.setdefault(pieces.base[result], operand.content)
        identity = {node: contents.get(base, (position, base.name)) for node, base in pieces.base.items()}
        for piece in pieces.computed:
            self._find(piece, identity)

    def _find(self, piece: fx.Node, identity: dict[fx.Node, _Key]) -> None:
        sources = piece.all_input_nodes
        first = self.node_of.get(identity[sources[0]]) if sources else None
        candidates = self.by_argument[piece.target, first]
        # Two equal calls are one node after the elimination of common subexpressions, so a node may match twice.
        # But if arguments are unknown, the next node in program order is preferred.
        for node in sorted(candidates, key=self.taken.__contains__):
            learnt = self._agree(piece, node, identity)
            if learnt is not None:
                self.taken.add(node)
                for what, is_node in {**learnt, identity[piece]: node}.items():
                    self.node_of[what] = is_node
                    self.standing_for.setdefault(is_node, what)
                return

    # Returns None if they differ, otherwise the nodes of arguments that were unknown.
    def _agree(self, piece: fx.Node, node: fx.Node, identity: dict[fx.Node, _Key]) -> dict[_Key, fx.Node] | None:
        ours, shape_of_ours = tree_flatten((piece.args, dict(piece.kwargs)))
        theirs, shape_of_theirs = tree_flatten((node.args, dict(node.kwargs)))
        if shape_of_ours != shape_of_theirs or _kind(piece) != _kind(node):
            return None
        learnt: dict[_Key, fx.Node] = {}
        for our, their in zip(ours, theirs, strict=True):
            if not (isinstance(our, fx.Node) and isinstance(their, fx.Node)):
                if type(our) is not type(their) or our != their:
                    return None
                continue
            what, base = identity[our], self.joint.base[their]
            node_of_what = self.node_of.get(what, learnt.get(what))
            if _kind(our) != _kind(their) or (node_of_what is None and not self._may_be(what, base)):
                return None
            if node_of_what is not None and node_of_what is not base:
                return None
            learnt[what] = base
        return learnt

    # Both must be inputs, or neither; and the node must not already match another content.
    def _may_be(self, what: _Key, node: fx.Node) -> bool:
        from_outside = what not in self.maker and isinstance(what[1], int)
        return from_outside == (node.op == "placeholder") and self.standing_for.get(node, what) == what

    def answer(self) -> Correspondence:
        result = Correspondence()
        for what, node in self.node_of.items():
            if what in self.maker:
                content: Any = what
                result.returned.setdefault(node.name, []).append((self.maker[content], content))
            elif isinstance(what[1], str):
                result.inside.setdefault(node.name, what[0])
        return result


def _contents(call: EagerCall) -> set[Content]:
    new = set(call.created)
    new |= {result.content for result in call.results if result and result.content[0] in call.written}
    return new | {(op.content[0], op.content[1] + 1) for op in call.operands if op.content[0] in call.written}


def _kind(node: fx.Node) -> tuple[Any, ...]:
    leaves = tree_leaves(node.meta.get("val"))
    return tuple(
        (leaf.dtype, *map(hint, leaf.shape)) if isinstance(leaf, Tensor) else leaf.__class__ for leaf in leaves
    )
