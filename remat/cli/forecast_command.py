"""Forecasts the memory of training a model, and the largest batch that fits: `remat forecast`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

import remat
from remat.answer.option_text import label, option_text
from remat.cli.inputs import cost_models_of, load_factory
from remat.cli.options import DeviceName, ModelOptions, OptimizerName, TimeLimit, plugin_option
from remat.cli.output import Answer, picked, waiting
from remat.errors import CaptureError
from remat.facts.argument_checks import checked_list
from remat.problem.costmodel import CostModel

_FACTORY = "Returns (model, args[, kwargs]), or a list of them; with --largest-batch, called with a batch size."
_MODELS = "Forecast the plan of this cost model, too. Repeatable."
_PIPELINE = "Plan a list of stages: 1f1b, interleaved-1f1b, gpipe. Needs --memory and --microbatches."
_LARGEST = "Find the largest batch size that fits into --memory."


@dataclass(frozen=True)
class PipelineOptions:
    """Holds the options of a pipeline."""

    pipeline: Annotated[str | None, typer.Option(metavar="SCHEDULE", help=_PIPELINE)] = None
    microbatches: Annotated[int | None, typer.Option(help="Of a step; with --pipeline.")] = None
    ranks: Annotated[int | None, typer.Option(help="With --pipeline; one for each stage if left out.")] = None


def forecast(
    factory: Annotated[str, typer.Argument(metavar="MODULE:FACTORY", help=_FACTORY)],
    optimizer: OptimizerName = "adamw",
    cost_models: Annotated[list[str] | None, plugin_option("--cost-model", "-m", help=_MODELS)] = None,
    model_options: ModelOptions = None,
    memory: Annotated[str | None, typer.Option(help="Memory of the device, such as 80GB.")] = None,
    largest_batch: Annotated[bool, typer.Option("--largest-batch", help=_LARGEST)] = False,
    device: DeviceName = None,
    time_limit: TimeLimit = None,
    *,
    of_pipeline: PipelineOptions,
) -> Answer:
    """Forecast what training a model will hold: parameters, gradients, optimizer state, and the peak of each plan.

    FACTORY should build the model with fake tensors and return the loss: then a
    model of any size takes no memory. Nothing is trained. --largest-batch calls
    FACTORY with some twenty batch sizes, and uses the plan of -m, or else
    PyTorch's plan. Its answer is 0 if no batch fits. --pipeline plans each stage
    for the microbatches that it holds.

    \b
      remat forecast my_models:gpt2 --memory 80GB
      remat forecast my_models:gpt2 --optimizer sgd:momentum=0.9
      remat forecast my_models:gpt2 -m memory-budget:budget=0.5 --device a100
      remat forecast my_models:gpt2 -m memory-budget:budget=80GB,of=device
      remat forecast my_models:gpt2_of --memory 80GB --largest-batch
      remat forecast models:stages --memory 80GB --pipeline 1f1b --microbatches 8
    """
    from remat.pytorch.read.optimizer_memory import optimizer_from

    models = cost_models_of(cost_models or (), model_options)
    if largest_batch and (memory is None or len(models) > 1):
        raise typer.BadParameter("--largest-batch needs --memory, such as --memory 80GB, and at most one -m")
    options: dict[str, Any] = {"optimizer": optimizer_from(optimizer), "device": device, "time_limit_s": time_limit}
    if of_pipeline != PipelineOptions():
        if memory is None or None in (of_pipeline.pipeline, of_pipeline.microbatches) or models or largest_batch:
            raise typer.BadParameter(
                "--pipeline needs --memory and --microbatches, such as --pipeline 1f1b --memory 80GB --microbatches 8, "
                "and may have --ranks, but neither -m nor --largest-batch"
            )
        return _pipeline(factory, memory, of_pipeline, options)
    build = load_factory(factory)
    if largest_batch and memory is not None:
        return _largest_batch(build, memory, optimizer, next(iter(models), None), options)
    model, args, kwargs = build()
    searches = any(one.limits_memory for one in models)
    with waiting("forecasting", ends_early=searches):
        training = remat.forecast(model, *args, cost_models=models, **options, **kwargs)
    fitting = None if memory is None else training.fitting(memory)
    plans = [
        {"plan": one.name, **{key: value for key, value in asdict(one).items() if key.endswith("_bytes")}}
        for one in training.plans
    ]
    sizes = picked(training, "parameter_bytes", "buffer_bytes", "input_bytes", "gradient_bytes")
    document = sizes | {"optimizer": asdict(training.optimizer), "plans": plans, "fitting": fitting}
    return document, (training, *([] if fitting is None else [f"fits into {memory}: {', '.join(fitting) or 'none'}"]))


def _pipeline(factory: str, memory: str, asked: PipelineOptions, options: dict[str, Any]) -> Answer:
    stages = load_factory(factory, lambda text, made: checked_list(f"what {text} returns", made, CaptureError))()
    order: Any = {"schedule": asked.pipeline, "microbatches": asked.microbatches, "ranks": asked.ranks}
    with waiting("planning", ends_early=True):
        planned = remat.plan_pipeline(stages, memory, **order, **options)
    told = [asdict(one) | {"cost_model": one.cost_model and option_text(one.cost_model)} for one in planned.stages]
    return told, (planned,)


def _largest_batch(build: Any, memory: str, optimizer: str, model: CostModel | None, options: dict[str, Any]) -> Answer:
    with waiting("searching", ends_early=True) as say:

        def step(batch: int) -> tuple[Any, ...]:
            say(f"a batch of {batch}")
            return build(batch)

        batch = remat.largest_batch(step, memory, cost_model=model, **options)
    names = ["PyTorch's plan"] * 2 if model is None else [label(model), option_text(model)]
    text = f"largest batch that fits into {memory}: {batch} ({names[1]}, optimizer {optimizer})"
    return {"batch": batch, "memory": memory, "plan": names[0], "optimizer": optimizer}, (text,)
