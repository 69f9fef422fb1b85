"""The sections of a report on the run that trained a model."""

from __future__ import annotations

from collections.abc import Iterator

from export.reports.sections import Column, Section
from models.manifest import TrainingRun


def training_sections(run: TrainingRun | None) -> Iterator[Section]:
    """Yield its data, settings and curves; nothing for an untrained model."""
    if run is None:
        return
    settings = ", ".join(f"{name} {value}" for name, value in run.hyperparameters.items())
    names = tuple(dict.fromkeys(name for epoch in run.epochs for name in epoch.metrics))
    titles = ("epoch", "loss", "evaluation loss", *names, "seconds")
    yield Section(
        title="Training",
        lines=(
            f"Data: {run.data}.",
            f"Settings: {settings}.",
            f"Commit: {run.git_commit or 'unknown: not trained in a git checkout'}.",
            f"These are the weights after epoch {run.kept}.",
            f"Peak memory of a process: {run.peak_bytes:,} bytes.",
        ),
        columns=tuple(Column(title, numeric=True) for title in titles),
        rows=tuple(
            (
                str(epoch.epoch),
                _number(epoch.loss),
                _number(epoch.evaluation_loss),
                *(_number(epoch.metrics.get(name)) for name in names),
                f"{epoch.seconds:.1f}",
            )
            for epoch in run.epochs
        ),
        epochs=run.epochs,
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
