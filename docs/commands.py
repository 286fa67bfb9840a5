"""The directive `commands`: what `remat --help` and the help of each command say, so that no page has a copy."""

from __future__ import annotations

import re
from textwrap import dedent

import typer
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from typer.cli import get_docs_for_click

from remat.cli.app import app as remat_app

_LIST_OF_COMMANDS = re.compile(r"^\*\*Commands\*\*:\n\n(?:\* .*\n)+", re.MULTILINE)
"""Cut to half a line each by typer; the page has a section for each of them."""

_AS_TYPED = re.compile(r"(?:^  .*\n(?:\n(?=  ))?)+", re.MULTILINE)
"""Indented lines are examples."""


class Commands(SphinxDirective):
    """One section for each command."""

    def run(self) -> list[nodes.Node]:
        """The sections that typer writes of our help."""
        command = typer.main.get_command(remat_app)
        text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="remat")
        text = _LIST_OF_COMMANDS.sub("", text).replace("# `remat`\n", "## `remat`\n", 1).replace("\b\n", "\n")
        text = _AS_TYPED.sub(lambda found: f"```console\n{dedent(found[0])}```\n", text)
        return self.parse_text_to_nodes(text, allow_section_headings=True)


def setup(app: Sphinx) -> dict[str, bool]:
    """Makes the directive known."""
    app.add_directive("commands", Commands)
    return {"parallel_read_safe": True}
