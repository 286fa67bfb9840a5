"""Measures this machine, or lists the devices that are known by name: `remat device`."""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from remat.cli.output import Answer, table, waiting, written
from remat.errors import NotInstalled
from remat.predict.time.device import DeviceProfile, measured_file
from remat.predict.time.known_devices import ALIASES, KNOWN, find_device
from remat.words import human_price, pip_install


def device(
    kind: Annotated[
        str | None, typer.Option("--device", metavar="cpu|cuda", help="What to measure; CUDA by default if available.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; if left out, the file behind `here`.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the known devices; measure nothing.")] = False,
) -> Answer:
    """Measure what this machine can do: flops, bytes and kernels a second.

    It takes 10 to 20 seconds. Estimators then know the device as `here`, or by
    the name of the file.

    \b
      remat device
      remat device --device cpu -o laptop.json
      remat device --list
    """
    if listed:
        return _list()
    if find_spec("torch") is None:
        raise NotInstalled(f"remat device needs torch to measure: {pip_install('torch')}")
    from remat.pytorch.measure.ceilings import measure_device
    from remat.pytorch.measure.timing import timed_device

    file = output or measured_file(timed_device(kind).type)
    with waiting("measuring"):
        measured = measure_device(kind)
    file.parent.mkdir(parents=True, exist_ok=True)
    measured.save(file)
    rows = table([_row("here" if output is None else str(output), measured)])
    return {"file": str(file)} | asdict(measured), (rows, *written(file))


def _list() -> Answer:
    devices = dict(KNOWN)
    if any(measured_file(kind).is_file() for kind in ("cuda", "cpu")):
        devices["here"] = find_device("here")
    names: dict[str, list[str]] = {}
    for name, one in devices.items():
        names.setdefault(one.source, []).append(name)
    sources = (Text(f"\n{', '.join(some)}: {source}") for source, some in names.items())
    also = Text(f"\nAlso: {', '.join(f'{alias} for {name}' for alias, name in ALIASES.items())}")
    rows = table([_row(name, one) for name, one in devices.items()], "device", "Tflop/s")
    return {"devices": {name: asdict(one) for name, one in devices.items()}, "aliases": ALIASES}, (rows, *sources, also)


def _row(name: str, one: DeviceProfile) -> dict[str, str]:
    rates = "\n".join(f"{dtype} {rate / 1e12:,.4g}" for dtype, rate in one.flops_per_s.items())
    return {
        "device": name,
        "is": one.name,
        "Tflop/s": rates,
        "GB/s": f"{one.bytes_per_s / 1e9:,.4g}",
        "kernel": human_price(round(one.launch_ns), "ns"),
        "reached": f"{one.flops_fraction:.0%} of flops\n{one.bytes_fraction:.0%} of bytes",
    }
