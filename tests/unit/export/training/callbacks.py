"""Callbacks that a declaration may have."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer


class Counts(Callback):
    """Counts epochs, over all starts of a run, and ends it after three."""

    def __init__(self) -> None:
        self.epochs = 0

    def state_dict(self) -> dict[str, Any]:
        return {"epochs": self.epochs}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epochs = state_dict["epochs"]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        assert float(trainer.callback_metrics["accuracy"]) > 0
        self.epochs += 1
        trainer.should_stop = self.epochs == 3


class StopsOne(Callback):
    """Ends the run at the third step, in the second process only."""

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        trainer.should_stop = trainer.should_stop or (trainer.global_rank == 1 and index == 2)
