"""Shows the effects of a plan: `remat inspect timeline`, `traffic`, `kernels` and `picture`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import remat
from remat.cli.options import DeviceName, GraphFile, NewPicture, NewPictureIfNamed, PlanOptions, command
from remat.cli.output import Answer, as_told, bold, picked, table, waiting, written
from remat.facts.graph import Graph
from remat.predict.buffers import records_calls, step_floor
from remat.predict.device_timeline import timeline as simulated
from remat.predict.memory import lower_bound
from remat.predict.time import modelled_time
from remat.predict.traffic import predict_traffic
from remat.words import counted, cut, human_bytes

if TYPE_CHECKING:
    from remat.pytorch.inductor.cubins import CompiledPass


app = typer.Typer(
    no_args_is_help=True,
    help="Show what a plan becomes: live memory, kernels, a picture. Nothing runs, and no GPU is needed.",
)


def timeline(
    graph: GraphFile,
    plan_options: PlanOptions,
    output: NewPictureIfNamed = None,
    # Not in the table: with its two long names, the text beside them would have a third of the line.
    holds_outputs: Annotated[bool, typer.Option(hidden=True)] = True,
    device: DeviceName = None,
) -> Answer:
    """Simulate what is in memory at each step of the forward and the backward pass.

    Prints the peak and what is in memory then, and a lower bound on the peak
    without offloading. A step is a kernel or a call in the code that
    TorchInductor writes for --device, or else for the device of the graph.
    With --no-holds-outputs, the caller does not keep the outputs of the forward
    pass until the backward pass ends.

    \b
      remat inspect timeline gpt2.json.gz --plan plan.json -o gpt2.svg
      remat inspect timeline gpt2.json.gz -m byte-traffic:mode=aggressive
      remat inspect timeline gpt2.json.gz -m memory-budget:budget=0.5,of=peak
      remat inspect timeline gpt2.json.gz --plan plan.json --device a100
    """
    values = Graph.load(graph)
    with waiting("solving"):
        plan = plan_options.plan_of(values)
        line = simulated(values, plan, holds_outputs=holds_outputs, device=device)
        bound = (step_floor if records_calls(values) else lower_bound)(values, holds_outputs=holds_outputs)
    if output is not None:
        line.show(output)
    which = "no plan that offloads nothing" if plan.offloaded else "no plan"
    document = {
        "graph": str(graph),
        **picked(line, "forward_peak_bytes", "backward_peak_bytes", "peak_bytes", "saved_bytes", "at_forward_end"),
        "lower_bound_bytes": None if plan.offloaded else bound.bytes,
        "peak_step": line.peak_step,
        "peak_tensors": [as_told(tensor) for tensor in line.peak_tensors],
        "picture": None if output is None else str(output),
    }
    bounded = f"{which} has a smaller peak than {human_bytes(bound.bytes)}"
    return document, (line, bounded, *written(output))


def traffic(
    graph: GraphFile,
    plan_options: PlanOptions,
    fused: Annotated[bool, typer.Option(help="Fuse operators as TorchInductor does, or let each be a kernel.")] = True,
    device: DeviceName = None,
) -> Answer:
    """Predict the kernels of both passes, and what they read and write.

    With --device the kernels are those of TorchInductor for it, with a modelled
    time (for a named device). Without it, they are those of the graph's device.

    \b
      remat inspect traffic gpt2.json.gz --plan plan.json
      remat inspect traffic gpt2.json.gz -m multi-read
      remat inspect traffic gpt2.json.gz --no-fused
      remat inspect traffic gpt2.json.gz --plan plan.json --device h100
    """
    values = Graph.load(graph)
    with waiting("solving"):
        predicted = predict_traffic(values, plan_options.plan_of(values), fused=fused, device=device)
    time = None if device in (None, "cuda") else modelled_time(values, predicted.kernels, device)
    listed: list[dict[str, Any]] = [
        {
            **picked(kernel, "backward", "generated"),
            **{part: [values.names[v] for v in getattr(kernel, part)] for part in ("values", "reads", "writes")},
            **picked(kernel, "read_bytes", "written_bytes"),
        }
        for kernel in predicted.kernels
    ]
    about = {"graph": str(graph), "backend": predicted.backend}
    about |= picked(predicted, "reads", "writes", "read_bytes", "written_bytes", "bytes", "offloaded_bytes")
    about |= {} if time is None else {"modelled": picked(time, "device", "forward_ns", "backward_ns")}
    alone = ["(kernels alone, without the copies)"] if time and predicted.offloaded_bytes else []
    return about | {"kernels": listed}, (predicted, *filter(None, [time]), *alone)


def kernels(
    graph: GraphFile,
    plan_options: PlanOptions,
    device: DeviceName = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write: Triton source, PTX and cubins.")
    ] = None,
) -> Answer:
    """Compile the Triton kernels that TorchInductor writes for a plan, for a GPU.

    Nothing runs, and no GPU is needed; without --device the kernels are for an
    h100. The table has registers and spilled bytes of a thread, and shared
    memory of a block. On a GPU, Inductor would time several configurations and
    choose one; each number is the largest among these configurations.

    \b
      remat inspect kernels gpt2.json.gz --plan plan.json
      remat inspect kernels gpt2.json.gz -m multi-read --device a100 -o kernels
    """
    from remat.pytorch.inductor.cubins import compile_plan
    from remat.pytorch.seam.virtual_gpu import device_of

    device = device or "h100"
    with device_of(device)[1]():
        pass  # reports a missing package before the plan is solved
    values = Graph.load(graph)
    if values.meta.get("device") != "cuda":
        typer.echo(
            "note: the graph was not captured for a GPU, where attention may be another operator, and random numbers "
            f"are never drawn again from their seed: capture it with `remat capture --device {device}`",
            err=True,
        )
    with waiting("solving and compiling"):
        passes = list(compile_plan(values, plan_options.plan_of(values), device=device))
    if output is not None:
        for compiled in passes:
            compiled.write(output)
    about = {"graph": str(graph), "device": device, "folder": None if output is None else str(output)}
    tables = (
        thing for each in passes for thing in (bold(f"{each.code.name} pass"), table(_pass_rows(each, values)), "")
    )
    document = about | {"passes": [_pass_document(each, values) for each in passes]}
    return document, (*tables, _summary_of(passes, device), *written(output))


def _places(compiled: CompiledPass, graph: Graph) -> dict[str, str]:
    written = {
        name: kernel.writes[-1][0]
        for kernel, names in zip(compiled.code.kernels, compiled.code.launched, strict=True)
        for name in names
        if kernel.writes
    }
    return {name: graph.places[graph.index[value]] for name, value in written.items() if value in graph.index}


def _pass_document(compiled: CompiledPass, graph: Graph) -> dict[str, Any]:
    places = _places(compiled, graph)
    return {
        "pass": compiled.code.name,
        "calls": compiled.calls,
        "called_bytes": compiled.called_bytes,
        "kernels": [
            {
                **picked(kernel, "name", "launches", "bytes"),
                **({"place": place} if (place := places.get(kernel.name)) else {}),
                "configurations": [
                    cubin.configuration | picked(cubin, "registers", "spilled_bytes", "shared_bytes")
                    for cubin in kernel.cubins
                ],
            }
            for kernel in compiled.kernels
        ],
    }


def _pass_rows(compiled: CompiledPass, graph: Graph) -> list[dict[str, object]]:
    places = _places(compiled, graph)
    return [
        {
            "kernel": "\n  ".join(filter(None, [kernel.name, cut(places.get(kernel.name, ""), 30)])),
            "launches": kernel.launches,
            "bytes": human_bytes(kernel.bytes),
            "choices": len(kernel.cubins),
            "registers": kernel.registers,
            "spilled": kernel.spilled_bytes,
            "shared": human_bytes(kernel.shared_bytes),
        }
        for kernel in compiled.kernels
    ]


def _summary_of(passes: Sequence[CompiledPass], device: str) -> str:
    kernels = [kernel for compiled in passes for kernel in compiled.kernels]
    spilling = sum(kernel.spilled_bytes > 0 for kernel in kernels)
    return (
        f"{counted(len(kernels), 'kernel')} for {device} in {sum(len(kernel.cubins) for kernel in kernels)} "
        f"configurations, {spilling or 'none'} of which spills registers: "
        f"{sum(kernel.launches for kernel in kernels)} launches that move "
        f"{human_bytes(sum(kernel.bytes for kernel in kernels))}; beside them "
        f"{counted(sum(compiled.calls for compiled in passes), 'call')} of libraries that move "
        f"{human_bytes(sum(compiled.called_bytes for compiled in passes))}"
    )


def picture(
    graph: GraphFile,
    output: NewPicture,
    plan_options: PlanOptions,
    around: Annotated[
        list[str] | None, typer.Option(metavar="VALUE", help="Draw only the values near this one. Repeatable.")
    ] = None,
    hops: Annotated[int, typer.Option(metavar="N", min=0, help="A value is near if at most N uses lead to it.")] = 2,
) -> Answer:
    """Draw a graph of up to 300 values, or a part of a larger one.

    The colours say what a plan does with each value, if --plan, -m or -s names
    one. Otherwise they say to which pass the value belongs.

    \b
      remat inspect picture small.json -o small.svg --plan solved
      remat inspect picture gpt2.json.gz -o gelu.svg --around gelu_3 --hops 3
    """
    values = Graph.load(graph)
    with waiting("solving and drawing"):
        plan = plan_options.plan_of(values) if plan_options.is_named else None
        remat.show(values, plan, output, around=around, hops=hops)
    return {"picture": str(output), "plan": plan and plan.digest}, written(output)


for answer in (timeline, traffic, kernels, picture):
    app.command()(command(answer))
