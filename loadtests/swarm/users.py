"""The user that sends calls and judges their answers; subclasses choose the calls."""

from __future__ import annotations

import logging
import os
from typing import ClassVar

from locust import FastHttpUser, constant, task
from locust.exception import StopUser

from loadtests.swarm.prepared import Preparation
from loadtests.traffic.calls import LoadCall
from loadtests.traffic.drawing import WorkloadError
from loadtests.traffic.target import with_key
from loadtests.traffic.workloads import workload

TIMEOUT_S = 60.0
log = logging.getLogger(__name__)


class ModelUser(FastHttpUser):
    """Sends one workload, each call after the previous answer.

    Attributes:
        workload_name: one of `loadtests.traffic.workloads.WORKLOADS`.
        preparation: set before the users start; None if that failed, and then no user sends.
    """

    abstract = True
    wait_time = constant(0)
    network_timeout = TIMEOUT_S
    connection_timeout = TIMEOUT_S
    workload_name: ClassVar[str]
    preparation: ClassVar[Preparation | None] = None

    def on_start(self) -> None:
        """Draw a private seed; stop if the workload does not suit the model."""
        if self.preparation is None:
            raise StopUser
        # Not at import, because Locust forks its workers after the import.
        seed = int.from_bytes(os.urandom(8))
        try:
            self.draw = workload(
                self.workload_name, self.preparation.target, seed, self.preparation.references
            )
        except WorkloadError as error:
            log.warning("a user of %s does not load: %s", type(self).__name__, error)
            raise StopUser from error

    @task
    def send_next(self) -> None:
        """Send the next call of the workload; report a wrong answer as a failure."""
        try:
            call = self.draw()
        except WorkloadError as error:
            log.warning("a user of %s stops: %s", type(self).__name__, error)
            raise StopUser from error
        with self.client.post(
            call.path,
            data=call.body,  # type: ignore[arg-type]  # bytes go as they are; the annotation lacks them
            headers=with_key(call.headers),
            name=f"{_route(call)} ({type(self).__name__})",
            catch_response=True,
        ) as response:
            if response.status_code == 0:
                response.failure(f"no answer: {type(response.error).__name__}")
                return
            headers = {"content-type": response.headers.get("content-type", "")}
            problem = call.expected.problem(response.status_code, headers, response.content or b"")
            if problem is None:
                response.success()  # even for invalid input, whose correct answer is an error
            else:
                response.failure(problem)


def _route(call: LoadCall) -> str:
    return call.path.rpartition("/")[2] if call.items else "bad input"
