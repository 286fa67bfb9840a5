"""Finds the largest batch with which training fits into a device: `remat largest-batch`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import remat
from remat.answer.option_text import label
from remat.cli.inputs import cost_models_of, load_factory
from remat.cli.options import PLUGIN, DeviceName, Json, ModelOptions, OptimizerName, TimeLimit
from remat.cli.output import print_json, waiting
from remat.cli.wording import spoken


def largest_batch(
    factory: Annotated[
        str, typer.Argument(metavar="MODULE:FACTORY", help="Takes a batch size; returns (model, args[, kwargs]).")
    ],
    memory: Annotated[str, typer.Option(help="Of the device, such as 80GB.")],
    optimizer: OptimizerName = "adamw",
    cost_model: Annotated[
        str | None, typer.Option("--cost-model", "-m", metavar=PLUGIN, help="Our plan; PyTorch's when left out.")
    ] = None,
    model_options: ModelOptions = None,
    device: DeviceName = None,
    time_limit: TimeLimit = None,
    as_json: Json = False,
) -> None:
    """Find the largest batch size with which training holds no more than the memory of a device; 0 if none does.

    FACTORY is called with a batch size, some twenty times, and best makes a model of fake tensors that returns its
    loss. With a budget of the device, the batch is as large as there is a plan for it.

    \b
      remat largest-batch my_models:gpt2 --memory 80GB
      remat largest-batch my_models:gpt2 --memory 80GB -m memory-budget:budget=80GB,of=device
    """
    from remat.pytorch.read.optimizer_memory import optimizer_from

    model = next(iter(cost_models_of([] if cost_model is None else [cost_model], model_options)), None)
    make, made = optimizer_from(optimizer), load_factory(factory)
    with waiting("searching", quiet=as_json, ends_early=True) as say:

        def step(batch: int) -> tuple[Any, ...]:
            say(f"a batch of {batch}")
            return made(batch)

        batch = remat.largest_batch(
            step, memory, optimizer=make, cost_model=model, device=device, time_limit_s=time_limit
        )
    plan = "PyTorch's plan" if model is None else label(model)
    if as_json:
        print_json({"batch": batch, "memory": memory, "plan": plan, "optimizer": optimizer})
    else:
        typer.echo(f"largest batch that fits into {memory}: {batch} ({spoken(plan)}, optimizer {optimizer})")
