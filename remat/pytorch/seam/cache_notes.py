"""Stores a note with a compiled graph in torch's cache on disk, and reads it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

# AOTAutograd's cache keeps the backward graph from before Inductor compiled it, with its attributes. A compiled graph
# from the cache refers to its cache entry.
_ATTRIBUTE = "_remat_note"


def keep_note(backward: fx.GraphModule, note: bytes) -> None:
    """Stores a note with a backward graph in torch's cache."""
    setattr(backward, _ATTRIBUTE, note)


def found_note(compiled: Callable[..., Any]) -> bytes | None:
    """Returns the note of a result of `compile_fx`, if it came from torch's cache; otherwise None."""
    entry = serialize() if (serialize := getattr(compiled, "serialize", None)) else None
    backward = getattr(entry, "serialized_bw_module", None)  # none where no gradients are needed
    return None if backward is None else backward.args[0].get(_ATTRIBUTE)
