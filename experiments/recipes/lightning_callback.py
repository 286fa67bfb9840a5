"""A callback for Lightning's Trainer: `python -m experiments.recipes.lightning_callback`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import lightning
from lightning.pytorch.utilities import rank_zero_info

import remat
from experiments.recipes.beside import compare
from experiments.recipes.lightning_trainer import Regression, trained


class CompiledWithin(lightning.Callback):
    """Compiles a network of a module before training, and logs the report after each batch that planned graphs.

    The first argument is the name of the network in the module, which makes it in `__init__`. The others are those of
    `Module.compile`: `backend="remat", options={"remat.cost_model": ...}`.
    """

    def __init__(self, network: str, **how: Any) -> None:
        self.network, self.how = network, how
        self.earlier, self.reported = remat.last_report().graphs, ()

    def setup(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:
        if stage == "fit":
            pl_module.get_submodule(self.network).compile(**self.how)

    def on_train_batch_end(self, trainer: lightning.Trainer, *rest: Any) -> None:
        report = remat.last_report()
        graphs = tuple(graph for graph in report.graphs if graph not in self.earlier)
        if graphs != self.reported:
            self.reported = graphs
            rank_zero_info(f"remat:\n{replace(report, graphs=graphs)}")
            for logger in trainer.loggers:
                saved = sum(graph.row["saved_bytes"] for graph in graphs)
                logger.log_metrics({"remat/saved_bytes": saved}, trainer.global_step)


class Uncompiled(Regression):
    """Leaves its network to the callback."""

    def configure_model(self) -> None:
        pass


def train(**how: Any) -> list[float]:
    """Trains and returns the loss of each batch."""
    lightning.seed_everything(0, verbose=False)
    return trained(Uncompiled({}), CompiledWithin("network", **how))


if __name__ == "__main__":
    compare(train)
