"""Measures this machine, or lists the devices that are known by name: `remat device`."""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from remat.cli.options import Json
from remat.cli.output import console, print_json, table, waiting
from remat.errors import NotInstalled
from remat.predict.time.device import DeviceProfile, measured_file
from remat.predict.time.known_devices import ALIASES, KNOWN, find_device


def device(
    kind: Annotated[
        str | None, typer.Option("--device", metavar="cpu|cuda", help="What to measure; CUDA where there is any.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write, instead of the one that `here` names.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the known devices; measure nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Measure what this machine can do: flops, bytes and kernels a second.

    It takes 10 to 20 seconds. Estimators then know the device as `here`, or by the name of the file.

    \b
      remat device
      remat device --device cpu -o laptop.json
      remat device --list
    """
    if listed:
        return _list(as_json)
    if find_spec("torch") is None:
        raise NotInstalled("remat device needs torch to measure: pip install 'remat[torch]'")
    from remat.pytorch.measure.ceilings import measure_device
    from remat.pytorch.measure.timing import device_of

    file = output or measured_file(device_of(kind).type)
    with waiting("measuring", quiet=as_json):
        measured = measure_device(kind)
    file.parent.mkdir(parents=True, exist_ok=True)
    measured.save(file)
    if as_json:
        return print_json({"file": str(file)} | asdict(measured))
    console().print(table([_row("here" if output is None else str(output), measured)]))
    return typer.echo(f"written to {file}")


def _list(as_json: bool) -> None:
    known = dict(KNOWN)
    if any(measured_file(kind).is_file() for kind in ("cuda", "cpu")):
        known["here"] = find_device("here")
    if as_json:
        return print_json({"devices": {name: asdict(one) for name, one in known.items()}, "aliases": ALIASES})
    out = console()
    out.print(table([_row(name, one) for name, one in known.items()], "device", "Tflop/s"))
    for source in dict.fromkeys(one.source for one in known.values()):
        names = ", ".join(name for name, one in known.items() if one.source == source)
        out.print(Text(f"\n{names}: {source}"))
    return out.print(f"\nAlso: {', '.join(f'{alias} for {name}' for alias, name in ALIASES.items())}")


def _row(name: str, one: DeviceProfile) -> dict[str, str]:
    rates = "\n".join(f"{dtype} {rate / 1e12:,.4g}" for dtype, rate in one.flops_per_s.items())
    return {
        "device": name,
        "is": one.name,
        "Tflop/s": rates,
        "GB/s": f"{one.bytes_per_s / 1e9:,.4g}",
        "kernel": f"{one.launch_ns / 1000:,.2g} µs",
        "reached": f"{one.flops_fraction:.0%} of flops\n{one.bytes_fraction:.0%} of bytes",
    }
