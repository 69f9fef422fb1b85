"""How many users there are at which time: `--shape ramp|spike|soak`; without, Locust's --users."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

RAMP_STEPS = 10
SPIKE_FLOOR = 10  # a spike rises from a tenth of its peak


@dataclass(frozen=True, slots=True)
class Size:
    """How large a shape is.

    Attributes:
        peak_users: the most users at once.
        step_s: how long a number of users is held, but for the soak.
        soak_s: how long a soak holds its peak.
    """

    peak_users: int
    step_s: int
    soak_s: int


@dataclass(frozen=True, slots=True)
class Stage:
    """So many users for so many seconds."""

    users: int
    seconds: int


def ramp(size: Size) -> list[Stage]:
    """Ever more users, in ten equal steps up to the peak: where does latency leave the ground?"""
    steps = min(RAMP_STEPS, size.peak_users)
    return [
        Stage(round(size.peak_users * step / steps), size.step_s) for step in range(1, steps + 1)
    ]


def spike(size: Size) -> list[Stage]:
    """A tenth of the peak, all of it at once, a tenth again: does the server come back?"""
    floor = max(1, size.peak_users // SPIKE_FLOOR)
    return [
        Stage(floor, size.step_s),
        Stage(size.peak_users, size.step_s),
        Stage(floor, 2 * size.step_s),
    ]


def soak(size: Size) -> list[Stage]:
    """Half of the peak for a step, then the peak for long: does anything grow or decay?"""
    return [Stage(math.ceil(size.peak_users / 2), size.step_s), Stage(size.peak_users, size.soak_s)]


SHAPES: Mapping[str, Callable[[Size], list[Stage]]] = {"ramp": ramp, "spike": spike, "soak": soak}


def users_at(stages: Sequence[Stage], run_time_s: float) -> int | None:
    """The users of the stage that is on after so many seconds; None: all are over."""
    end_s = 0
    for stage in stages:
        end_s += stage.seconds
        if run_time_s < end_s:
            return stage.users
    return None


def asked_for(options: argparse.Namespace) -> list[Stage]:
    """The stages that the command line asks for; none without `--shape`."""
    if options.shape is None:
        return []
    return SHAPES[options.shape](Size(options.peak_users, options.step_s, options.soak_s))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--shape` and its sizes, for Locust's command line."""
    group = parser.add_argument_group("Shapes")
    group.add_argument(
        "--shape", choices=[*SHAPES], help="let the number of users follow a shape, not --users"
    )
    group.add_argument(
        "--peak-users", type=positive, default=32, help="of --shape: the most at once"
    )
    group.add_argument(
        "--step-s", type=positive, default=10, help="of --shape: seconds of a number of users"
    )
    group.add_argument(
        "--soak-s", type=positive, default=600, help="of --shape soak: seconds at the peak"
    )


def positive(text: str) -> int:
    """A whole number from 1, of the command line.

    Raises:
        ArgumentTypeError: if it is none.
    """
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, got {text!r}")
    return int(text)
