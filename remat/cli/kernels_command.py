"""Compiles the kernels of a plan for a GPU, on a machine with or without one: `remat inspect kernels`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remat.cli.options import DeviceName, GraphFile, PlanOptions
from remat.cli.output import Answer, bold, picked, table, waiting, written
from remat.facts.graph import Graph
from remat.words import counted, cut, human_bytes

if TYPE_CHECKING:
    from remat.pytorch.inductor.cubins import CompiledPass


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
    tables = (thing for each in passes for thing in (bold(f"{each.code.name} pass"), table(_rows(each, values)), ""))
    document = about | {"passes": [_document(each, values) for each in passes]}
    return document, (*tables, _summary(passes, device), *written(output))


def _places(compiled: CompiledPass, graph: Graph) -> dict[str, str]:
    written = {
        name: kernel.writes[-1][0]
        for kernel, names in zip(compiled.code.kernels, compiled.code.launched, strict=True)
        for name in names
        if kernel.writes
    }
    return {name: graph.places[graph.index[value]] for name, value in written.items() if value in graph.index}


def _document(compiled: CompiledPass, graph: Graph) -> dict[str, Any]:
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


def _rows(compiled: CompiledPass, graph: Graph) -> list[dict[str, object]]:
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


def _summary(passes: Sequence[CompiledPass], device: str) -> str:
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
