"""Fills the columns without a device of `throughput` and `largest_batch`, model by model, where it stopped.

`python -m experiments.paper.unlaunched_tables`. What both tables need of a model is captured and scheduled once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.paper import largest_batch, throughput
from experiments.paper.measure_table import RESULTS, measure
from experiments.paper.methods import SCHEDULED
from experiments.paper.table import VIRTUAL, Setting
from experiments.paper.ten_models import MODELS


def main(
    models: Annotated[list[str] | None, typer.Argument(help="of the ten; all by default")] = None,
    methods: Annotated[list[str] | None, typer.Option("--method", help="repeatable; all by default")] = None,
    trials: Annotated[int, typer.Option(min=1, max=2, help="batches to schedule for the largest")] = 1,
    again: Annotated[bool, typer.Option("--again", help="measure also what has a result")] = False,
    output: Annotated[Path, typer.Option(help="folder of the JSON and Markdown files", file_okay=False)] = RESULTS,
) -> None:
    """Schedule the ten models under all methods, at the published batch and at the largest."""
    setting = Setting(VIRTUAL, "published", repeats=1, trials=trials)
    for name in models or [whole.name for whole in MODELS]:
        for table in (throughput.TABLE, largest_batch.TABLE):
            for method in methods or SCHEDULED:
                measure(table, setting, output, only=f"{name}, {method}", minutes=60, again=again)


if __name__ == "__main__":
    typer.run(main)
