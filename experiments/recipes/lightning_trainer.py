"""A module in Lightning's Trainer: `python -m experiments.recipes.lightning_trainer`."""

from __future__ import annotations

from typing import Any

import lightning
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor
from torch.utils.data import DataLoader

from experiments.recipes.beside import compare
from experiments.recipes.small_model import SmallModel, batches


class Regression(lightning.LightningModule):
    """Compiles the network inside, so that names in checkpoints stay as they are."""

    def __init__(self, how: dict[str, Any]) -> None:
        super().__init__()
        self.network, self.how, self.losses = SmallModel(), how, list[float]()

    def configure_model(self) -> None:
        self.network.compile(**self.how)  # backend="remat", options={"remat.cost_model": "memory-budget:budget=0.5"}

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = self.network(*batch)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> OptimizerLRScheduler:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def train(**how: Any) -> list[float]:
    """Trains and returns the loss of each batch."""
    lightning.seed_everything(0, verbose=False)
    return trained(Regression(how))


def trained(module: Regression, *callbacks: lightning.Callback) -> list[float]:
    """Trains a module, and returns the loss of each batch."""
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=1,
        precision="bf16-mixed",
        accumulate_grad_batches=2,
        callbacks=[*callbacks],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(batches(8), batch_size=None))
    return module.losses


if __name__ == "__main__":
    compare(train)
