"""Times the forms of a model against each other, one batch size after another."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from models.forms import Forward, intra_op_threads, sequence_of
from models.manifest import Manifest
from models.plan import MIN_GAIN, Form, Precision, Rounds, within_limits
from models.stopping import can_stop, is_decided, is_told
from models.tensors import Arrays
from models.timing import QUIET, Limits, Timing, lasts_s, share_waited, take_turns

ROUNDS = 21
BUDGET_S = 3.0  # per batch size: a large model gets fewer rounds
SHORT = Limits(rounds=11, budget_s=1.0)  # to determine whether a forward is short enough

Key = tuple[Form, int]  # a form, and which of the golden shapes


@dataclass(slots=True)
class Measured:
    """The measurements on one device.

    Attributes:
        manifest: of the measured artifact.
        rounds: the mean over the shapes, per round.
        slowest: the slowest shape, per round; the same forms, sizes and rounds.
        timings: batch size -> everything known about it.
    """

    manifest: Manifest
    rounds: dict[int, dict[Form, list[float]]] = field(default_factory=dict)
    slowest: dict[int, dict[Form, list[float]]] = field(default_factory=dict)
    timings: dict[int, Timing[Key]] = field(default_factory=dict)

    def add(self, size: int, timing: Timing[Key]) -> None:
        """Add the measurements of one more size."""
        self.rounds[size] = _over_shapes(timing.seconds, statistics.fmean)
        self.slowest[size] = _over_shapes(timing.seconds, max)
        self.timings[size] = timing

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
        if any(form in self._short(last) for form in holders_of_gil(self.manifest)):
            return False  # at a larger size it may hold the GIL too long
        shapes = 1 + max(shape for _, shape in self.timings[last].seconds)
        found = contests(self.manifest, self.rounds, self.slowest)
        return can_stop(found.values(), size, BUDGET_S / shapes)

    def _is_certain(self, size: int) -> bool:
        """Whether the load on the machine cannot have changed the conclusions.

        If most samples were disturbed, one form must have won every round, and none may have been
        found to hold the GIL too long.
        """
        timing = self.timings[size]
        if timing.is_quiet and timing.kept_waiting <= QUIET:
            return True
        by_precision = contests(
            self.manifest, {size: self.rounds[size]}, {size: self.slowest[size]}
        )
        found = [rounds[size] for rounds in by_precision.values()]
        if timing.is_quiet:
            return all(is_told(taken) for taken in found)
        return self._short(size).keys() == self.rounds[size].keys() and all(
            is_decided(taken, 1 + MIN_GAIN) for taken in found
        )

    def _short(self, size: int) -> dict[Form, list[float]]:
        """The forms that hold the GIL at this size no longer than allowed, or not at all."""
        return within_limits({size: self.slowest[size]}, holders_of_gil(self.manifest))[size]


def time_forms(
    manifest: Manifest,
    forms: Mapping[Form, Forward],
    batches: Sequence[Arrays],
    device: torch.device,
    threads: int,
) -> Timing[Key]:
    """Time every form on batches of one size.

    Args:
        manifest: of the forms' artifact.
        forms: the forms to time.
        batches: one of each shape.
        device: where the forms are loaded.
        threads: threads of a forward on the CPU.

    Raises:
        Exception: what a form raises.
    """
    runs = {
        (form, shape): runner(call, batch, device)
        for form, call in forms.items()
        for shape, batch in enumerate(batches)
    }

    def enough(seconds: Mapping[Key, Sequence[float]]) -> bool:
        means, slowest = _over_shapes(seconds, statistics.fmean), _over_shapes(seconds, max)
        found = contests(manifest, {1: means}, {1: slowest})
        return all(is_decided(taken) for rounds in found.values() for taken in rounds.values())

    on_cpu = threads if device.type == "cpu" else None
    return take_turns(runs, Limits(ROUNDS, BUDGET_S), threads=on_cpu, enough=enough)


def longest_forward(
    runs: Mapping[Hashable, Callable[[], object]], device: torch.device, threads: int
) -> tuple[float, bool]:
    """Return the seconds of a forward of the slowest shape, and whether they are certain.

    It is timed as a server runs it: on all cores it would wait for the slowest core, which is slow
    on a busy machine. The result is uncertain if most samples were disturbed.

    Args:
        runs: one forward of each shape.
        device: where they run.
        threads: threads of a forward on the CPU.
    """
    with intra_op_threads(threads):
        found = take_turns(runs, SHORT, threads=threads if device.type == "cpu" else None)
    return max(lasts_s(times) for times in found.seconds.values()), found.is_quiet


def contests(
    manifest: Manifest, rounds: Rounds, slowest: Rounds
) -> dict[Precision, dict[int, dict[Form, list[float]]]]:
    """Return the competing forms: those of one precision, at the sizes where they may run.

    A compiled form holds the GIL, so it may run only if its slowest shape stays within the limit,
    and never with a free dimension: a client's item may be larger than all golden ones.

    Args:
        manifest: of the measured artifact.
        rounds: a forward of the mean shape.
        slowest: a forward of the slowest shape; the same forms, sizes and rounds.
    """
    holds_gil = holders_of_gil(manifest)
    short = within_limits(slowest, holds_gil)
    fixed = all(spec.is_fixed for spec in manifest.inputs)
    found: dict[Precision, dict[int, dict[Form, list[float]]]] = {}
    for size, taken in rounds.items():
        for form, times in taken.items():
            precision = manifest.variants[form.variant].precision
            allowed = found.setdefault(precision, {}).setdefault(size, {})
            if form in short[size] and (fixed or form not in holds_gil):
                allowed[form] = list(times)
    return found


def holders_of_gil(manifest: Manifest) -> tuple[Form, ...]:
    """Return the forms that hold the GIL while they run."""
    return tuple(
        Form(variant=name)
        for name, variant in manifest.variants.items()
        if variant.format == "aotinductor"
    )


def runner(forward: Forward, batch: Arrays, device: torch.device) -> Callable[[], object]:
    """Return a function that runs one forward of a batch, from host memory to host memory."""
    tensors = [torch.from_numpy(np.array(array)) for array in batch.values()]

    def run() -> None:
        with torch.inference_mode():
            made = forward(*(tensor.to(device) for tensor in tensors))
            for output in sequence_of(made):
                output.cpu()

    return run


def _over_shapes(
    seconds: Mapping[Key, Sequence[float]], one_of: Callable[[Sequence[float]], float]
) -> dict[Form, list[float]]:
    """Combine all shapes into one number per form and round."""
    by_form: dict[Form, list[Sequence[float]]] = {}
    for (form, _), times in seconds.items():
        by_form.setdefault(form, []).append(times)
    return {
        form: [one_of(shapes) for shapes in zip(*times, strict=True)]
        for form, times in by_form.items()
    }
