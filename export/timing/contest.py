"""Times the forms of a model against each other, one batch size after another."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from models.choices import Precision
from models.manifest import Manifest
from models.plan import MIN_GAIN, Form, Rounds
from models.runtimes.forms import Forward, sequence_of
from models.stopping import can_stop, is_conclusive, is_decided, remaining
from models.tensors import Arrays
from models.timing import QUIET, WARM_RUNS, Timing, TimingLimits, lasts_s, share_waited, take_turns

ROUNDS = 21
BUDGET_S = 2.0  # per batch size: a large model gets fewer rounds
EVEN_S = 5e-3  # from here on, every second size is enough
WARM_AGAIN = 1  # runs of a form that has run at another size

Key = tuple[Form, int]  # a form, and which of the golden shapes


@dataclass(slots=True)
class Contest:
    """The measurements on one device.

    Attributes:
        rounds: the mean over the shapes, per round.
        timings: batch size -> everything known about it.
    """

    manifest: Manifest
    rounds: dict[int, dict[Form, list[float]]] = field(default_factory=dict)
    timings: dict[int, Timing[Key]] = field(default_factory=dict)

    def add(self, size: int, timing: Timing[Key]) -> None:
        """Add the measurements of one more size."""
        self.rounds[size] = mean_over_shapes(timing.seconds)
        self.timings[size] = timing

    @property
    def warm_runs(self) -> int:
        """How often each form runs before it is timed at the next size."""
        return WARM_AGAIN if self.rounds else WARM_RUNS

    @property
    def is_slow(self) -> bool:
        """Whether the last size kept the kernels so busy that times grow evenly from there on."""
        return bool(self.rounds) and all(
            lasts_s(times) >= EVEN_S for times in self.rounds[max(self.rounds)].values()
        )

    @property
    def contenders(self) -> list[Form]:
        """The forms that may be the fastest of their precision at a size that is not yet timed."""
        last = max(self.rounds)
        by_precision = contests(self.manifest, {last: self.rounds[last]})
        return [form for rounds in by_precision.values() for form in remaining(rounds[last])]

    @property
    def kept_waiting(self) -> float | None:
        """The share of time in which other work kept it from running; None: almost none."""
        share = share_waited(self.timings.values())
        return round(share, 3) if share > QUIET else None

    @property
    def unsettled(self) -> tuple[int, ...]:
        """The sizes at which the machine was too busy to determine the fastest form."""
        return tuple(size for size in self.timings if not self._is_certain(size))

    def can_stop(self, size: int) -> bool:
        """Whether batches of `size` and larger ones cannot change the plan, or are too slow."""
        if not self.timings:
            return False
        last = max(self.rounds)
        shapes = 1 + max(shape for _, shape in self.timings[last].seconds)
        by_precision = contests(self.manifest, self.rounds)
        return can_stop(by_precision.values(), size, BUDGET_S / shapes, self.warm_runs)

    def _is_certain(self, size: int) -> bool:
        """Whether the load on the machine cannot have changed the conclusions.

        If most samples were disturbed, one form must have won every round.
        """
        timing = self.timings[size]
        if timing.is_quiet and timing.kept_waiting <= QUIET:
            return True
        by_precision = contests(self.manifest, {size: self.rounds[size]})
        results = [rounds[size] for rounds in by_precision.values()]
        if timing.is_quiet:
            return all(is_conclusive(times) for times in results)
        return all(is_decided(times, 1 + MIN_GAIN) for times in results)


def time_forms(
    manifest: Manifest,
    forms: Mapping[Form, Forward],
    batches: Sequence[Arrays],
    device: torch.device,
    threads: int,
    warm_runs: int,
) -> Timing[Key]:
    """Time every form on batches of one size.

    Args:
        manifest: of the forms' artifact.
        forms: the forms to time.
        batches: one of each shape.
        device: where the forms are loaded.
        threads: threads of a forward on the CPU.
        warm_runs: of each form before it is timed.

    Raises:
        Exception: what a form raises.
    """
    runs = {
        (form, shape): runner(call, batch, device)
        for form, call in forms.items()
        for shape, batch in enumerate(batches)
    }

    def enough(seconds: Mapping[Key, Sequence[float]]) -> bool:
        by_precision = contests(manifest, {1: mean_over_shapes(seconds)})
        return all(
            is_decided(times) for rounds in by_precision.values() for times in rounds.values()
        )

    on_cpu = threads if device.type == "cpu" else None
    return take_turns(
        runs, TimingLimits(ROUNDS, BUDGET_S, warm_runs), threads=on_cpu, enough=enough
    )


def contests(
    manifest: Manifest, rounds: Rounds
) -> dict[Precision, dict[int, dict[Form, list[float]]]]:
    """Return the competing forms by precision: their times by batch size."""
    by_precision: dict[Precision, dict[int, dict[Form, list[float]]]] = {}
    for size, by_form in rounds.items():
        for form, times in by_form.items():
            precision = manifest.variants[form.variant].precision
            by_precision.setdefault(precision, {}).setdefault(size, {})[form] = list(times)
    return by_precision


def runner(forward: Forward, batch: Arrays, device: torch.device) -> Callable[[], object]:
    """Return a function that runs one forward of a batch, from host memory to host memory."""
    tensors = [torch.from_numpy(np.array(array)) for array in batch.values()]

    def run() -> None:
        with torch.inference_mode():
            outputs = forward(*(tensor.to(device) for tensor in tensors))
            for output in sequence_of(outputs):
                output.cpu()

    return run


def mean_over_shapes(seconds: Mapping[Key, Sequence[float]]) -> dict[Form, list[float]]:
    """Return the mean of all shapes, per form and round."""
    by_form: dict[Form, list[Sequence[float]]] = {}
    for (form, _), times in seconds.items():
        by_form.setdefault(form, []).append(times)
    return {
        form: [statistics.fmean(shapes) for shapes in zip(*times, strict=True)]
        for form, times in by_form.items()
    }
