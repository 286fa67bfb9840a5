"""Forecasts what training a model will hold: `remat forecast`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

import remat
from remat.cli.inputs import cost_models_of, load_factory
from remat.cli.options import PLUGIN, DeviceName, Json, ModelOptions, OptimizerName
from remat.cli.output import print_json, waiting


def forecast(
    factory: Annotated[str, typer.Argument(metavar="MODULE:FACTORY", help="Returns (model, args[, kwargs]).")],
    optimizer: OptimizerName = "adamw",
    cost_models: Annotated[
        list[str] | None, typer.Option("--cost-model", "-m", metavar=PLUGIN, help="A plan of ours; repeatable.")
    ] = None,
    model_options: ModelOptions = None,
    memory: Annotated[str | None, typer.Option(help="Of the device, such as 80GB.")] = None,
    device: DeviceName = None,
    as_json: Json = False,
) -> None:
    """Forecast what training a model will hold: parameters, gradients, optimizer state, and the peak of each plan.

    FACTORY is called without arguments, and best makes a model that returns its loss. Nothing is trained; of fake
    tensors, a model of any size takes no memory.

    \b
      remat forecast my_models:gpt2 --memory 80GB
      remat forecast my_models:gpt2 --optimizer sgd:momentum=0.9 -m memory-budget:budget=0.5 --device a100
      remat forecast my_models:gpt2 -m memory-budget:budget=80GB,of=device
    """
    from remat.pytorch.read.optimizer_memory import optimizer_from

    models = cost_models_of(cost_models or (), model_options)
    make = optimizer_from(optimizer)
    model, args, kwargs = load_factory(factory)()
    with waiting("forecasting", quiet=as_json):
        found = remat.forecast(model, *args, optimizer=make, cost_models=models, device=device, **kwargs)
    fitting = None if memory is None else found.fitting(memory)
    if not as_json:
        typer.echo(found)
        if fitting is not None:
            typer.echo(f"fits into {memory}: {', '.join(fitting) or 'none'}")
        return
    sizes = ("parameter_bytes", "buffer_bytes", "input_bytes", "gradient_bytes")
    plans = [
        {"plan": one.name, **{key: value for key, value in asdict(one).items() if key.endswith("_bytes")}}
        for one in found.plans
    ]
    print_json(
        {
            **{size: getattr(found, size) for size in sizes},
            "optimizer": asdict(found.optimizer),
            "plans": plans,
            "fitting": fitting,
        }
    )
