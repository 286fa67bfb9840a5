"""Keeps a note beside the graphs that torch has compiled, and finds it again with them in torch's cache on disk.

AOTAutograd's cache keeps the backward graph as it was before Inductor compiled it, with its attributes; what it hands
back for a graph can say which entry that came from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

_ATTRIBUTE = "_remat_note"


def keep_note(backward: fx.GraphModule, note: bytes) -> None:
    """Keeps a note with whatever is compiled of a backward graph."""
    setattr(backward, _ATTRIBUTE, note)


def found_note(compiled: Callable[..., Any]) -> bytes | None:
    """Reads the note of what `compile_fx` returned, if it came from torch's cache; None without a note."""
    entry = serialize() if (serialize := getattr(compiled, "serialize", None)) else None
    backward = getattr(entry, "serialized_bw_module", None)  # none where no gradients are needed
    return None if backward is None else backward.args[0].get(_ATTRIBUTE)
