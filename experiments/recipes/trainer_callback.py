"""A callback for the Trainer of transformers, and so for TRL: `python -m experiments.recipes.trainer_callback`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

import remat
from experiments.recipes.beside import compare
from experiments.recipes.hugging_face_trainer import small_gpt2, trained


class CompiledWithin(TrainerCallback):
    """Compiles the model when training begins, and prints the report after each step that planned graphs.

    The arguments are those of `Module.compile`: `backend="remat", options={"remat.cost_model": ...}`.
    """

    def __init__(self, **how: Any) -> None:
        self.how, self.earlier, self.reported = how, remat.last_report().graphs, ()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: nn.Module, **rest: Any
    ) -> None:
        model.compile(**self.how)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **rest: Any) -> None:
        report = remat.last_report()
        graphs = tuple(graph for graph in report.graphs if graph not in self.earlier)
        if graphs != self.reported and state.is_world_process_zero:
            print(f"step {state.global_step}, remat:\n{replace(report, graphs=graphs)}")
        self.reported = graphs


def train(**how: Any) -> list[float]:
    """Trains with dropout, and returns the loss of each step."""
    return trained(small_gpt2(), CompiledWithin(**how))


if __name__ == "__main__":
    compare(train)
