"""The user that sends calls and judges their answers; which calls, its subclasses say."""

from __future__ import annotations

import itertools
import logging
import os
from dataclasses import dataclass
from typing import ClassVar

from locust import FastHttpUser, constant
from locust.exception import StopUser

from loadtests.traffic.anchors import Anchors, ask
from loadtests.traffic.calls import Call
from loadtests.traffic.drawing import WorkloadError
from loadtests.traffic.target import Target, learn
from loadtests.traffic.workloads import workload

SEEDS = itertools.count(int.from_bytes(os.urandom(8)))  # users of other processes draw others
TIMEOUT_S = 60.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What users need to know before they start."""

    target: Target
    anchors: Anchors


def prepare(url: str, model: str | None) -> Prepared:
    """Learn what the server has loaded, and the right answers to some items.

    Raises:
        TargetError: if it has not loaded the model, or does not answer as its manifest says.
    """
    target = learn(url, model)
    return Prepared(target, ask(target))


def obstacle(prepared: Prepared, name: str) -> str | None:
    """Why the model cannot take a workload, or None where it can."""
    try:
        workload(name, prepared.target, 0, prepared.anchors)
    except WorkloadError as error:
        return str(error)
    return None


class ModelUser(FastHttpUser):
    """Sends one workload, each call as soon as the one before it is answered.

    Attributes:
        workload_name: one of `loadtests.traffic.workloads.WORKLOADS`.
        prepared: set before the users start; None where that failed, and then nobody loads.
    """

    abstract = True
    wait_time = constant(0)
    network_timeout = TIMEOUT_S
    connection_timeout = TIMEOUT_S
    workload_name: ClassVar[str]
    prepared: ClassVar[Prepared | None] = None

    def on_start(self) -> None:
        """Draw from a seed of one's own; stop where the model does not take such calls."""
        if self.prepared is None:
            raise StopUser
        try:
            self.calls = workload(
                self.workload_name, self.prepared.target, next(SEEDS), self.prepared.anchors
            )
        except WorkloadError as error:
            log.warning("a user of %s does not load: %s", type(self).__name__, error)
            raise StopUser from error

    def send_next(self) -> None:
        """Send the next call of the workload; whatever is wrong with the answer is a failure."""
        try:
            call = self.calls.draw()
        except WorkloadError as error:
            log.warning("a user of %s stops: %s", type(self).__name__, error)
            raise StopUser from error
        with self.client.post(
            call.path,
            data=call.body,  # type: ignore[arg-type]  # bytes go as they are; the annotation lacks them
            headers=dict(call.headers),
            name=f"{_route(call)} ({type(self).__name__})",
            catch_response=True,
        ) as response:
            if response.status_code == 0:
                response.failure(f"no answer: {type(response.error).__name__}")
                return
            headers = {"content-type": response.headers.get("content-type", "")}
            problem = call.expected.problem(response.status_code, headers, response.content or b"")
            if problem is None:
                response.success()  # of bad input, whose right answer is an error, too
            else:
                response.failure(problem)


def _route(call: Call) -> str:
    return call.path.rpartition("/")[2] if call.items else "bad input"
