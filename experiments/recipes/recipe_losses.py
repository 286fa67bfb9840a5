"""Runs all recipes, each in a process of its own, beside TorchInductor: `python -m experiments.recipes.recipe_losses`.

"Saved" is what the plans of all graphs keep between the passes, each graph once, beside PyTorch's default. The budget
is half of that default (`memory-budget:budget=0.5`). The peak of the whole run is measured, with parameters, gradients
and AdamW's state.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from experiments.recipes.beside import largest_difference
from experiments.report.charts import draw_dots
from experiments.report.markdown import bullets, table
from experiments.report.result_table import ResultTable
from remat.words import human_bytes, pip_install


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
        return None if find_spec(self.package) else f"needs {self.package}: {pip_install('recipes')}"


RECIPES: Mapping[str, Recipe] = {
    "amp_accumulation": Recipe("plain loop, bfloat16, two batches a step", "torch", 1e-3),
    "hugging_face_trainer": Recipe("Trainer, GPT-2", "transformers"),
    "trainer_callback": Recipe("Trainer with a callback, GPT-2", "transformers"),
    "trl_sft": Recipe("TRL's SFTTrainer, Llama", "trl"),
    "accelerate_loop": Recipe("accelerate, bfloat16, two batches a step", "accelerate", 1e-3),
    "lightning_trainer": Recipe("Lightning, bfloat16, two batches a step", "lightning", 1e-3),
    "lightning_callback": Recipe("Lightning with a callback, bfloat16, two batches a step", "lightning", 1e-3),
    "peft_lora": Recipe("LoRA on Llama", "peft"),
    "ddp": Recipe("DDP, two ranks", "torch"),
    "fsdp2": Recipe("FSDP2, a graph for each block, two ranks", "torch"),
}


def measure(name: str) -> Iterator[dict[str, Any]]:
    """Runs a recipe."""
    if missing := RECIPES[name].missing:
        raise ImportError(missing)
    yield {"version": version(RECIPES[name].package), **ran(name)}


def ran(name: str) -> dict[str, Any]:
    """Runs a recipe, and returns what `experiments.recipes.beside.measured` says of both ways."""
    command = [sys.executable, "-W", "ignore", "-m", f"experiments.recipes.{name}", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if run.returncode:
        raise RuntimeError(f"{name} failed:\n{run.stderr[-3000:]}")
    return json.loads(run.stdout.splitlines()[-1])


def summary(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Says how near the losses are, and how far saved bytes and peaks fall."""
    worst = max(rows, key=largest_difference)
    peaks = {row["case"]: row["remat"]["peak_bytes"] / row["TorchInductor"]["peak_bytes"] for row in rows}
    best, least = min(peaks, key=peaks.__getitem__), max(peaks, key=peaks.__getitem__)
    same = sum(not largest_difference(row) for row in rows)
    lines = [
        (
            f"[{row['case']}](../recipes/{row['case']}.py)",
            f"{RECIPES[row['case']].stack} ({RECIPES[row['case']].package} {row['version']})",
            f"{largest_difference(row):.1e}",
            f"{human_bytes(row['remat']['default_saved_bytes'])} / {human_bytes(row['remat']['saved_bytes'])}",
            f"{human_bytes(row['TorchInductor']['peak_bytes'])} / {human_bytes(row['remat']['peak_bytes'])}",
        )
        for row in rows
    ]
    told = [
        f"{len(rows)} recipes. All losses are TorchInductor's to the last bit in {same}; the largest relative "
        f"difference is {largest_difference(worst):.1e}, in `{worst['case']}`.",
        f"The peak of the whole run is {peaks[best]:.2f} times TorchInductor's in `{best}`, and "
        f"{peaks[least]:.2f} times in `{least}`.",
    ]
    return [
        bullets(told),
        table(
            ("recipe", "stack", "largest difference", "saved: default / remat", "peak: TorchInductor / remat"), lines
        ),
    ]


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws what each recipe saves, and its peak, in percents of TorchInductor's."""
    ours = {row["case"]: row["remat"] for row in rows}
    saved = {name: 100 * own["saved_bytes"] / own["default_saved_bytes"] for name, own in ours.items()}
    peaks = {row["case"]: 100 * row["remat"]["peak_bytes"] / row["TorchInductor"]["peak_bytes"] for row in rows}
    draw_dots({"saved bytes": saved, "peak of the run": peaks}, path, xlabel="% of TorchInductor's", xlim=(40, 102))


TABLE = ResultTable(
    "experiments.recipes.recipe_losses",
    "Recipes: remat in other people's training loops, beside TorchInductor",
    cases=lambda: RECIPES,
    measure=measure,
    summary=summary,
    draw=draw,
)

if __name__ == "__main__":
    TABLE.command()
