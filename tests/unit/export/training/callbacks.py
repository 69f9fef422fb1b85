"""Callbacks that a declaration may have."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer, callbacks


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


class StopsAt(callbacks.Timer):
    """As if the time were over after a number of updates."""

    def __init__(self, update: int) -> None:
        super().__init__(duration={"days": 1})
        self.update = update

    def on_train_batch_end(self, trainer: Trainer, *args: Any, **kwargs: Any) -> None:
        trainer.should_stop = trainer.should_stop or trainer.global_step >= self.update


class StopsWithin(Callback):
    """Ends a run at a batch, also one that is not the last of an update."""

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        trainer.should_stop = trainer.should_stop or index == 4


class Accumulates(Callback):
    """Sets what only an option may."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.accumulate_grad_batches = 2
