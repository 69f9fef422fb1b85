"""What a stream may not be is noticed: a green run of its readers means something."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.aftermath import open_streams
from tests.chaos.checker import Checker
from tests.chaos.connection import ChaosAnswer
from tests.chaos.conversation import Conversation, Interruptions
from tests.chaos.lying import serving
from tests.chaos.relayed import JOURNAL, Acts
from tests.chaos.request import MEDIA_TYPES, Form, Request
from tests.chaos.streaming import ERROR
from tests.chaos.truth import HANDLERS, STREAMER, Item, Mark, answer
from tests.chaos.verdict import Verdict
from tests.chaos.versions import Versions

ITEMS = (Item(20), Item(21, Mark.ALONE), Item(22))
REQUEST = Request("a", "/models/feed/predict", b"", STREAMER, items=ITEMS, form="sse")
FAILS = replace(REQUEST, items=(*ITEMS[:2], Item(22, Mark.RAISES), Item(23)))


def row(item: Item, version: int = 1) -> dict[str, object]:
    called = answer("steady", 1, item) if item.mark is Mark.GOOD else []
    return {"row": answer(STREAMER, version, item) + called}


ROWS = [row(each) for each in ITEMS]


def failure(code: str = "handler_failed", request_id: str = "a") -> dict[str, str]:
    return {"error": "no", "code": code, "request_id": request_id}


def written(items: Sequence[Any], error: object = None, form: Form = "sse") -> bytes:
    texts = [json.dumps(each) for each in items]
    if form == "json":
        return f"[{', '.join(texts)}]".encode()
    if form == "ndjson":
        texts += [json.dumps(error)] if error else []
        return "".join(f"{each}\n" for each in texts).encode()
    events = [f"data: {each}\n\n" for each in texts]
    return "".join(events + ([f"{ERROR}{json.dumps(error)}\n\n"] if error else [])).encode()


def judged(
    request: Request, body: bytes, *, is_whole: bool = True, media_type: str | None = None
) -> Checker:
    checker = Checker(Versions(("steady", *HANDLERS)))
    headers = {"content-type": media_type or MEDIA_TYPES[request.form], "x-request-id": "a"}
    if request.form != "json":
        headers["transfer-encoding"] = "chunked"
    checker.judge(request, ChaosAnswer(200, headers, body, is_whole), time.monotonic())
    return checker


@pytest.mark.parametrize("form", ["sse", "ndjson", "json"])
def test_right_streams_are_right(form: Form) -> None:
    checker = judged(replace(REQUEST, form=form), written(ROWS, form=form))
    assert checker.counts == {Verdict.RIGHT: 1}
    assert checker.told.requests == {(200, "ok"): 1}
    assert checker.told.items == {(STREAMER, "ok"): 1, ("steady", "ok"): 2}


@pytest.mark.parametrize("form", ["sse", "ndjson"])
def test_a_failure_after_the_items_before_it_is_right(form: Form) -> None:
    body = written(ROWS[:2], failure(), form)
    checker = judged(replace(FAILS, form=form), body, is_whole=False)
    assert checker.counts == {Verdict.RIGHT: 1}
    assert checker.told.requests == {(200, "handler_failed"): 1}
    assert checker.told.items == {(STREAMER, "handler_failed"): 1, ("steady", "ok"): 1}


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        pytest.param(written(ROWS[:2]), Verdict.WRONG, id="the last is missing"),
        pytest.param(written([]), Verdict.WRONG, id="all are missing"),
        pytest.param(written([*ROWS, ROWS[2]]), Verdict.WRONG, id="one too many"),
        pytest.param(written([*ROWS[:2], ROWS[0]]), Verdict.MISDELIVERED, id="one twice"),
        pytest.param(written(ROWS[::-1]), Verdict.MISDELIVERED, id="another order"),
        pytest.param(
            written([{"row": answer(STREAMER, 1, ITEMS[0])}, *ROWS[1:]]),
            Verdict.WRONG,
            id="no row of the model",
        ),
        pytest.param(written([*ROWS[:2], {}]), Verdict.WRONG, id="no row"),
        pytest.param(
            written([*ROWS[:2], row(ITEMS[2], 2)]), Verdict.WRONG, id="a version that is none"
        ),
        pytest.param(written(ROWS, form="ndjson"), Verdict.WRONG, id="no events"),
        pytest.param(written(ROWS)[:-1], Verdict.WRONG, id="the last is not complete"),
        pytest.param(b"data: {\n\n", Verdict.WRONG, id="no JSON"),
        pytest.param(
            written(ROWS[:2], failure()), Verdict.WRONG, id="an end of the body behind an error"
        ),
    ],
)
def test_wrong_streams_are_noticed(body: bytes, verdict: Verdict) -> None:
    assert judged(REQUEST, body).counts == {verdict: 1}


def test_another_form_than_was_asked_is_noticed() -> None:
    checker = judged(REQUEST, written(ROWS), media_type=MEDIA_TYPES["ndjson"])
    assert checker.counts == {Verdict.WRONG: 1}
    other = replace(REQUEST, model="relay", items=ITEMS[:1])
    assert judged(other, written(ROWS)).counts == {Verdict.WRONG: 1}


@pytest.mark.parametrize(
    ("request_", "rows", "error", "verdict"),
    [
        pytest.param(REQUEST, ROWS[:2], failure(), Verdict.UNEXPECTED, id="a good item failed"),
        pytest.param(FAILS, ROWS[:1], failure(), Verdict.UNEXPECTED, id="an item is missing"),
        pytest.param(
            FAILS,
            [*ROWS[:2], {"row": answer(STREAMER, 1, FAILS.items[2])}],
            failure(),
            Verdict.WRONG,
            id="an item that fails has an answer",
        ),
        pytest.param(FAILS, ROWS[:2], failure("internal"), Verdict.UNEXPECTED, id="a bug inside"),
        pytest.param(
            FAILS, ROWS[:2], failure(request_id="b"), Verdict.MISDELIVERED, id="another's error"
        ),
        pytest.param(FAILS, [], failure(), Verdict.WRONG, id="no item, and not its status"),
    ],
)
def test_failures_that_are_not_deserved_are_noticed(
    request_: Request, rows: Sequence[object], error: object, verdict: Verdict
) -> None:
    assert judged(request_, written(rows, error), is_whole=False).counts == {verdict: 1}


@pytest.mark.parametrize(
    ("lines", "is_excused"),
    [
        ([{"pid": 7, "what": "EXITS"}], True),
        ([{"pid": 8, "what": "EXITS"}], False),
        ([{"pid": 7, "what": "RAISES"}], False),
    ],
)
def test_only_its_process_excuses_the_end_of_a_stream(
    tmp_path: Path, lines: Sequence[Mapping[str, object]], is_excused: bool
) -> None:
    acts = journal(tmp_path, {"pid": 7, "id": "a", "number": 20, "what": "begins"}, *lines)
    checker = judged(REQUEST, written(ROWS[:1], failure("handler_died")), is_whole=False)
    assert checker.offended == 0
    checker.settle_late({}, acts)
    assert checker.offended == (not is_excused)


def test_what_another_handler_does_excuses_no_wait(tmp_path: Path) -> None:
    for handler in HANDLERS:
        acts = journal(tmp_path, {"pid": 7, "what": "PAUSES", "handler": handler})
        checker = judged(REQUEST, written(ROWS[:1], failure("handler_timeout")), is_whole=False)
        checker.settle_late({}, acts)
        assert checker.offended == (handler != STREAMER)


def journal(folder: Path, *lines: Mapping[str, object]) -> Acts:
    known = {"handler": STREAMER, "at": time.monotonic(), "id": "other", "number": 99}
    path = folder / JOURNAL
    path.write_text("".join(f"{json.dumps({**known, **line})}\n" for line in lines))
    return Acts(path)


def test_a_generator_that_stays_open_is_noticed(tmp_path: Path) -> None:
    alive = [sys.executable, "-c", "input()", f"{STREAMER}/1"]
    with subprocess.Popen(alive, stdin=subprocess.PIPE) as process:
        opens, closes = ({"pid": process.pid, "what": what} for what in ("opens", "closes"))
        assert open_streams(journal(tmp_path, opens, closes)) == []
        (problem,) = open_streams(journal(tmp_path, opens, opens, closes))
        assert str(process.pid) in problem


# On the wire

HEAD = b"HTTP/1.1 200 OK\r\nx-request-id: a\r\ncontent-type: text/event-stream\r\n"
HEAD += b"transfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def taken(
    data: bytes, request: Request = REQUEST, *, closes: bool = True, killed: bool = False
) -> dict[Verdict, int]:
    """What becomes of a request whose answer is these bytes, which come one at a time."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for at in range(0, len(data), 7):
            writer.write(data[at : at + 7])
            await asyncio.sleep(0)
        if not closes:
            await asyncio.Event().wait()

    checker = Checker(Versions(("steady", *HANDLERS)))
    waits = Interruptions(0.3, killed_at=[time.monotonic()] if killed else [])
    async with serving(serve) as port:
        talk = Conversation(port, checker, waits, random.Random(0))
        connection = await talk.new()
        connection.send(request.bytes)
        await talk.take_the_only(connection, request, time.monotonic())
    return dict(checker.counts)


async def test_a_stream_must_have_its_end_or_an_error() -> None:
    whole = HEAD + chunk(written(ROWS[:1])) + chunk(written(ROWS[1:]))
    assert await taken(whole + END) == {Verdict.RIGHT: 1}
    assert await taken(whole) == {Verdict.LOST: 1}
    assert await taken(whole, killed=True) == {Verdict.CUT: 1}
    assert await taken(whole[:-20]) == {Verdict.LOST: 1}
    assert await taken(whole, closes=False) == {Verdict.LOST: 1}
    assert await taken(whole + END + b"HTTP", closes=False) == {
        Verdict.RIGHT: 1,
        Verdict.DOUBLED: 1,
    }


async def test_a_failed_stream_must_end_its_connection() -> None:
    failed = HEAD + chunk(written(ROWS[:2])) + chunk(written([], failure()))
    assert await taken(failed, FAILS) == {Verdict.RIGHT: 1}
    assert await taken(failed, FAILS, closes=False) == {Verdict.LOST: 1}
    assert await taken(failed + END, FAILS) == {Verdict.WRONG: 1}


async def test_what_is_no_chunk_is_noticed() -> None:
    assert Verdict.WRONG in await taken(HEAD + b"data: 1\r\n\r\n")
