"""What is known before the load: the model and right answers; the master hands them to workers."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from loadtests.traffic.drawing import WorkloadError
from loadtests.traffic.reference_inputs import MIN_TOLD_APART, References, ask
from loadtests.traffic.target import Reply, Target, TargetError, exchange, learn
from loadtests.traffic.workloads import workload

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What users need to know before they start.

    Attributes:
        target: what they load.
        references: what the idle server answered.
        message: the same for `from_message` in another process; msgpack can carry it.
    """

    target: Target
    references: References
    message: Mapping[str, Any]


def prepare(url: str, model: str | None) -> Prepared:
    """Learn what the server has loaded, and the right answers to some items.

    Raises:
        TargetError: if it has not loaded the model, or does not answer as its manifest says.
    """
    target = learn(url, model)
    answers: list[tuple[bytes, int, bytes]] = []

    def send(path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        reply = exchange(url, "POST", path, headers, body)
        answers.append((_digest(path, body), reply.status, reply.body))
        return reply

    references = ask(target, send)
    level = logging.INFO if references.told_apart >= MIN_TOLD_APART else logging.WARNING
    log.log(level, "%s/%s: %s", target.model, target.version, references.told())
    told = {name: getattr(target, name) for name in ("url", "model", "version", "precision")}
    return Prepared(
        target, references, {**told, "manifest": dict(target.manifest), "answers": answers}
    )


def from_message(message: Mapping[str, Any]) -> Prepared:
    """What another process has prepared; the server, which may be busy by now, is not asked.

    Raises:
        TargetError: if this process would have asked for other items.
    """
    target = Target(**{name: value for name, value in message.items() if name != "answers"})
    answers = iter(message["answers"])

    def answered(path: str, _: Mapping[str, str], body: bytes) -> Reply:
        asked, status, answer = next(answers, (b"", 0, b""))
        if asked != _digest(path, body):
            raise TargetError(
                "this worker draws other items than its master asked for; give both the same "
                "release of the load tests and of numpy"
            )
        return Reply(status, {}, answer)

    return Prepared(target, ask(target, answered), message)


def obstacle(prepared: Prepared, name: str) -> str | None:
    """Why the model cannot take a workload; None where it can."""
    try:
        workload(name, prepared.target, 0, prepared.references)
    except WorkloadError as error:
        return str(error)
    return None


def _digest(path: str, body: bytes) -> bytes:
    return hashlib.sha256(path.encode() + b"\0" + body).digest()
