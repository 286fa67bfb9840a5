"""A causal language model in the Trainer of transformers: `python -m experiments.recipes.hugging_face_trainer`."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed

from experiments.recipes.beside import compare

STEPS = 4
SHORT: dict[str, Any] = {  # a short training that writes nothing
    "per_device_train_batch_size": 8,
    "max_steps": STEPS,
    "logging_steps": 1,
    "learning_rate": 1e-2,
    "dataloader_drop_last": True,
    "report_to": "none",
    "use_cpu": True,
    "disable_tqdm": True,
    "save_strategy": "no",
}


def train(**how: Any) -> list[float]:
    """Trains with dropout, and returns the loss of each step."""
    model = small_gpt2()

    # Not TrainingArguments(torch_compile_backend="remat"): accelerate knows no backend but PyTorch's own.
    model.compile(**how)  # backend="remat", options={"remat.cost_model": "memory-budget:budget=0.5"}

    return trained(model)


def small_gpt2() -> GPT2LMHeadModel:
    """Makes a model with random weights, the same ones each time."""
    set_seed(0)
    return GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=128, n_embd=64, n_layer=1, n_head=4))


def trained(model: GPT2LMHeadModel, *callbacks: TrainerCallback) -> list[float]:
    """Trains a model, and returns the loss of each step."""
    tokens = torch.randint(256, (8 * STEPS, 128))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(output_dir=folder, **SHORT)
        return losses(Trainer(model, arguments, train_dataset=data, callbacks=[*callbacks]))


def losses(trainer: Trainer) -> list[float]:
    """Runs a training, and returns the loss of each step."""
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


if __name__ == "__main__":
    compare(train)
