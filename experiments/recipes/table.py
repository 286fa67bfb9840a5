"""Runs all recipes, each in a process of its own, and writes a table: `python -m experiments.recipes.table`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.recipes.beside import largest_difference
from experiments.report.markdown import bullets, cited, page, table
from experiments.report.provenance import provenance
from experiments.report.result_files import RESULTS, write_results
from remat.words import human_bytes


@dataclass(frozen=True)
class Recipe:
    """A recipe.

    Attributes:
        stack: what it shows, in words.
        package: that it needs.
        tolerance: how far a loss may be from TorchInductor's, as a part of it. In bfloat16, kernels that are fused
            otherwise round elsewhere.
    """

    stack: str
    package: str
    tolerance: float = 1e-6

    @property
    def missing(self) -> str | None:
        """Says what is not installed."""
        return None if find_spec(self.package) else f"needs {self.package}: pip install 'remat[recipes]'"


RECIPES: Mapping[str, Recipe] = {
    "amp_accumulation": Recipe("plain loop, bfloat16, two batches a step", "torch", 1e-3),
    "hugging_face_trainer": Recipe("Trainer, GPT-2", "transformers"),
    "accelerate_loop": Recipe("accelerate, bfloat16, two batches a step", "accelerate", 1e-3),
    "lightning_trainer": Recipe("Lightning, bfloat16, two batches a step", "lightning", 1e-3),
    "peft_lora": Recipe("LoRA on Llama", "peft"),
    "ddp": Recipe("DDP, two ranks", "torch"),
    "fsdp2": Recipe("FSDP2, a graph for each block, two ranks", "torch"),
}


def main(
    only: Annotated[list[str] | None, typer.Option(help="a recipe; repeatable")] = None,
    output: Annotated[Path, typer.Option(help="folder for recipes.json and .md")] = RESULTS,
) -> None:
    """Runs the recipes, and writes recipes.json and .md after each; rows of others are kept."""
    path = output / "recipes.json"
    rows: dict[str, Any] = json.loads(path.read_text())["rows"] if only and path.exists() else {}
    for name, recipe in RECIPES.items():
        if only and name not in only:
            continue
        row = {"missing": recipe.missing} if recipe.missing else {"version": version(recipe.package), **ran(name)}
        rows[name] = row
        print(name, row)
        document = {"provenance": provenance(gpu=False), "rows": rows}
        write_results(path, document, markdown(document))


def ran(name: str) -> dict[str, Any]:
    """Runs a recipe, and returns what `experiments.recipes.beside.measured` says of both ways."""
    command = [sys.executable, "-W", "ignore", "-m", f"experiments.recipes.{name}", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if run.returncode:
        raise RuntimeError(f"{name} failed:\n{run.stderr[-3000:]}")
    return json.loads(run.stdout.splitlines()[-1])


def markdown(document: dict[str, Any]) -> str:
    """Makes the page of the table and its origin."""
    rows = {name: row for name, row in document["rows"].items() if "losses" in row.get("remat", {})}
    worst = max(rows, key=lambda name: largest_difference(rows[name]))
    peaks = {name: row["remat"]["peak_bytes"] / row["TorchInductor"]["peak_bytes"] for name, row in rows.items()}
    best, least = min(peaks, key=peaks.__getitem__), max(peaks, key=peaks.__getitem__)
    same = sum(not largest_difference(row) for row in rows.values())
    return page(
        "Recipes: remat in other people's training loops, beside TorchInductor",
        bullets(
            [
                f"{len(rows)} recipes. All losses are TorchInductor's to the last bit in {same}; the largest relative "
                f"difference is {largest_difference(rows[worst]):.1e}, in `{worst}`.",
                f"The peak of the whole run, measured, is {peaks[best]:.2f} times TorchInductor's in `{best}`, and "
                f"{peaks[least]:.2f} times in `{least}`: parameters, gradients and AdamW's state are in it.",
                "Saved: between the passes by all graphs, each once, by the plans, with PyTorch's default first. Asked "
                "for was half (`memory-budget:budget=0.5`). Where a cell has two figures, TorchInductor's is first.",
                cited(document["provenance"], "experiments.recipes.table"),
            ]
        ),
        table(
            ("recipe", "stack", "losses", "largest difference", "graphs", "saved", "peak"),
            [
                (
                    f"[{name}](../recipes/{name}.py)",
                    f"{RECIPES[name].stack} ({RECIPES[name].package} {row['version']})",
                    len(row["remat"]["losses"]),
                    f"{largest_difference(row):.1e}",
                    row["remat"]["graphs"],
                    f"{human_bytes(row['remat']['default_saved_bytes'])} / {human_bytes(row['remat']['saved_bytes'])}",
                    f"{human_bytes(row['TorchInductor']['peak_bytes'])} / {human_bytes(row['remat']['peak_bytes'])}",
                )
                for name, row in rows.items()
            ],
        ),
        bullets(f"{name}: {row['missing']}" for name, row in document["rows"].items() if "missing" in row),
    )


if __name__ == "__main__":
    typer.run(main)
