"""Finds the place in the model that computes each value: the path of the module, and the source line.

Dynamo stores both on the nodes of the forward pass, and AOTAutograd copies them to the nodes that autograd adds for
them. Where `make_fx` traces a step, torchtitan notes the path of the module as `meta["custom"]["module_fqn"]`. A value
without them, such as an input or a node of a compiler pass, gets the place of its first reader.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import fx

from remat.facts.columns import IntArray
from remat.pytorch.read.values import Inputs

_Stack: TypeAlias = Mapping[str, tuple[str, Any]]
Place: TypeAlias = tuple[str, str]
"""(module, line): "layers.0.fc1" and "model.py:57"; "" for the model itself, or if unknown."""

_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in ', re.MULTILINE)
# File names that Jupyter, IPython and Colab give to cells, with a different number each.
_CELL = re.compile(r"\bipykernel_\d+\W\d+\.py$|\bipython-input-[\w-]+(?:\.py|>)$")
# Folders with no lines of a model: those of torch, and of `remat.pytorch`, which calls it.
_NOT_THE_MODELS = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))
# Dynamo's and `capture`'s names for the model itself, or for a variable whose name is lost.
_ROOT = re.compile(r"^(?:[LG]\['(?:self|fn|model_or_fn|__import_\w+)'\])?(?:.*\.__closure__\[\d+\]\.cell_contents)?")
# Wrappers of a module that the user did not name.
_UNNAMED = re.compile(r"\.(?:__self__|_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\b")
# A variable, a module by its name, or an item of a list.
_ITEM = re.compile(r"(?:\b[LG]|\._modules)?\['?([^\]']*)'?\]")


class Notes(NamedTuple):
    """Holds what torch notes about the origin of each of n nodes; None where it notes nothing."""

    # the modules around the call that made the node, the outermost first; of a gradient, those around its operator.
    modules: Sequence[_Stack | None]
    traces: Sequence[str | None]  # Python's stack at that call, as text


def notes_of(metas: Sequence[dict[str, Any]]) -> Notes:
    """Returns torch's notes about each node, without references to the nodes."""
    own, forward, traces, noted = (
        meta_entries(metas, key) for key in ("nn_module_stack", "fwd_nn_module_stack", "stack_trace", "custom")
    )
    if any(noted):
        paths = [note.get("module_fqn") if note else None for note in noted]
        own = [{path: (path, None)} if path else stack for path, stack in zip(paths, own, strict=True)]
    return Notes([one or other for one, other in zip(own, forward, strict=True)], traces)


def meta_entries(metas: Sequence[dict[str, Any]], key: str) -> Sequence[Any]:
    """Returns the entry `key` of each node's `meta`; None for nodes without it."""
    return [*map(dict[str, Any].get, metas, repeat(key))]


def places_of(notes: Notes, producers: IntArray, consumers: IntArray) -> list[Place]:
    """Returns the place of each node by torch's notes or, where it has none, that of its first reader with a place."""
    read_path, read_line = cache(module_path), cache(source_line)  # models repeat their layers
    places: list[Place | None] = [
        (read_path([*stack.values()][-1][0]) if stack else "", read_line(trace or ""))
        if stack or trace is not None
        else None
        for stack, trace in zip(notes.modules, notes.traces, strict=True)
    ]
    readers: dict[int, list[int]] = {v: [] for v, place in enumerate(places) if place is None}
    for u, v in sorted(zip(producers.tolist(), consumers.tolist(), strict=True)):
        if u in readers:
            readers[u].append(v)
    for u in reversed(readers):  # the readers of a value come after it
        candidates = (places[v] or ("", "") for v in readers[u])
        places[u] = next((place for place in candidates if any(place)), ("", ""))
    return [place or ("", "") for place in places]


def places_in(nodes: Sequence[fx.Node]) -> list[Place]:
    """Returns the place of each node of a graph; the nodes must be in order."""
    inputs = Inputs.of(nodes)
    return places_of(notes_of([node.meta for node in nodes]), inputs.producers, inputs.consumers)


def module_path(path: str) -> str:
    """Converts Dynamo's path of a module to the one of `named_modules`.

    >>> module_path("L['self'].layers.3.mlp"), module_path("G['net']._modules['layers']._modules['3']")
    ('layers.3.mlp', 'net.layers.3')
    >>> module_path("L['fn'].0")  # of a bare nn.Sequential, which Dynamo wraps
    '0'
    """
    return _ITEM.sub(r".\1", _UNNAMED.sub("", _ROOT.sub("", path))).strip(".")


def source_line(trace: str) -> str:
    """Returns the innermost line outside torch in a Python stack trace, without its folder; "" if there is none."""
    for path, line in reversed(_FRAME.findall(trace)):
        if not path.startswith(_NOT_THE_MODELS):
            return f"{'cell' if _CELL.search(path) else os.path.basename(path)}:{line}"
    return ""
