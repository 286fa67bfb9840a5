"""Runs every rival and writes one table of them all: `python -m experiments.rivals`.

JAX and lightning-thunder are installed into environments of their own, in `.venvs`; where that fails, the table has the
reason. MOCCASIN's instances are read from a folder of yours (--moccasin), a checkout of its repository's `data`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from experiments.rivals import same_gpt
from experiments.rivals.checkmate import price, published
from experiments.rivals.environments import run_in
from experiments.rivals.page import markdown

JAX = ["jax[cpu]==0.10.2"]
THUNDER = ["lightning-thunder==0.2.6", "torch==2.13.0"]

console = Console()


def main(
    only: Annotated[list[str] | None, typer.Option(help="price, pytorch, jax, thunder or moccasin; repeatable")] = None,
    moccasin: Annotated[Path | None, typer.Option(help="folder with MOCCASIN's graphs")] = None,
    time_limit: Annotated[float, typer.Option(help="seconds for each program that is solved")] = 20.0,
    output: Annotated[Path, typer.Option(help="folder for rivals.json and .md")] = RESULTS,
) -> None:
    """Measures, keeps what --only leaves out as it was, and writes rivals.json and rivals.md after each rival."""
    path = output / "rivals.json"
    rivals: dict[str, Any] = json.loads(path.read_text())["rivals"] if path.exists() else {}
    known = measures(moccasin, time_limit)
    if unknown := set(only or ()) - known.keys():
        raise typer.BadParameter(f"--only names no rival: {min(unknown)!r}; there are: {', '.join(known)}")
    for name in only or known:
        origin = _origin({"DATA": moccasin, "RESULTS": output})
        with console.status(name):
            found = known[name]()
        if "skipped" in found and "rows" in rivals.get(name, {}):
            console.print(f"{name}: {found['skipped']}; what was measured before stays")
            continue
        rivals[name] = {"provenance": origin} | found
        document = {"provenance": origin, "rivals": rivals}
        write_results(path, document, markdown(document))
        console.print(name, rivals[name], markup=False)


def _origin(folders: Mapping[str, Path | None]) -> dict[str, str]:
    """Says where a result comes from; where the folders of this machine are is nobody's business."""
    origin = provenance(gpu=False)
    for name, folder in folders.items():
        origin["command"] = origin["command"].replace(f" {folder}", f" {name}")
    return origin


def measures(moccasin: Path | None, time_limit_s: float) -> dict[str, Callable[[], dict[str, Any]]]:
    """Lists the rivals, each with what measures it."""
    sizes = json.dumps(same_gpt.SIZES)

    def of_pytorch() -> dict[str, Any]:
        graph, plans = same_gpt.captured()
        flops = int(graph.flops[graph.compute_bound].sum())
        rows = same_gpt.beside(graph, same_gpt.of_pytorch(graph, plans), time_limit_s)
        return {"version": torch.__version__, "products_flops": flops, "rows": rows}

    def elsewhere(name: str, requirements: list[str]) -> dict[str, Any]:
        found = run_in(f"rivals-{name}", requirements, f"experiments.rivals.in_{name}", sizes)
        if "rows" in found:
            found["rows"] = same_gpt.beside(same_gpt.captured()[0], found["rows"], time_limit_s)
        return found

    def of_moccasin() -> dict[str, Any]:
        if moccasin is None:
            return {"skipped": "no folder was given (--moccasin)"}
        return {"rows": [*published.rows(moccasin, time_limit_s)]}

    return {
        "price": lambda: {"rows": [*price.rows(time_limit_s)]},
        "pytorch": of_pytorch,
        "jax": lambda: elsewhere("jax", JAX),
        "thunder": lambda: elsewhere("thunder", THUNDER),
        "moccasin": of_moccasin,
    }


if __name__ == "__main__":
    typer.run(main)
