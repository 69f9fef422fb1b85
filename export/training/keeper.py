"""Handles what happens between the steps of a run: curves, checkpoints, stop and resume."""

from __future__ import annotations

import json
import math
import re
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer

from export.checkpoints import BEST, LAST
from export.errors import ExportError
from export.reports.curves import page_of
from export.training.learner import Learner
from models.definitions.training import Diverged
from models.manifest import TrainedEpoch
from models.system.durable import replacing

CURVES, PLOT, STEP_FILE = "curves.json", "curves.svg", "reached"
ASK_EVERY = 8  # updates between two checks whether any process received a stop signal
LOG_EVERY = 50  # steps, as Lightning does
STOPPING = (signal.SIGINT, signal.SIGTERM)


class AtomicIO(TorchCheckpointIO):
    """Writes checkpoints atomically, even if the power fails."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write next to the target, then rename."""
        with replacing(Path(path)) as file:
            torch.save(checkpoint, file)


class Keeper(Callback):
    """Keeps a run's folder. It must be the last callback, to see whether another one ends the run.

    Args:
        folder: of the run.
        every: steps between two checkpoints; None: only at the end of each epoch.
        progress: called on the first process.
    """

    def __init__(
        self, folder: Path, every: int | None, progress: Callable[[int, int, str], None]
    ) -> None:
        self.folder = folder
        self.every = every
        self.progress = progress
        self.signalled = False  # whether a signal has arrived
        self.stopped = False
        self.ending = False  # whether a callback of this process wants to end the run
        self.saved_step = 0  # the step of last.ckpt
        self.undefined_epochs: dict[
            str, list[int]
        ] = {}  # metric -> epochs in which it was not finite
        self.began = time.monotonic()
        self.noted_at = 0.0
        self.loss = ""
        self.handlers: dict[int, Any] = {}
        self.logged_losses = torch.zeros(
            2, dtype=torch.float64
        )  # of `Learner.losses`, in this epoch

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Handle signals: from now on they end the run after a step."""
        self.handlers = {each: signal.signal(each, self._tell) for each in STOPPING}
        self.began = time.monotonic() - _of(module).record.get("seconds", 0.0)
        self.saved_step = _of(module).step
        if trainer.loggers:
            self.logged_losses = _of(module).sum_over_processes(_of(module).losses)

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Check that checkpoints fall between updates.

        Raises:
            ExportError: if another callback has changed the number of batches of an update.
        """
        here, window = trainer.accumulate_grad_batches, _of(module).window
        if here != window:
            raise ExportError(
                f"a callback sets accumulate_grad_batches to {here}, but the run has {window}; "
                "use --accumulate-grad-batches"
            )

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Restore the signal handlers."""
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def on_exception(
        self, trainer: Trainer, module: LightningModule, exception: BaseException
    ) -> None:
        """Restore the signal handlers after an error too."""
        self.on_train_end(trainer, module)

    def _tell(self, number: int, frame: FrameType | None) -> None:
        self.signalled = True
        signal.signal(signal.SIGINT, signal.default_int_handler)  # the second one does not wait

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, outputs: Any, batch: Any, index: int
    ) -> None:
        """Report, save and stop as needed after each step.

        Raises:
            Diverged: if a loss or a weight is NaN or infinite; nothing is written from then on.
        """
        learner = _of(module)
        learner.step += 1
        done, total, window = learner.step, learner.total, learner.window
        updates, accumulated = divmod(done, window)
        at_end = done % learner.steps == 0
        ask = at_end or (not accumulated and updates % ASK_EVERY == 0)
        self.ending |= trainer.should_stop
        trainer.should_stop = False  # not before all processes agree
        may_stop = ask if trainer.world_size > 1 else not accumulated  # no checkpoint has gradients
        is_signalled = may_stop and trainer.strategy.reduce_boolean_decision(
            self.signalled, all=False
        )
        ends = may_stop and not at_end and self._ends(trainer, learner)
        is_due = self.every is not None and not accumulated and done % self.every < window
        saves = at_end or is_signalled or ends or is_due
        if ask or saves:
            self._check(learner, saves=saves)
        if trainer.loggers and done % LOG_EVERY == 0:
            self._log_step(trainer, learner)
        if at_end:
            self._end_epoch(trainer, learner)
        if saves:
            learner.record["seconds"] = 0.0 if at_end else time.monotonic() - self.began
            trainer.save_checkpoint(self.folder / LAST, weights_only=False)
            self.saved_step = done
        if is_signalled and not learner.is_over:
            self.stopped = trainer.should_stop = True
        if trainer.is_global_zero:
            (self.folder / STEP_FILE).write_text(str(done))
            self._note(learner, done, total)

    def _log_step(self, trainer: Trainer, learner: Learner) -> None:
        """Log the mean loss since the last call, of all processes, and the learning rate."""
        sums = learner.sum_over_processes(learner.losses)
        loss, samples = (sums - self.logged_losses).tolist()
        self.logged_losses = sums
        rate = trainer.optimizers[0].param_groups[0]["lr"]
        self._log(
            trainer, learner, {"loss_step": loss / samples if samples else math.nan, "lr": rate}
        )

    @staticmethod
    def _log(trainer: Trainer, learner: Learner, values: dict[str, float]) -> None:
        for each in trainer.loggers:
            each.log_metrics(values, learner.step)

    def _check(self, learner: Learner, *, saves: bool) -> None:
        """Check the losses so far, and the weights before they are saved."""
        bad = learner.first_diverged_step()
        if bad is not None:
            raise self._divergence(learner, "the loss is NaN or infinite", bad)
        if saves and not learner.weights_are_finite():
            raise self._divergence(learner, "weights are NaN or infinite", learner.step)

    def _divergence(self, learner: Learner, what: str, step: int) -> Diverged:
        """Create the error, with the checkpoints that are kept."""
        epoch, checkpoints = learner.record["run"]["kept"], []
        if epoch:
            checkpoints.append(f"{self.folder / BEST} (epoch {epoch})")
        if self.saved_step:
            checkpoints.append(f"{self.folder / LAST} (step {self.saved_step})")
        return Diverged(
            f"training diverged: {what} at step {step} of {learner.total} "
            f"(epoch {math.ceil(step / learner.steps)}); "
            f"kept: {' and '.join(checkpoints) or 'nothing'}; try a lower learning "
            "rate, or find the first NaN with --detect-anomaly"
        )

    def _note(self, learner: Learner, done: int, total: int) -> None:
        """Report progress; not after each step, because reading the loss waits for the device."""
        now = time.monotonic()
        loss, samples = learner.losses.tolist() if now - self.noted_at > 0.5 else (0.0, 0.0)
        if samples:
            self.noted_at = now
            self.loss = f"loss {loss / samples:.3f}"
        self.progress(done, total, f"epoch {math.ceil(done / learner.steps)} {self.loss}")

    def _end_epoch(self, trainer: Trainer, learner: Learner) -> None:
        run, how = learner.record["run"], learner.how
        loss = learner.take_losses()
        results = learner.evaluate() if learner.evaluation is not None else [math.nan]
        if learner.evaluation is not None and not math.isfinite(results[0]):
            raise self._divergence(learner, "the evaluation loss is NaN or infinite", learner.step)
        metrics = dict(zip(how.metrics, map(_finite, results[1:]), strict=False))
        for name in (name for name, each in metrics.items() if each is None):
            self.undefined_epochs.setdefault(name, []).append(learner.step // learner.steps)
        epoch = TrainedEpoch(
            epoch=learner.step // learner.steps,
            seconds=round(time.monotonic() - self.began, 3),
            loss=_finite(loss),
            evaluation_loss=_finite(results[0]),
            metrics=metrics,
        )
        run["epochs"] = [*run["epochs"], epoch.model_dump()]
        peak = torch.tensor(float(_peak_bytes(learner.device)), device=learner.device)
        run["peak_bytes"] = int(trainer.strategy.reduce(peak, reduce_op="max"))
        self.began = time.monotonic()
        self.loss = f"loss {loss:.3f}"
        if how.keep == "last" or _best(run["epochs"]) == epoch.epoch:
            run["kept"] = epoch.epoch
            trainer.save_checkpoint(self.folder / BEST, weights_only=True)
        if trainer.is_global_zero:
            curve = [TrainedEpoch.model_validate(each) for each in run["epochs"]]
            (self.folder / CURVES).write_text(json.dumps(run, indent=1))
            (self.folder / PLOT).write_text(page_of(curve))
        self._tell_callbacks(trainer, learner, epoch)

    def _tell_callbacks(self, trainer: Trainer, learner: Learner, epoch: TrainedEpoch) -> None:
        """Pass the epoch's numbers to loggers and callbacks; a callback may end the run."""
        values = {"loss": epoch.loss, **epoch.metrics}
        if learner.evaluation is not None:
            values["evaluation_loss"] = epoch.evaluation_loss
        numbers = {name: math.nan if each is None else each for name, each in values.items()}
        self._log(trainer, learner, {"epoch": epoch.epoch, **numbers})
        for logger in trainer.loggers:
            logger.save()
        self.logged_losses = torch.zeros(2, dtype=torch.float64)
        trainer.callback_metrics.update(
            {name: torch.tensor(each) for name, each in numbers.items()}
        )
        for callback in self._others(trainer):
            callback.on_validation_end(trainer, learner)
        self._ends(trainer, learner)

    def _ends(self, trainer: Trainer, learner: Learner) -> bool:
        """Whether a callback of any process ends the run; if so, record why."""
        wants_end = self.ending or trainer.should_stop
        trainer.should_stop = trainer.strategy.reduce_boolean_decision(wants_end, all=False)
        if trainer.should_stop:
            reasons = (
                getattr(each, "stopping_reason_message", "") for each in self._others(trainer)
            )
            learner.record["ended"] = next(filter(None, reasons), "a callback ended it")
        return trainer.should_stop

    def _others(self, trainer: Trainer) -> list[Callback]:
        return [each for each in trainer.callbacks if each is not self]  # type: ignore[attr-defined]


def last_step(folder: Path) -> int:
    """Return the last completed step of a run, however it ended."""
    try:
        return int((folder / STEP_FILE).read_text())
    except (OSError, ValueError):
        return 0


def _of(module: LightningModule) -> Learner:
    if not isinstance(module, Learner):
        raise TypeError(f"a bug: {type(module).__name__} is not a Learner")
    return module


def _best(epochs: list[dict[str, Any]]) -> int:
    """Return the epoch with the lowest loss on the evaluation data, else on the training data."""
    losses: dict[int, float | None] = {
        each["epoch"]: each["loss"] if each["evaluation_loss"] is None else each["evaluation_loss"]
        for each in epochs
    }
    finite = {epoch: loss for epoch, loss in losses.items() if loss is not None}
    return min(finite, key=lambda epoch: finite[epoch], default=epochs[-1]["epoch"])


def _peak_bytes(device: torch.device) -> int:
    """Return this process's peak memory: of its GPU, else of the machine."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    try:
        (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    except (OSError, ValueError):  # not on Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(line) * 1024


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
