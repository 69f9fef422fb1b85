"""The number of users over time: `--shape ramp|spike|soak`; without it, Locust's --users."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import TypeAlias

from models.system.command_lines import positive

RAMP_STEPS = 10
SPIKE_FLOOR = 10  # a spike rises from a tenth of its peak
Stages: TypeAlias = Sequence[tuple[int, int]]  # users and seconds


def stages_of(options: argparse.Namespace) -> Stages:
    """Return the stages that the command line selects; empty without `--shape`."""
    peak, step_s, soak_s = options.peak_users, options.step_s, options.soak_s
    steps, floor = min(RAMP_STEPS, peak), max(1, peak // SPIKE_FLOOR)
    shapes: dict[str | None, Stages] = {
        None: (),
        "ramp": [(round(peak * step / steps), step_s) for step in range(1, steps + 1)],
        "spike": [(floor, step_s), (peak, step_s), (floor, 2 * step_s)],
        "soak": [(math.ceil(peak / 2), step_s), (peak, soak_s)],
    }
    return shapes[options.shape]


def users_at(stages: Stages, run_time_s: float) -> int | None:
    """Return the users after this many seconds; None once all stages are over."""
    end_s = 0
    for users, seconds in stages:
        end_s += seconds
        if run_time_s < end_s:
            return users
    return None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Shapes")
    group.add_argument(
        "--shape",
        choices=("ramp", "spike", "soak"),
        help="vary the number of users by a shape instead of --users",
    )
    group.add_argument("--peak-users", type=positive, default=32, help="of --shape: most at once")
    group.add_argument(
        "--step-s", type=positive, default=10, help="of --shape: seconds per number of users"
    )
    group.add_argument(
        "--soak-s", type=positive, default=600, help="of --shape soak: seconds at the peak"
    )
