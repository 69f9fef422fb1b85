"""A declared training as Lightning's module: any strategy of its trainer can run it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader

from export.checkpoints import KEY
from models.definitions.training import Batch, Samples, Share, Training

SHARDED_FROM = 50_000  # parameters of a layer that is gathered and freed alone


class Learner(LightningModule):
    """Loss and metrics are summed over samples; the sums are added up over processes.

    Args:
        module: the whole model.
        how: what the definition declares.
        data, evaluation: its samples; evaluation None: there are none.
        loading: options of the data loaders.
    """

    def __init__(
        self,
        module: nn.Module,
        how: Training,
        data: Samples,
        evaluation: Samples | None,
        loading: dict[str, Any],
    ) -> None:
        super().__init__()
        self.module = module
        self.how = how
        self.data = data
        self.evaluation = evaluation
        self.loading = loading
        self.steps = how.steps(data)
        self.total = how.epochs * self.steps
        self.step = 0  # done, since the beginning of the run
        self.sharded = False
        self.losses = torch.zeros(2, dtype=torch.float64)  # their sum, and of how many samples
        self.record: dict[str, Any] = {}  # our part of a checkpoint

    @property
    def learns(self) -> nn.Module:
        """The part that learns."""
        return self.how.part(self.module)

    @property
    def exact(self) -> torch.dtype:
        """What sums are kept in; Apple's GPUs have no 64 bits."""
        return torch.float32 if self.device.type == "mps" else torch.float64

    @property
    def share(self) -> Share:
        """The samples of a batch that this process gets."""
        return Share(self.global_rank, self.trainer.world_size)

    def configure_model(self) -> None:
        """Called once the processes are there, before a checkpoint is read."""
        if self.device_mesh is None or self.sharded:
            return
        self.sharded = True
        mesh = self.device_mesh["data_parallel"]
        for layer in self.learns.modules():
            own = sum(each.numel() for each in layer.parameters(recurse=False))
            if own >= SHARDED_FROM:
                fully_shard(layer, mesh=mesh)
        fully_shard(self.learns, mesh=mesh)

    def train_dataloader(self) -> DataLoader[Batch]:
        """From the step on that a checkpoint was at."""
        return self.how.learning_batches(self.data, self.share, first=self.step, **self.loading)

    def configure_optimizers(self) -> Any:
        """As declared; the rate changes after each step."""
        optimizer = self.how.optimizer(self.parameters_here())
        if self.how.schedule is None:
            return optimizer
        schedule = self.how.schedule(optimizer, self.total)
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    def parameters_here(self) -> list[nn.Parameter]:
        """Those that this process updates, or a part of."""
        return list(self.learns.parameters())

    def on_train_batch_start(self, batch: Batch, index: int) -> None:
        """Seed by step, so that a run that goes on draws what it would have drawn."""
        self.how.seed_step(self.step, self.global_rank)

    def training_step(self, batch: Batch, index: int) -> torch.Tensor:
        """The loss; of uneven shares each counts by its size, since gradients are averaged."""
        loss = self.how.loss(self.learns(*batch.inputs), batch.target)
        self.count(loss.detach(), batch.counted)
        share = self.share
        return loss * (batch.counted * share.of / self.how.batch) if share.of > 1 else loss

    def count(self, loss: torch.Tensor, samples: int) -> None:
        """Add the loss of a number of samples."""
        self.losses = self.losses.to(loss.device, self.exact)
        self.losses += torch.stack([loss.to(self.exact), self.losses.new_ones(())]) * samples

    def summed(self, sums: torch.Tensor) -> torch.Tensor:
        """The sums of all processes."""
        here = sums.to(self.device, self.exact)
        reduced: torch.Tensor = self.trainer.strategy.reduce(here, reduce_op="sum")
        return reduced.cpu()

    def take_losses(self) -> float:
        """The mean loss since the last call."""
        loss, samples = self.summed(self.losses).tolist()
        self.losses = torch.zeros(2, dtype=torch.float64)
        return loss / samples if samples else float("nan")

    def evaluate(self) -> list[float]:
        """The means of the loss and of each metric on the evaluation data."""
        measured = (self.how.loss, *self.how.metrics.values())
        sums = torch.zeros(len(measured) + 1, dtype=torch.float64)
        self.learning(False)
        context = self.trainer.precision_plugin.val_step_context()
        with torch.no_grad(), context:
            for batch in self.how.evaluation_batches(self.evaluation, self.share, **self.loading):  # type: ignore[arg-type]
                moved = self.trainer.strategy.batch_to_device(batch)
                moved = self.trainer.precision_plugin.convert_input(moved)
                outputs = self.outputs(moved)
                if outputs is None or not batch.counted:
                    continue
                outputs, target = first(outputs, batch.counted), moved.target[: batch.counted]
                found = [float(each(outputs, target)) * batch.counted for each in measured]
                sums += torch.tensor([*found, batch.counted], dtype=torch.float64)
        self.learning(True)
        *totals, samples = self.summed(sums).tolist()
        return [each / samples if samples else float("nan") for each in totals]

    def learning(self, on: bool) -> None:
        """Switch what differs between learning and evaluating, such as dropout."""
        self.module.train(on)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Say where the run is; the loops of the trainer need not know: batches follow from it."""
        checkpoint.pop("loops", None)
        losses = self.summed(self.losses).tolist()
        checkpoint[KEY] = self.record | {
            "step": self.step,
            "steps": self.steps,
            "losses": losses,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Go on from there; one process has the sums of all."""
        self.record = dict(checkpoint[KEY])
        self.step = self.record["step"]
        if self.global_rank == 0:
            self.losses = torch.tensor(self.record["losses"], dtype=torch.float64)

    def outputs(self, batch: Batch) -> Any:
        """Of a forward; None: another process has them."""
        return self.learns(*batch.inputs)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, index: int) -> Batch:
        """Without waiting, where the memory is pinned."""
        return move(batch, lambda each: each.to(device, non_blocking=True))


def move(batch: Batch, to: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
    """The batch with its tensors elsewhere."""
    return Batch(tuple(to(each) for each in batch.inputs), to(batch.target), batch.counted)


def first(outputs: Any, count: int) -> Any:
    """The first items of a tensor, or of a tuple of tensors."""
    if isinstance(outputs, torch.Tensor):
        return outputs[:count]
    return tuple(each[:count] for each in outputs)
