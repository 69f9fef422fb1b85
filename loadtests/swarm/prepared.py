"""The model and its correct answers, prepared before the load; the master sends them to workers."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadtests.traffic.drawing import WorkloadError
from loadtests.traffic.reference_inputs import MIN_DISTINGUISHABLE, References, ask
from loadtests.traffic.target import Reply, Target, TargetError, exchange, learn
from loadtests.traffic.workloads import workload

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Preparation:
    """The data that users need before they start.

    Attributes:
        references: the idle server's answers.
        message: the same for `from_message` in another process, encodable by msgpack.
    """

    target: Target
    references: References
    message: Mapping[str, Any]


def prepare(url: str, model: str | None) -> Preparation:
    """Query the server for the loaded model and the correct answers to some items.

    Raises:
        TargetError: if it has not loaded the model, or contradicts its manifest.
    """
    target = learn(url, model)
    answers: list[tuple[bytes, int, bytes]] = []

    def send(path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        reply = exchange(url, "POST", path, headers, body)
        answers.append((_digest(path, body), reply.status, reply.body))
        return reply

    references = ask(target, send)
    level = (
        logging.INFO if references.distinguishable_share >= MIN_DISTINGUISHABLE else logging.WARNING
    )
    log.log(level, "%s/%s: %s", target.model, target.version, references.describe())
    fields = {name: getattr(target, name) for name in ("url", "model", "version", "precision")}
    return Preparation(
        target, references, {**fields, "manifest": dict(target.manifest), "answers": answers}
    )


def from_message(message: Mapping[str, Any]) -> Preparation:
    """Restore what another process prepared, without querying the server, which may be busy.

    Raises:
        TargetError: if this process would have queried other items.
    """
    target = Target(**{name: value for name, value in message.items() if name != "answers"})
    answers = iter(message["answers"])

    def replay(path: str, _: Mapping[str, str], body: bytes) -> Reply:
        digest, status, answer = next(answers, (b"", 0, b""))
        if digest != _digest(path, body):
            raise TargetError(
                "this worker draws other items than its master; use the same release of the load "
                "tests and of numpy on both"
            )
        return Reply(status, {}, answer)

    return Preparation(target, ask(target, replay), message)


def obstacle(preparation: Preparation, name: str) -> str | None:
    """Say why a workload does not suit the model; None if it does."""
    try:
        workload(name, preparation.target, 0, preparation.references)
    except WorkloadError as error:
        return str(error)
    return None


def _digest(path: str, body: bytes) -> bytes:
    return hashlib.sha256(path.encode() + b"\0" + body).digest()
