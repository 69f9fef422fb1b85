"""`python -m export train`: combines a declaration, the options and Lightning's trainer."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import warnings
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.strategies import ModelParallelStrategy
from rich.console import Console
from rich.text import Text
from torch import nn

from export.checkpoints import BEST, KEY, LAST, read
from export.errors import ExportError, UsageError, reason
from export.pipeline import Stage, git_commit
from export.training import callbacks, options, places
from export.training.keeper import PLOT, AtomicIO, Keeper, reached
from export.training.learner import Learner
from export.training.options import Processes
from export.training.pipelines import PipelineLearner, PipelineStrategy
from export.training.watching import NanWatch
from models.definitions.definition import Definition
from models.definitions.loading import BrokenDefinition
from models.definitions.training import Diverged, Training

OWN = ("epochs", "batch", "seed")  # options that a resumed run cannot change
FLAGS = {"epochs": "epochs", "batch": "batch_size", "seed": "seed"}
FAILED, INTERRUPTED = 1, 130  # the shell's convention for SIGINT


def train(
    parsed: Namespace, definition: Definition, found: Processes, stage: Stage, console: Console
) -> tuple[int, list[str]]:
    """Train a model; return the exit code and the lines to print at the end.

    Args:
        parsed: see `export.training.options.add_arguments`.
        definition: of the model, with a declared training.
        found: the processes of the run.
        stage: see `export.pipeline.export`.
        console: for lines during the run.

    Raises:
        UsageError: if the run is impossible.
        ExportError: if it fails.
    """
    _quiet()
    last = parsed.out / LAST
    resumed = read(last, parsed.model) if _resumes(parsed, found) else None
    how = _declared(parsed, definition, resumed)
    try:
        with _placed(parsed.model):
            learner = _learner(parsed, definition, how, found)
            asked = callbacks.of_options(parsed, console)
            asked += callbacks.declared(how, asked)
    except ValueError as error:
        raise UsageError(f"{parsed.model}: {error}") from error
    try:
        parsed.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {parsed.out}: {error.strerror}") from error
    learner.record = {"model": parsed.model, "run": _record(parsed, how, found, learner.module)}
    if _is_finished(resumed, learner, parsed, console):
        return 0, [f"{parsed.out} is finished"]
    keeper = Keeper(parsed.out, parsed.checkpoint_every, stage("training"))
    began_at = resumed[KEY]["step"] if resumed else 0
    watch: Any = NanWatch if parsed.detect_anomaly else contextlib.nullcontext
    try:
        trainer = _trainer(parsed, found, learner, [*asked, keeper], began_at)
        with watch(), _placed(parsed.model):
            trainer.fit(learner, ckpt_path=last if resumed else None, weights_only=True)
    except Diverged:
        if found.rank:  # the first process says it for all
            return FAILED, []
        raise
    except (RuntimeError, ValueError, TypeError, OSError, MisconfigurationException) as error:
        raise ExportError(f"training {parsed.model} fails: {reason(error)}") from error
    if keeper.stopped:
        told = f"stopped after step {learner.step} of {learner.total}; --resume continues there"
        return INTERRUPTED, [told]
    if not learner.is_over:
        told = f"stopped after step {learner.step} of {learner.total}"
        return FAILED, [f"{told}: a callback ended it before the first step of this start"]
    lines = [
        f"warning: the metric {name} was NaN or infinite in epoch {', '.join(map(str, epochs))}"
        for name, epochs in keeper.undefined.items()
    ]
    return 0, lines + _summary(parsed, learner)


@contextlib.contextmanager
def _placed(model: str) -> Iterator[None]:
    """Add file and line to an error that comes from the user's own code, of any class."""
    try:
        yield
    except (ExportError, BrokenDefinition, Diverged):
        raise
    except Exception as error:
        told = places.told(error)
        if told is None:
            raise
        raise ExportError(f"training {model} fails: {told}") from error


def _resumes(parsed: Namespace, found: Processes) -> bool:
    """Whether the run resumes, as it always does under torchrun, which restarts lost processes."""
    return parsed.resume or (found.elastic and (parsed.out / LAST).exists())


def _declared(parsed: Namespace, definition: Definition, resumed: Any) -> Training:
    how = definition.training
    if how is None:
        raise RuntimeError("a bug: options.check rejects definitions without training")
    wanted = {own: getattr(parsed, FLAGS.get(own, own)) for own in (*OWN, *options.KEPT)}
    wanted = {own: each for own, each in wanted.items() if each is not None}
    if resumed is not None:
        began = resumed[KEY]["run"]["hyperparameters"]
        whole = "optimizer_states" in resumed and isinstance(resumed[KEY].get("step"), int)
        if not whole or not set(OWN) <= began.keys():
            raise UsageError(f"{parsed.out / LAST} lacks data that --resume needs, like best.ckpt")
        for own, each in wanted.items():
            if each != began.get(own):
                told = f"with {began[own]}" if own in began else "without it"
                raise UsageError(
                    f"{options.flag(FLAGS.get(own, own))} {each}: the run began {told}; "
                    "omit it, or start a new run"
                )
        wanted = {own: began[own] for own in (*OWN, *options.KEPT) if own in began}
    for own in options.KEPT:
        setattr(parsed, own, wanted.pop(own, None))
    if resumed is not None and parsed.strategy == "pipeline":
        options.check_pipeline(parsed, definition, resumed=True)
    return dataclasses.replace(how, **wanted)


def _learner(parsed: Namespace, definition: Definition, how: Training, found: Processes) -> Learner:
    module = definition.build()
    how.start(module)
    module.train()
    cut = options.stages_of(definition) if parsed.strategy == "pipeline" else None
    stages = len(options.check_stages(module, cut(module))) if cut else 1
    microbatches = options.check_split(parsed, how.batch, stages, found)
    loading = {"num_workers": parsed.workers, "pin_memory": found.kind == "cuda"}
    window = parsed.accumulate_grad_batches or 1
    evaluation = how.evaluation() if how.evaluation else None
    shared = (module, how, how.data(), evaluation, loading, window)
    if cut is not None:
        return PipelineLearner(cut, microbatches, *shared)
    if parsed.compile:
        how.part(module).compile()
    return Learner(*shared)


def _optimizer(how: Training, module: nn.Module) -> dict[str, Any]:
    """Describe the optimizer: its class and its numbers, such as the learning rate."""
    made = how.optimizer(how.part(module).parameters())
    numbers = {name: each for name, each in made.defaults.items() if type(each) in (int, float)}
    return {"optimizer": type(made).__name__, **numbers}


def _record(
    parsed: Namespace, how: Training, found: Processes, module: nn.Module
) -> dict[str, Any]:
    """Return the manifest's record of the run, see `models.manifest.TrainingRun`."""
    kept = {own: getattr(parsed, own) for own in options.KEPT}
    kept = {own: each for own, each in kept.items() if each is not None}
    told = (
        {own: getattr(how, own) for own in OWN}
        | kept
        | {
            "strategy": parsed.strategy,
            "precision": parsed.precision,
            "processes": found.world,
            "device": found.kind,
            "deterministic": parsed.deterministic,
            **_optimizer(how, module),
            "torch": str(torch.__version__),
            "lightning": str(lightning.__version__),
        }
    )
    return {
        "data": how.source,
        "git_commit": git_commit(),
        "hyperparameters": told,
        "kept": 0,
        "epochs": [],
    }


def _is_finished(resumed: Any, learner: Learner, parsed: Namespace, console: Console) -> bool:
    folder: Path = parsed.out
    step, steps = (resumed[KEY]["step"], resumed[KEY].get("steps")) if resumed else (0, None)
    if steps not in (None, learner.steps):
        raise UsageError(
            f"{folder}: the data has changed: it had {steps} steps per epoch and now has "
            f"{learner.steps}; start a new run"
        )
    if step >= learner.total or (resumed and "ended" in resumed[KEY]):
        return True
    repeated = max(0, reached(folder) - step)
    if not step and not repeated:
        return False
    told = f"steps {step + 1} to {step + repeated} are repeated" if repeated else "none is repeated"
    line = Text(f"resumes after step {step} of {learner.total}; {told}")
    console.print(line, soft_wrap=True)
    return False


def _loggers(parsed: Namespace, began_at: int) -> list[Logger]:
    """Return the loggers; each start writes new CSV files and adds to what TensorBoard shows."""
    made: list[Logger] = []
    if "csv" in (parsed.logger or ()):
        made.append(CSVLogger(parsed.out, "csv"))
    if "tensorboard" in (parsed.logger or ()):
        made.append(TensorBoardLogger(parsed.out, "tensorboard", "", purge_step=began_at + 1))
    return made


def _trainer(
    parsed: Namespace,
    found: Processes,
    learner: Learner,
    asked: Sequence[Callback],
    began_at: int,
) -> Trainer:
    strategy: Any = parsed.strategy
    if strategy == "pipeline" and isinstance(learner, PipelineLearner):
        strategy = PipelineStrategy(len(learner.cut(learner.module)))
    elif strategy == "fsdp":
        strategy = ModelParallelStrategy(found.world, 1, save_distributed_checkpoint=False)
    elif strategy == "auto" and found.world > 1:
        strategy = "ddp"
    return Trainer(
        accelerator=found.kind,
        devices=found.here,
        num_nodes=found.machines,
        strategy=strategy,
        precision=parsed.precision,
        plugins=[AtomicIO()],
        callbacks=[*asked],
        max_epochs=1,  # all epochs are one sequence of batches
        check_val_every_n_epoch=None,  # callbacks see the validations of `Keeper`
        val_check_interval=learner.steps,
        accumulate_grad_batches=learner.window,
        gradient_clip_val=parsed.gradient_clip_val,
        gradient_clip_algorithm=parsed.gradient_clip_algorithm,
        deterministic=parsed.deterministic or None,
        detect_anomaly=parsed.detect_anomaly,
        use_distributed_sampler=False,
        limit_val_batches=0,
        logger=_loggers(parsed, began_at),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=parsed.out,
    )


def _summary(parsed: Namespace, learner: Learner) -> list[str]:
    run, ended, step = learner.record["run"], learner.record.get("ended"), learner.step
    export = f"export it: python -m export {parsed.model} --checkpoint"
    within = [
        f"stopped after step {step} of {learner.total}: {ended}",
        f"written: {parsed.out / LAST} (step {step})",
    ]
    if not run["epochs"]:
        return [*within, f"{export} {parsed.out / LAST}"]
    last = run["epochs"][-1]
    means = {"loss": last["loss"], "evaluation loss": last["evaluation_loss"], **last["metrics"]}
    told = ", ".join(f"{name} {each:.4f}" for name, each in means.items() if each is not None)
    epochs, peak = run["epochs"], run["peak_bytes"] / 1e6
    seconds = sum(each["seconds"] for each in epochs) / len(epochs)
    early = [f"stopped after epoch {last['epoch']} of {learner.how.epochs}: {ended}"]
    return [
        *(within if step % learner.steps else early if ended else []),
        f"epoch {last['epoch']}: {told}",
        f"{seconds:.1f} s per epoch, at most {peak:,.0f} MB per process",
        f"written: {parsed.out / BEST} (epoch {run['kept']}), {parsed.out / PLOT}",
        f"{export} {parsed.out / BEST}",
    ]


def _quiet() -> None:
    """Silence Lightning's long explanations; export prints the important facts."""
    for name in ("lightning.pytorch", "lightning.fabric", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.filterwarnings("ignore", module="torch")
