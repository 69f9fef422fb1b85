"""What the process of a handler sends: frames to the server, while requests and streams are open.

The bytes are frames as they are, or short descriptions of frames, so that changes of a byte reach
what is behind the framing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson

from app.errors import TorchlaneError
from app.handlers.contract import CallReply, HandlerRequest, HandlerSpec, ModelCall
from app.handlers.job import Job, Run
from app.handlers.process import HandlerProcess
from tests.fuzz.target import Finding, Target
from torchlane.handlers.frames import (
    ANSWER,
    CALL,
    DROP,
    HEAD,
    HELD,
    ITEM,
    PADDING,
    READY,
    REPLY,
    REQUEST,
    TO_HANDLER,
    Decoder,
    head,
)

DESCRIBED, STREAMS, HOLDS, BATCH, IN_PIECES = 1, 2, 4, 8, 16  # bits of the first byte
MAX_REASON = 5000  # characters, of why a process ends: it is logged
ONE_REQUEST, TWO_REQUESTS = 1, 2
KINDS = (READY, ANSWER, HELD, CALL, DROP, ITEM, REQUEST, 0)


class Written(asyncio.Transport):
    """The server's end of a connection: collects what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data = bytearray()
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += data

    def writelines(self, list_of_data: Any) -> None:
        self.data += b"".join(list_of_data)

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True

    def pause_reading(self) -> None:
        """Nothing is read here."""

    def resume_reading(self) -> None:
        """Nothing is read here."""


class Owner:
    """The pool of a process, and the owner of its jobs: counts what it is told."""

    def __init__(self, *, holds: bool) -> None:
        self._holds = holds
        self.calls = 0
        self.settled_jobs: list[Job] = []
        self.items: list[bytes] = []

    def call(
        self, job: Job | None, call: ModelCall, reply: Callable[[CallReply], None]
    ) -> Callable[[], None]:
        self.calls += 1
        answer = CallReply(200, "application/json", call.body)
        if not self._holds:
            reply(answer)
        return lambda: reply(answer)

    def settled(self, job: Job) -> None:
        self.settled_jobs.append(job)

    def taken(self, job: Job) -> None:
        """Items are never taken here."""

    def ready(self, process: HandlerProcess) -> None:
        """The jobs were given to the process already."""

    def resumed(self) -> None:
        """Nothing waits."""

    def free(self, process: HandlerProcess, run: Run) -> None:
        """Nothing waits."""

    def failed(self, job: Job, meta: Mapping[str, Any]) -> None:
        orjson.dumps(dict(meta))  # it is logged

    def ended(self, process: HandlerProcess, cause: str, reason: str) -> None:
        if not cause or not 0 < len(reason) <= MAX_REASON:
            raise Finding(f"it ends for {cause!r}: {reason[:200]!r}")

    def dropped_output(self, lines: int) -> None:
        """There is no output."""

    def look(self, now: float) -> None:
        """Nothing is due."""


def spec(*, streams: bool) -> HandlerSpec:
    return HandlerSpec(
        *("h", 1, Path(), "h:H", "python", ("m",)),
        max_batch_size=2,
        processes=1,
        concurrency=8,
        seconds=60,
        memory_bytes=1 << 30,
        queue_limit=8,
        streams=streams,
    )


def request(owner: Owner, *, streams: bool) -> HandlerRequest:
    return HandlerRequest(
        *("application/json", "", b"{}", "id", "", {}, time.monotonic() + 60),
        on_item=owner.items.append if streams else None,
    )


LOOP = asyncio.new_event_loop()
MEASURING = ThreadPoolExecutor(1)  # starts no thread before its first use


def case(data: bytes) -> None:
    """First the bits, then the frames."""
    if data:
        LOOP.run_until_complete(_case(data[0], data[1:]))


async def _case(bits: int, data: bytes) -> None:
    if bits & DESCRIBED:
        data = described(data)
    streams = bool(bits & STREAMS)
    owner, transport = Owner(holds=bool(bits & HOLDS)), Written()
    process = HandlerProcess(spec(streams=streams), 0, owner, MEASURING)
    connection = process._connection
    connection.connection_made(transport)
    count = TWO_REQUESTS if bits & BATCH else ONE_REQUEST
    jobs = [Job(request(owner, streams=streams), owner, time.monotonic()) for _ in range(count)]
    process.run(jobs, time.monotonic())
    size = 7 if bits & IN_PIECES else len(data) or 1
    for at in range(0, len(data), size):
        connection.data_received(data[at : at + size])
    if jobs[0].run is not None:  # its caller leaves
        jobs[0].abandon()
        process.left(jobs[0])
    open_calls = len(process._calls._open)
    process.end("stopped", "the case ends")
    process.exited(0)
    if sorted(map(id, owner.settled_jobs)) != sorted(map(id, jobs)):
        raise Finding(f"{len(owner.settled_jobs)} of {count} requests were settled")
    for job in jobs:
        try:
            answer = job.result()
        except TorchlaneError as error:
            orjson.dumps({"error": str(error), "code": error.code})
        else:
            answer.media_type.encode("latin-1")
    replies = 0
    for frame in Decoder(TO_HANDLER, 1 << 30).feed(bytes(transport.data)):
        replies += frame.kind == REPLY
    if replies + open_calls < owner.calls:
        raise Finding(f"{owner.calls} calls, {replies} replies")


def described(data: bytes) -> bytes:
    """Frames from descriptions: kind, number, bytes of meta, bytes of body; then both."""
    frames, at = bytearray(), 0
    while at + 4 <= len(data):
        kind, number, meta_bytes, body_bytes = data[at : at + 4]
        meta_at, body_at = at + 4, at + 4 + meta_bytes
        meta, body = data[meta_at:body_at], data[body_at : body_at + body_bytes]
        frames += head(KINDS[kind % len(KINDS)], number, meta, len(body)) + body
        at = body_at + body_bytes
    return bytes(frames)


def seeds() -> Iterator[bytes]:
    """Frames of each kind, whole and described, in each scene."""
    call = orjson.dumps({"of": 1, "model": "m", "version": None, "many": False, "media_type": ""})
    failed = orjson.dumps({"code": "handler_failed", "error": "it failed", "retry_after_ms": 5})
    frames: tuple[tuple[int, int, bytes, bytes], ...] = (
        (READY, 0, b"", b""),
        (READY, 0, b'{"streams":true}', b""),
        (READY, 0, b'{"error":"no module"}', b""),
        (CALL, 1, call, b"{}"),
        (CALL, 2, call, b""),
        (DROP, 1, b"", b""),
        (ITEM, 1, b"", b"{}"),
        (HELD, 1, b"", b""),
        (ANSWER, 1, b'{"status":200,"media_type":"text/plain"}', b"yes"),
        (ANSWER, 1, failed, b""),
        (ANSWER, 2, b'{"status":204}', b""),
    )
    for bits in range(IN_PIECES << 1):
        if bits & DESCRIBED:
            yield bytes((bits,)) + b"".join(
                bytes((KINDS.index(kind), number, len(meta), len(body))) + meta + body
                for kind, number, meta, body in frames
            )
        else:
            yield bytes((bits,)) + b"".join(
                head(kind, number, meta, len(body)) + body for kind, number, meta, body in frames
            )


WORDS = (
    *(b'"of":', b'"model":', b'"status":', b'"media_type":', b'"code":', b'"error":', b'"m"'),
    *(b'"streams":true', b'"retry_after_ms":', b'"details":[{', b'"handler_failed"', b"1e309"),
    *(b'"overloaded"', b'"version":', b'"many":true', b"null", b"-1", b"true", b"[[", b"\xff"),
    *(HEAD.pack(0, 0, 1, kind, PADDING) for kind in KINDS),
)
TARGET = Target(case, seeds, WORDS, max_bytes=2048)
