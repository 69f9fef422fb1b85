"""What the trace of a request knows of its batches when the request ends before they do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import pytest

from app.engine.submission import Submission
from app.telemetry.tracing import BatchRecord, RequestTrace, Token, Tracing
from app.types import Arrays
from tests.unit.app.engine.harness import DEFAULT, FAR, MODEL, Rig, item, rig, turns, until
from tests.unit.app.engine.launching import LaunchingFake


class Following:
    """A sink that follows every request."""

    def wants(self, trace: RequestTrace, fields: Mapping[bytes, bytes]) -> Token:
        return Token()

    def batch_ended(self, record: BatchRecord) -> None:
        pass

    def request_ended(self, trace: RequestTrace, token: Token) -> None:
        pass


@dataclass
class Device:
    """A device that computes two items at a time; each batch waits for the gate."""

    rig: Rig
    tracing: Tracing

    async def begin(self, *numbers: float) -> tuple[RequestTrace, Submission]:
        """A request for these numbers that a sink follows."""
        assert self.tracing.may_follow([], {})
        trace = self.tracing.begin(RequestTrace("POST", "/", "/", b"id", 1.0), [], {})
        assert trace is not None
        items = [item(number) for number in numbers]
        submission = self.rig.engine.submit(MODEL, items, self.rig.clock.now() + FAR)
        submission.follow(trace)
        await turns()
        return trace, submission

    def leave(self, trace: RequestTrace, submission: Submission) -> RequestTrace:
        submission.abandon()
        self.tracing.end(trace, 499, "abandoned")
        return trace

    async def computes(self, batches: int) -> None:
        await until(lambda: len(self.rig.backend.batches) == batches)
        await turns()


@pytest.fixture
async def device(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Device]:
    monkeypatch.setattr(DEFAULT, "backend", LaunchingFake)
    tracing = Tracing()
    tracing.add(Following())

    def one_at_a_time(_: Arrays) -> None:
        opened.backend.gate.clear()

    async with rig(scripts=(one_at_a_time,), max_batch_size=2, tracing=tracing) as opened:
        opened.backend.gate.clear()
        yield Device(opened, tracing)
        opened.backend.script = None


async def test_prepared_batch_begins_when_the_previous_ends(device: Device) -> None:
    before, _ = await device.begin(1, 2)
    await device.computes(1)
    prepared = await device.begin(3, 4)
    device.rig.backend.gate.set()
    await until(lambda: before.batches[0].ended > 0)
    await device.computes(2)
    left = device.leave(*prepared)
    assert [(run.record, run.ended) for run in left.runs] == [(left.batches[0], left.ended)]
    assert not left.left_queued


async def test_items_of_a_running_batch_are_not_queued(device: Device) -> None:
    first = await device.begin(1, 2)
    await device.computes(1)
    joined = device.leave(*await device.begin(1))
    assert (joined.batches, joined.left_queued) == ([], False)
    left = device.leave(*first)
    assert (len(left.runs), left.left_queued) == (1, False)


async def test_expired_request_is_marked_queued(device: Device) -> None:
    await device.begin(1, 2)
    await device.computes(1)
    trace, submission = await device.begin(3)
    device.rig.clock.advance(2 * FAR)
    await until(lambda: submission.is_settled)
    device.tracing.end(trace, 504, "deadline_exceeded")
    assert trace.left_queued


async def test_items_without_a_batch_are_queued(device: Device) -> None:
    many = await device.begin(1, 2, 3, 4, 5, 6)
    await device.computes(1)
    left = device.leave(*many)
    assert (len(left.runs), left.left_queued) == (1, True)
