"""Captures a model's joint graph: `remat capture`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import remat
from remat.cli.inputs import load_factory
from remat.cli.options import DeviceName
from remat.cli.output import Answer, waiting, written


def capture(
    factory: Annotated[str, typer.Argument(metavar="MODULE:FACTORY", help="Returns (model, args[, kwargs]).")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Graph file to write; gzipped if it ends in .gz.")],
    device: DeviceName = None,
) -> Answer:
    """Capture the joint graph of a model's training step.

    FACTORY is called without arguments; it may be in the current directory.
    Without --device, the graph is made for the device that holds the model.

    \b
      # my_models.py
      def gpt2():
          return GPT2(layers=12), (torch.randint(50257, (8, 1024)),)
    \b
      remat capture my_models:gpt2 -o gpt2.json.gz
      remat capture my_models:gpt2 --device a100 -o gpt2-a100.json.gz
    """
    model, args, kwargs = load_factory(factory)()
    with waiting("capturing"):
        graph = remat.capture(model, *args, device=device, **kwargs)
    graph.save(output)
    facts = {"values": len(graph), "uses": len(graph.producers), "meta": dict(graph.meta)}
    return {"graph": str(output)} | facts, (repr(graph), *written(output))
