"""Reads from FX nodes where in the model each value comes from: the path of its module, and the line of its source.

Dynamo notes both on the nodes of the forward pass, and AOTAutograd copies them to what autograd adds for each of these.
What has no note, as an input or what a pass of the compiler made, is put where it is read first.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import fx

Place: TypeAlias = tuple[str, str]
"""(module, line): "layers.0.fc1" and "model.py:57"; "" for the model itself, or unknown."""

_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in ', re.MULTILINE)
_CELL = re.compile(r"\bipykernel_\d+\W\d+\.py$")
"""What Jupyter calls the file of a notebook's cell: another number in each."""
_NOT_THE_MODELS = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))
"""Folders whose lines say nothing about a model: that of torch, and that of `remat.pytorch`, which calls it."""

_ROOT = re.compile(r"^(?:[LG]\['(?:self|fn|model_or_fn|__import_\w+)'\])?(?:.*\.__closure__\[\d+\]\.cell_contents)?")
"""What stands for the model itself, or for a variable whose name is lost: in Dynamo's words, and in `capture`'s."""
_UNNAMED = re.compile(r"\.(?:__self__|_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\b")
"""What wraps a module without a name of the user's."""
_ITEM = re.compile(r"(?:\b[LG]|\._modules)?\['?([^\]']*)'?\]")
"""A variable, a module by its name, or an item of a list."""


def places_of(position: dict[fx.Node, int]) -> list[Place]:
    """Finds the place of each value.

    Args:
        position: of each node of a graph, in order.
    """
    read_path, read_line = cache(module_path), cache(source_line)  # models repeat their layers
    found: dict[fx.Node, Place] = {}
    for node in reversed(position):
        stack: dict[str, tuple[str, Any]] = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack", {})
        trace: str | None = node.meta.get("stack_trace")
        if stack or trace is not None:
            found[node] = read_path([*stack.values()][-1][0]) if stack else "", read_line(trace or "")
        else:
            readers: list[fx.Node] = sorted((user for user in node.users if user in found), key=position.__getitem__)
            found[node] = next((found[reader] for reader in readers if any(found[reader])), ("", ""))
    return [found[node] for node in position]


def module_path(path: str) -> str:
    """Writes the path of a module as `named_modules` does, given what Dynamo calls it.

    >>> module_path("L['self'].layers.3.mlp"), module_path("G['net']._modules['layers']._modules['3']")
    ('layers.3.mlp', 'net.layers.3')
    >>> module_path("L['fn'].0")  # of a bare nn.Sequential, which Dynamo wraps
    '0'
    """
    return _ITEM.sub(r".\1", _UNNAMED.sub("", _ROOT.sub("", path))).strip(".")


def source_line(trace: str) -> str:
    """Finds the innermost line outside of torch in a stack trace as Python prints it, without its folder; or ""."""
    for path, line in reversed(_FRAME.findall(trace)):
        if not path.startswith(_NOT_THE_MODELS):
            return f"{'cell' if _CELL.search(path) else os.path.basename(path)}:{line}"
    return ""
