"""Docstrings are written to be read in the code; this makes Sphinx read them alike."""

from __future__ import annotations

import re

from sphinx.application import Sphinx

_ARRAYS = {
    re.compile(rf"~?numpy\.ndarray\[tuple\[[^\]]*\], ~?numpy\.dtype\[~?numpy\.{kind}\]\]"): f"~remat.plugin.{alias}"
    for kind, alias in (("int64", "IntArray"), ("bool", "BoolArray"))
}

_LAZY = re.compile(r"~?(?:remat\.facts\.lazy_field\.)?\bLazyField\[(tuple\[[^\]]*\])\]")


def _before_napoleon(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """What is indented below a paragraph is code; what stands before a colon is no type."""
    if what in ("attribute", "property", "data"):
        lines[:0] = [".. ", ""]
    for at in range(len(lines) - 1, 1, -1):
        text, gap, block = lines[at - 2 : at + 1]
        if block.startswith("    ") and not gap and text and not text.startswith(" "):
            lines[at:at] = ["::", ""]


def _after_napoleon(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Two hyphens become a dash where napoleon puts them, and nowhere else: `--json` is what people type."""
    lines[:] = [re.sub(r"(?<=[*`]) -- ", " \N{EN DASH} ", line, count=1) for line in lines]


def _signature(
    app: Sphinx, what: str, name: str, thing: object, options: object, signature: str | None, result: str | None
) -> tuple[str | None, str | None]:
    """Numpy's types of arrays under the names that the code gives them; what is read later, as what is read."""
    signature, result = (text and _LAZY.sub(r"\1", text) for text in (signature, result))
    for array, alias in _ARRAYS.items():
        signature, result = (text and array.sub(alias, text) for text in (signature, result))
    return signature, result


def setup(app: Sphinx) -> dict[str, bool]:
    """Connects the three."""
    app.connect("autodoc-process-docstring", _before_napoleon, priority=1)
    app.connect("autodoc-process-docstring", _after_napoleon, priority=999)
    app.connect("autodoc-process-signature", _signature)
    return {"parallel_read_safe": True}
