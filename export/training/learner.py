"""A declared training as a Lightning module, which any trainer strategy can run."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from export.checkpoints import KEY
from models.definitions.training import Samples, Share, Training, TrainingBatch

SHARDED_FROM = 50_000  # fewest parameters of a layer that is gathered and freed separately


class Learner(LightningModule):
    """Sums loss and metrics over samples, then over processes.

    Args:
        module: the whole model.
        how: the definition's declaration.
        data, evaluation: its samples; None: no evaluation.
        loading: options of the data loaders.
        window: batches of an update of the weights.
    """

    def __init__(
        self,
        module: nn.Module,
        how: Training,
        data: Samples,
        evaluation: Samples | None,
        loading: dict[str, Any],
        window: int = 1,
    ) -> None:
        super().__init__()
        self.module = module
        self.how = how
        self.data = data
        self.evaluation = evaluation
        self.loading = loading
        self.window = window
        self.steps = how.steps(data, window)
        self.total = how.epochs * self.steps
        self.step = 0  # steps completed since the beginning of the run
        self.sharded = False
        self.losses = torch.zeros(2, dtype=torch.float64)  # sum of the losses, number of samples
        self.first_bad = torch.tensor(math.inf)  # the first step whose loss is not finite
        self.record: dict[str, Any] = {}  # our part of a checkpoint

    @property
    def is_over(self) -> bool:
        """Whether all steps are done, or a callback has ended the run."""
        return self.step >= self.total or "ended" in self.record

    @property
    def learns(self) -> nn.Module:
        """The trained part of the model."""
        return self.how.part(self.module)

    @property
    def exact(self) -> torch.dtype:
        """The dtype of sums; Apple's GPUs have no 64-bit one."""
        return torch.float32 if self.device.type == "mps" else torch.float64

    @property
    def share(self) -> Share:
        """This process's share of the samples of a batch."""
        return Share(self.global_rank, self.trainer.world_size)

    def configure_model(self) -> None:
        """Prepare the model once the processes exist, before a checkpoint is read."""
        if self.device_mesh is None or self.sharded:
            return
        self.sharded = True
        mesh = self.device_mesh["data_parallel"]
        for layer in self.learns.modules():
            own = sum(each.numel() for each in layer.parameters(recurse=False))
            if own >= SHARDED_FROM:
                fully_shard(layer, mesh=mesh)
        fully_shard(self.learns, mesh=mesh)

    def train_dataloader(self) -> DataLoader[TrainingBatch]:
        """Load samples, starting at the checkpoint's step."""
        return self.how.learning_batches(
            self.data, self.share, first=self.step, window=self.window, **self.loading
        )

    def configure_optimizers(self) -> Any:
        """Build the declared optimizer; its learning rate changes after each update."""
        optimizer = self.how.optimizer(self.parameters_here())
        if self.how.schedule is None:
            return optimizer
        schedule = self.how.schedule(optimizer, self.total // self.window)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def parameters_here(self) -> list[nn.Parameter]:
        """The parameters that this process updates, wholly or in part."""
        return list(self.learns.parameters())

    def on_train_batch_start(self, batch: TrainingBatch, index: int) -> None:
        """Seed by step, so that a resumed run draws the same random numbers."""
        self.how.seed_step(self.step, self.global_rank)

    def training_step(self, batch: TrainingBatch, index: int) -> torch.Tensor:
        """Return the loss, weighted by the share's size because gradients are averaged."""
        loss = self.how.loss(self.learns(*batch.inputs), batch.target)
        self.count(loss.detach(), batch.sample_count)
        share = self.share
        return loss * (batch.sample_count * share.of / self.how.batch) if share.of > 1 else loss

    def count(self, loss: torch.Tensor, samples: int) -> None:
        """Add the loss of a number of samples."""
        self.losses = self.losses.to(loss.device, self.exact)
        self.losses += torch.stack([loss.to(self.exact), self.losses.new_ones(())]) * samples
        # on the device: reading each loss would wait for it
        bad = torch.where(loss.isfinite(), math.inf, float(self.step + 1))
        self.first_bad = torch.minimum(self.first_bad.to(loss.device, bad.dtype), bad)

    def first_diverged_step(self) -> int | None:
        """Return the first step with a loss, in any process, that is NaN or infinite."""
        here = self.first_bad.to(self.device, self.exact)
        step = float(self.trainer.strategy.reduce(here, reduce_op="min"))
        return int(step) if math.isfinite(step) else None

    def weights_are_finite(self) -> bool:
        """Whether no process has a trained weight that is NaN or infinite, or statistics of NaN."""
        weights = (_here(each).isfinite().all() for each in self.parameters_here())
        buffers = (each for each in self.learns.buffers() if each.is_floating_point())
        good = all(map(bool, weights)) and not any(bool(each.isnan().any()) for each in buffers)
        return bool(self.trainer.strategy.reduce_boolean_decision(good, all=True))

    def sum_over_processes(self, sums: torch.Tensor) -> torch.Tensor:
        """Add up the sums of all processes."""
        here = sums.to(self.device, self.exact)
        total: torch.Tensor = self.trainer.strategy.reduce(here, reduce_op="sum")
        return total.cpu()

    def take_losses(self) -> float:
        """Return the mean loss since the last call."""
        loss, samples = self.sum_over_processes(self.losses).tolist()
        self.losses = torch.zeros(2, dtype=torch.float64)
        return loss / samples if samples else float("nan")

    def evaluate(self) -> list[float]:
        """Return the means of the loss and of each metric on the evaluation data."""
        functions = (self.how.loss, *self.how.metrics.values())
        sums = torch.zeros(len(functions) + 1, dtype=torch.float64)
        self.learning(False)
        context = self.trainer.precision_plugin.val_step_context()
        with torch.no_grad(), context:
            for batch in self.how.evaluation_batches(self.evaluation, self.share, **self.loading):  # type: ignore[arg-type]
                local = self.trainer.strategy.batch_to_device(batch)
                local = self.trainer.precision_plugin.convert_input(local)
                outputs = self.outputs(local)
                if outputs is None or not batch.sample_count:
                    continue
                outputs, target = (
                    first(outputs, batch.sample_count),
                    local.target[: batch.sample_count],
                )
                values = [float(each(outputs, target)) * batch.sample_count for each in functions]
                sums += torch.tensor([*values, batch.sample_count], dtype=torch.float64)
        self.learning(True)
        *totals, samples = self.sum_over_processes(sums).tolist()
        return [each / samples if samples else float("nan") for each in totals]

    def learning(self, on: bool) -> None:
        """Switch between training and evaluation mode, for example for dropout."""
        self.module.train(on)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Store the step, from which the batches follow; the trainer's loops are not needed."""
        checkpoint.pop("loops", None)
        losses = self.sum_over_processes(self.losses).tolist()
        checkpoint[KEY] = self.record | {
            "step": self.step,
            "steps": self.steps,
            "losses": losses,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Resume at the stored step; one process gets the sums of all."""
        self.record = dict(checkpoint[KEY])
        self.step = self.record["step"]
        if self.global_rank == 0:
            self.losses = torch.tensor(self.record["losses"], dtype=torch.float64)

    def outputs(self, batch: TrainingBatch) -> Any:
        """Return the outputs of a forward; None: another process has them."""
        return self.learns(*batch.inputs)

    def transfer_batch_to_device(
        self, batch: TrainingBatch, device: torch.device, index: int
    ) -> TrainingBatch:
        """Move a batch, without waiting if its memory is pinned."""
        return move(batch, lambda each: each.to(device, non_blocking=True))


def _here(weights: torch.Tensor) -> torch.Tensor:
    """Return this process's part of weights that FSDP has split."""
    to_local: Any = getattr(weights, "to_local", None)
    return weights.detach() if to_local is None else to_local().detach()


def move(batch: TrainingBatch, to: Callable[[torch.Tensor], torch.Tensor]) -> TrainingBatch:
    """Return the batch with its tensors moved."""
    return TrainingBatch(
        tuple(to(each) for each in batch.inputs), to(batch.target), batch.sample_count
    )


def first(outputs: Any, count: int) -> Any:
    """Return the first items of a tensor, or of a tuple of tensors."""
    if isinstance(outputs, torch.Tensor):
        return outputs[:count]
    return tuple(each[:count] for each in outputs)
