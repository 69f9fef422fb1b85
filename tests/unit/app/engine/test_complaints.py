"""What the log has of items that a model fails on: whose they are, and never too much."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from app.engine.complaints import BURST, MOST_CHARACTERS, MOST_NAMED, Complaints, in_short
from app.errors import ModelError
from tests.unit.app.engine.harness import MODEL, POISON, Rig, fail_on_poison, item, rig, values


def ask(r: Rig, label: bytes, *numbers: float) -> asyncio.Task[list[float | str]]:
    submission = r.engine.submit(MODEL, [item(n) for n in numbers], 1e9, label=label)

    async def answer() -> list[float | str]:
        return values(await submission.answer())

    return asyncio.create_task(answer())


async def test_requests_of_failed_items_are_named() -> None:
    async with rig(scripts=(fail_on_poison,)) as r:
        with capture_logs() as logs:
            await asyncio.gather(
                ask(r, b"one", 1, POISON), ask(r, b"two", 2), ask(r, b"three", 3, POISON)
            )
    (queue,) = logs
    assert (queue["event"], queue["model"], queue["items"]) == ("model_failed", str(MODEL), 1)
    assert (queue["requests"], queue["request_ids"]) == (2, ["one", "three"])
    assert queue["first"] == "poisoned"


async def test_all_requests_are_counted_and_some_named() -> None:
    async with rig(scripts=(fail_on_poison,)) as r:
        with capture_logs() as logs:
            await asyncio.gather(*(ask(r, b"%d" % number, POISON) for number in range(17)))
    (queue,) = logs
    assert queue["requests"] == 17
    assert queue["request_ids"] == [str(number) for number in range(MOST_NAMED)]


def test_endless_bad_items_log_once_per_second() -> None:
    complaints, error = Complaints(), ModelError("no")
    with capture_logs() as logs:
        for step in range(1000):  # in a second
            complaints.write(MODEL, [error], lambda: [b"id"], 100 + step / 1000, list)
        complaints.write(MODEL, [error], lambda: [b"id"], 200, list)
    assert BURST + 1 <= len(logs) <= BURST + 2
    assert logs[-1]["batches_left_out"] == 1001 - len(logs)
    assert "batches_left_out" not in logs[0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a\n  b\x1b[31m\tc\x00\ud800", "a b [31m c"),
        ("", ""),
        ("h" * 500 + "m" * 10**7 + "the end", None),
    ],
)
def test_a_message_is_printable_and_short(text: str, told: str | None) -> None:
    short = in_short(ModelError(text))
    assert short.isprintable()
    assert len(short) <= MOST_CHARACTERS
    if told is None:
        assert short.startswith("hhh")
        assert short.endswith("the end")
    else:
        assert short == told
