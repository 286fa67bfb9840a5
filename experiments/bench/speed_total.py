"""Measures whether a faster choice makes whole compilations faster: `python -m experiments.bench.speed_total`.

Training steps of a transformer of 10,000 values, compiled without generating code, by PyTorch's partitioner and by ours
in turns, in one warm process. `experiments.bench.speed_compile` does so in fresh processes, where imports that both
need count, too; and on a machine that others share the two of a pair are then a minute apart, which hides a few
percent.
"""

from __future__ import annotations

import functools
import gc
import warnings
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import track

from experiments.bench.speed import show
from experiments.bench.speed_compile import totals
from experiments.bench.speed_compile_case import WHO, first_step
from experiments.bench.stack import at_depth, depths
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results


def main(
    layers: Annotated[int, typer.Option(help="of the transformer; 50 make 10,000 values")] = 50,
    pairs: Annotated[
        int, typer.Option(help="compilations by each; the two of a pair start equally deep on the stack")
    ] = 32,
    output: Annotated[Path, typer.Option(help="where the JSON goes")] = RESULTS / "compile_total.json",
) -> None:
    """Measures and prints the table, and writes it as JSON with its provenance."""
    warnings.simplefilter("ignore")  # torch's own deprecations
    rows = in_turns(layers, pairs)
    show(f"A step of a transformer of {layers} layers, compiled in a warm process, no code generated", rows)
    output.parent.mkdir(exist_ok=True)
    report = {
        "provenance": provenance(),
        "seeds": "0, for weights and inputs",
        "device": "cpu",
        "without_codegen": rows,
    }
    write_results(output, report)
    print(f"written to {output}")


def in_turns(layers: int, pairs: int) -> list[dict[str, Any]]:
    """Compiles by both, ours first in every second pair; each pair at another depth of the stack."""
    runs: dict[str, list[dict[str, Any]]] = {who: [] for who in WHO}
    for who in WHO:
        _anew(who, layers=1)  # what is imported and read once
    for pair, depth in enumerate(track(depths(pairs), "pairs")):
        for who in reversed(WHO) if pair % 2 else WHO:
            runs[who].append(at_depth(depth, functools.partial(_anew, who, layers)))
    return totals(runs, layers)


def _anew(who: str, layers: int) -> dict[str, Any]:
    torch.compiler.reset()
    gc.collect()
    return first_step(who, layers, codegen=False)


if __name__ == "__main__":
    typer.run(main)
