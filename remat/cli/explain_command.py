"""Prints what a plan does with one value, and why: `remat explain`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from remat.cli.options import GraphFile, Question
from remat.cli.output import Answer, as_told, waiting
from remat.facts.graph import Graph
from remat.views.explain import explain as explanation_of

_VALUE = "Name of a value of the graph; if left out, the saved value that would cost most to give up."


def explain(
    graph: GraphFile,
    value: Annotated[str | None, typer.Argument(metavar="[VALUE]", help=_VALUE)] = None,
    *,
    question: Question,
) -> Answer:
    """Explain why a value is saved or recomputed, and what the opposite would cost.

    \b
      remat explain gpt2.json.gz
      remat explain gpt2.json.gz gelu_3
    """
    with waiting("solving"):
        explanation = explanation_of(Graph.load(graph), value, question.model(), question.chosen_solver())
    return as_told(explanation), (Text(str(explanation)),)
