"""The callbacks of Lightning that the options and the declaration ask for."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import (
    Checkpoint,
    EarlyStopping,
    GradientAccumulationScheduler,
    StochasticWeightAveraging,
)
from rich.console import Console

from export.errors import UsageError
from export.training import options
from export.training.watching import StepProfiler
from models.definitions.training import Training

UNUSABLE: dict[type[Callback], str] = {
    Checkpoint: "export keeps the checkpoints itself; see `keep` and --checkpoint-every",
    GradientAccumulationScheduler: "an update has equally many batches throughout a run; "
    "use --accumulate-grad-batches",
    StochasticWeightAveraging: "it averages over Lightning's epochs, of which a run has one",
}


def of_options(args: Namespace, console: Console) -> list[Callback]:
    """Return the callbacks that the options ask for."""
    callbacks: list[Callback] = [StepProfiler(args.out, console)] if args.profile else []
    if args.early_stopping is not None:
        usual = "min" if args.early_stopping in options.LOSSES else "max"
        settings = {"patience": args.patience, "min_delta": args.min_delta}
        settings = {name: each for name, each in settings.items() if each is not None}
        callbacks.append(EarlyStopping(args.early_stopping, mode=args.mode or usual, **settings))
    return callbacks


def of_declaration(how: Training, option_callbacks: Iterable[Callback]) -> list[Callback]:
    """Return the callbacks of the declaration.

    Args:
        how: the declaration.
        option_callbacks: the callbacks of the options.

    Raises:
        UsageError: if one of them is not a callback, or cannot work here.
    """
    value = how.callbacks() if how.callbacks else ()
    if not isinstance(value, Iterable):
        raise UsageError(f"`callbacks` must return a list of callbacks, got {_class(value)}")
    callbacks = list(value)
    for each in callbacks:
        if not isinstance(each, Callback):
            raise UsageError(
                f"`callbacks` must return callbacks of `lightning.pytorch`, got {_class(each)}"
            )
        for kind, why in UNUSABLE.items():
            if isinstance(each, kind):
                raise UsageError(f"`callbacks` cannot have {type(each).__name__}: {why}")
    stopping = {each.state_key for each in option_callbacks if isinstance(each, EarlyStopping)}
    if any(each.state_key in stopping for each in callbacks):
        raise UsageError(
            "--early-stopping: `callbacks` has an EarlyStopping for the same metric; omit one"
        )
    return callbacks


def _class(value: object) -> str:
    kind = type(value)
    return "None" if value is None else f"{kind.__module__}.{kind.__qualname__}"
