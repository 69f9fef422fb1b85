"""`torchlane train`: combines a declaration, the options and Lightning's trainer."""

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
from export.pipeline import git_commit
from export.proving.prove import Stage
from export.training import callbacks, options, places
from export.training.keeper import PLOT, AtomicIO, Keeper, last_step
from export.training.learner import Learner
from export.training.options import Processes
from export.training.pipelines import PipelineLearner, PipelineStrategy
from export.training.watching import NanWatch
from models.definitions.definition import Definition
from models.definitions.loading import BrokenDefinition
from models.definitions.training import Diverged, Training
from models.system.command_lines import INTERRUPTED_EXIT_CODE, flag_of

RUN_OPTIONS = ("epochs", "batch", "seed")  # options that a resumed run cannot change
FLAGS = {"epochs": "epochs", "batch": "batch_size", "seed": "seed"}
FAILED = 1


def train(
    args: Namespace, definition: Definition, processes: Processes, stage: Stage, console: Console
) -> tuple[int, list[str]]:
    """Train a model; return the exit code and the lines to print at the end.

    Args:
        args: see `export.training.options.add_arguments`.
        definition: of the model, with a declared training.
        processes: the processes of the run.
        stage: see `export.pipeline.export`.
        console: for lines during the run.

    Raises:
        UsageError: if the run is impossible.
        ExportError: if it fails.
    """
    _quiet()
    last = args.out / LAST
    checkpoint = read(last, args.model) if _resumes(args, processes) else None
    how = _training_of(args, definition, checkpoint)
    try:
        with _locating_errors(args.model):
            learner = _learner(args, definition, how, processes)
            run_callbacks = callbacks.of_options(args, console)
            run_callbacks += callbacks.of_declaration(how, run_callbacks)
    except ValueError as error:
        raise UsageError(f"{args.model}: {error}") from error
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write to {args.out}: {error.strerror}") from error
    learner.record = {"model": args.model, "run": _record(args, how, processes, learner.module)}
    if _is_finished(checkpoint, learner, args, console):
        return 0, [f"{args.out} is finished"]
    keeper = Keeper(args.out, args.checkpoint_every, stage("training"))
    began_at = checkpoint[KEY]["step"] if checkpoint else 0
    watch: Any = NanWatch if args.detect_anomaly else contextlib.nullcontext
    try:
        trainer = _trainer(args, processes, learner, [*run_callbacks, keeper], began_at)
        with watch(), _locating_errors(args.model):
            trainer.fit(learner, ckpt_path=last if checkpoint else None, weights_only=True)
    except Diverged:
        if processes.rank:  # the first process says it for all
            return FAILED, []
        raise
    except (RuntimeError, ValueError, TypeError, OSError, MisconfigurationException) as error:
        raise ExportError(f"training {args.model} fails: {reason(error)}") from error
    if keeper.stopped:
        message = f"stopped after step {learner.step} of {learner.total}; --resume continues there"
        return INTERRUPTED_EXIT_CODE, [message]
    if not learner.is_over:
        message = f"stopped after step {learner.step} of {learner.total}"
        return FAILED, [f"{message}: a callback ended it before the first step of this start"]
    lines = [
        f"warning: the metric {name} was NaN or infinite in epoch {', '.join(map(str, epochs))}"
        for name, epochs in keeper.undefined_epochs.items()
    ]
    return 0, lines + _summary(args, learner)


@contextlib.contextmanager
def _locating_errors(model: str) -> Iterator[None]:
    """Add file and line to an error that comes from the user's own code, of any class."""
    try:
        yield
    except (ExportError, BrokenDefinition, Diverged):
        raise
    except Exception as error:
        description = places.describe(error)
        if description is None:
            raise
        raise ExportError(f"training {model} fails: {description}") from error


def _resumes(args: Namespace, processes: Processes) -> bool:
    """Whether the run resumes, as it always does under torchrun, which restarts lost processes."""
    return args.resume or (processes.elastic and (args.out / LAST).exists())


def _training_of(args: Namespace, definition: Definition, checkpoint: Any) -> Training:
    how = definition.training
    if how is None:
        raise RuntimeError("a bug: options.check rejects definitions without training")
    settings = {
        own: getattr(args, FLAGS.get(own, own)) for own in (*RUN_OPTIONS, *options.STEP_OPTIONS)
    }
    settings = {own: each for own, each in settings.items() if each is not None}
    if checkpoint is not None:
        began = checkpoint[KEY]["run"]["hyperparameters"]
        whole = "optimizer_states" in checkpoint and isinstance(checkpoint[KEY].get("step"), int)
        if not whole or not set(RUN_OPTIONS) <= began.keys():
            raise UsageError(f"{args.out / LAST} lacks data that --resume needs, like best.ckpt")
        for own, each in settings.items():
            if each != began.get(own):
                earlier = f"with {began[own]}" if own in began else "without it"
                raise UsageError(
                    f"{flag_of(FLAGS.get(own, own))} {each}: the run began {earlier}; "
                    "omit it, or start a new run"
                )
        settings = {
            own: began[own] for own in (*RUN_OPTIONS, *options.STEP_OPTIONS) if own in began
        }
    for own in options.STEP_OPTIONS:
        setattr(args, own, settings.pop(own, None))
    if checkpoint is not None and args.strategy == "pipeline":
        options.check_pipeline(args, definition, resumed=True)
    return dataclasses.replace(how, **settings)


def _learner(
    args: Namespace, definition: Definition, how: Training, processes: Processes
) -> Learner:
    module = definition.build()
    how.start(module)
    module.train()
    cut = options.stages_of(definition) if args.strategy == "pipeline" else None
    stages = len(options.check_stages(module, cut(module))) if cut else 1
    microbatches = options.check_split(args, how.batch, stages, processes)
    loading = {"num_workers": args.workers, "pin_memory": processes.kind == "cuda"}
    window = args.accumulate_grad_batches or 1
    evaluation = how.evaluation() if how.evaluation else None
    common = (module, how, how.data(), evaluation, loading, window)
    if cut is not None:
        return PipelineLearner(cut, microbatches, *common)
    if args.compile:
        how.part(module).compile()
    return Learner(*common)


def _optimizer(how: Training, module: nn.Module) -> dict[str, Any]:
    """Describe the optimizer: its class and its numbers, such as the learning rate."""
    optimizer = how.optimizer(how.part(module).parameters())
    numbers = {
        name: each for name, each in optimizer.defaults.items() if type(each) in (int, float)
    }
    return {"optimizer": type(optimizer).__name__, **numbers}


def _record(
    args: Namespace, how: Training, processes: Processes, module: nn.Module
) -> dict[str, Any]:
    """Return the manifest's record of the run, see `models.manifest.TrainingRun`."""
    step_options = {own: getattr(args, own) for own in options.STEP_OPTIONS}
    step_options = {own: each for own, each in step_options.items() if each is not None}
    hyperparameters = (
        {own: getattr(how, own) for own in RUN_OPTIONS}
        | step_options
        | {
            "strategy": args.strategy,
            "precision": args.precision,
            "processes": processes.world,
            "device": processes.kind,
            "deterministic": args.deterministic,
            **_optimizer(how, module),
            "torch": str(torch.__version__),
            "lightning": str(lightning.__version__),
        }
    )
    return {
        "data": how.source,
        "git_commit": git_commit(),
        "hyperparameters": hyperparameters,
        "kept": 0,
        "epochs": [],
    }


def _is_finished(checkpoint: Any, learner: Learner, args: Namespace, console: Console) -> bool:
    folder: Path = args.out
    step, steps = (
        (checkpoint[KEY]["step"], checkpoint[KEY].get("steps")) if checkpoint else (0, None)
    )
    if steps not in (None, learner.steps):
        raise UsageError(
            f"{folder}: the data has changed: it had {steps} steps per epoch and now has "
            f"{learner.steps}; start a new run"
        )
    if step >= learner.total or (checkpoint and "ended" in checkpoint[KEY]):
        return True
    repeats = max(0, last_step(folder) - step)
    if not step and not repeats:
        return False
    note = f"steps {step + 1} to {step + repeats} are repeated" if repeats else "none is repeated"
    line = Text(f"resumes after step {step} of {learner.total}; {note}")
    console.print(line, soft_wrap=True)
    return False


def _loggers(args: Namespace, began_at: int) -> list[Logger]:
    """Return the loggers; each start writes new CSV files and adds to what TensorBoard shows."""
    loggers: list[Logger] = []
    if "csv" in (args.logger or ()):
        loggers.append(CSVLogger(args.out, "csv"))
    if "tensorboard" in (args.logger or ()):
        loggers.append(TensorBoardLogger(args.out, "tensorboard", "", purge_step=began_at + 1))
    return loggers


def _trainer(
    args: Namespace,
    processes: Processes,
    learner: Learner,
    run_callbacks: Sequence[Callback],
    began_at: int,
) -> Trainer:
    strategy: Any = args.strategy
    if strategy == "pipeline" and isinstance(learner, PipelineLearner):
        strategy = PipelineStrategy(len(learner.cut(learner.module)))
    elif strategy == "fsdp":
        strategy = ModelParallelStrategy(processes.world, 1, save_distributed_checkpoint=False)
    elif strategy == "auto" and processes.world > 1:
        strategy = "ddp"
    return Trainer(
        accelerator=processes.kind,
        devices=processes.here,
        num_nodes=processes.machines,
        strategy=strategy,
        precision=args.precision,
        plugins=[AtomicIO()],
        callbacks=[*run_callbacks],
        max_epochs=1,  # all epochs are one sequence of batches
        check_val_every_n_epoch=None,  # callbacks see the validations of `Keeper`
        val_check_interval=learner.steps,
        accumulate_grad_batches=learner.window,
        gradient_clip_val=args.gradient_clip_val,
        gradient_clip_algorithm=args.gradient_clip_algorithm,
        deterministic=args.deterministic or None,
        detect_anomaly=args.detect_anomaly,
        use_distributed_sampler=False,
        limit_val_batches=0,
        logger=_loggers(args, began_at),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=args.out,
    )


def _summary(args: Namespace, learner: Learner) -> list[str]:
    run, end_reason, step = learner.record["run"], learner.record.get("ended"), learner.step
    export = f"export it: torchlane export {args.model} --checkpoint"
    within = [
        f"stopped after step {step} of {learner.total}: {end_reason}",
        f"written: {args.out / LAST} (step {step})",
    ]
    if not run["epochs"]:
        return [*within, f"{export} {args.out / LAST}"]
    last = run["epochs"][-1]
    means = {"loss": last["loss"], "evaluation loss": last["evaluation_loss"], **last["metrics"]}
    figures = ", ".join(f"{name} {each:.4f}" for name, each in means.items() if each is not None)
    epochs, peak = run["epochs"], run["peak_bytes"] / 1e6
    seconds = sum(each["seconds"] for each in epochs) / len(epochs)
    early = [f"stopped after epoch {last['epoch']} of {learner.how.epochs}: {end_reason}"]
    return [
        *(within if step % learner.steps else early if end_reason else []),
        f"epoch {last['epoch']}: {figures}",
        f"{seconds:.1f} s per epoch, at most {peak:,.0f} MB per process",
        f"written: {args.out / BEST} (epoch {run['kept']}), {args.out / PLOT}",
        f"{export} {args.out / BEST}",
    ]


def _quiet() -> None:
    """Silence Lightning's long explanations; export prints the important facts."""
    for name in ("lightning.pytorch", "lightning.fabric", "torch.distributed"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")
    warnings.filterwarnings("ignore", module="torch")
