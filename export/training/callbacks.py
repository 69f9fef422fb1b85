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
from export.training.watching import Profiler
from models.definitions.training import Training

UNUSABLE: dict[type[Callback], str] = {
    Checkpoint: "export keeps the checkpoints itself; see `keep` and --checkpoint-every",
    GradientAccumulationScheduler: "an update has equally many batches throughout a run; "
    "use --accumulate-grad-batches",
    StochasticWeightAveraging: "it averages over Lightning's epochs, of which a run has one",
}


def of_options(parsed: Namespace, console: Console) -> list[Callback]:
    """Return the callbacks that the options ask for."""
    made: list[Callback] = [Profiler(parsed.out, console)] if parsed.profile else []
    if parsed.early_stopping is not None:
        usual = "min" if parsed.early_stopping in options.LOSSES else "max"
        asked = {"patience": parsed.patience, "min_delta": parsed.min_delta}
        asked = {name: each for name, each in asked.items() if each is not None}
        made.append(EarlyStopping(parsed.early_stopping, mode=parsed.mode or usual, **asked))
    return made


def declared(how: Training, asked: Iterable[Callback]) -> list[Callback]:
    """Return the callbacks of the declaration.

    Args:
        how: the declaration.
        asked: the callbacks of the options.

    Raises:
        UsageError: if one of them is not a callback, or cannot work here.
    """
    found = how.callbacks() if how.callbacks else ()
    if not isinstance(found, Iterable):
        raise UsageError(f"`callbacks` must return a list of callbacks, got {_class(found)}")
    made = list(found)
    for each in made:
        if not isinstance(each, Callback):
            raise UsageError(
                f"`callbacks` must return callbacks of `lightning.pytorch`, got {_class(each)}"
            )
        for kind, told in UNUSABLE.items():
            if isinstance(each, kind):
                raise UsageError(f"`callbacks` cannot have {type(each).__name__}: {told}")
    stopping = {each.state_key for each in asked if isinstance(each, EarlyStopping)}
    if any(each.state_key in stopping for each in made):
        raise UsageError(
            "--early-stopping: `callbacks` has an EarlyStopping for the same metric; omit one"
        )
    return made


def _class(found: object) -> str:
    kind = type(found)
    return "None" if found is None else f"{kind.__module__}.{kind.__qualname__}"
