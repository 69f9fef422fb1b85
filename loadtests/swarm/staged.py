"""A shape as Locust takes it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from locust import LoadTestShape

from loadtests.swarm.shapes import Stage, asked_for, users_at

log = logging.getLogger(__name__)


class Staged(LoadTestShape):
    """Goes through stages and ends the run after the last.

    Args:
        stages: in order, at least one.
    """

    # Locust takes over every shape that it finds in a locustfile, asked for or not; this one is
    # chosen by `choose` instead.
    abstract = True

    def __init__(self, stages: Sequence[Stage]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._stages = tuple(stages)

    def tick(self) -> tuple[int, float] | None:
        """Locust asks every second: users and users per second, or None at the end."""
        users = users_at(self._stages, self.get_run_time())  # type: ignore[no-untyped-call]
        return None if users is None else (users, float(users))  # all of them are started at once


def choose(environment: Any) -> None:
    """Give Locust's environment the shape that was asked for; without one, leave it as it is."""
    options = environment.parsed_options
    stages = asked_for(options)
    if not stages:
        return
    shape = Staged(stages)
    shape.runner = environment.runner
    environment.shape_class = shape  # an instance, whatever its name says
    if options.num_users or options.run_time:
        log.warning("--users and --run-time do nothing beside --shape %s", options.shape)
    seconds = sum(stage.seconds for stage in stages)
    log.info("%s: up to %d users, %d s", options.shape, options.peak_users, seconds)
