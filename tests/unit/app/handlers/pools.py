"""Pools with real processes, for tests: a file of a handler, and a data plane that is scripted."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent, indent
from typing import Any

import orjson

from app.handlers.contract import (
    CallReply,
    HandlerAnswer,
    HandlerJob,
    HandlerRequest,
    HandlerSpec,
    ModelCall,
)
from app.handlers.pool import ProcessPool

MB = 1 << 20


class ScriptedPlane:
    """Answers calls of models with what was sent, as a prediction, until told otherwise."""

    def __init__(self) -> None:
        self.calls: list[tuple[HandlerRequest | None, ModelCall]] = []
        self.cancelled: list[ModelCall] = []
        self.reply: CallReply | None = None
        self.holds = False  # whether calls stay unanswered

    def call(
        self, request: HandlerRequest | None, call: ModelCall, reply: Callable[[CallReply], None]
    ) -> Callable[[], None]:
        self.calls.append((request, call))
        if not self.holds:
            reply(self.reply or prediction(call))
        return lambda: self.cancelled.append(call)


def prediction(call: ModelCall) -> CallReply:
    """What a model answers that returns what it gets."""
    sent: Any = {"input": {"bytes": len(call.body)}}
    if call.media_type == "application/json":
        sent = orjson.loads(call.body)
    head: dict[str, Any] = {"model": call.model, "version": 1}
    if call.many:
        head |= {"failed": 0, "predictions": sent["inputs"]}
    else:
        head["prediction"] = sent["input"]
    return CallReply(200, "application/json", orjson.dumps(head))


@dataclass
class CountedMetrics:
    """Keeps what it was told."""

    codes: list[str] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    dropped: int = 0

    def ended(self, code: str, queue_s: float, run_s: float) -> None:
        assert queue_s >= 0 <= run_s
        self.codes.append(code)

    def restarted(self, cause: str) -> None:
        self.causes.append(cause)

    def dropped_output(self, lines: int) -> None:
        self.dropped += lines


@dataclass
class Served:
    """A pool with what it was made of."""

    pool: ProcessPool
    plane: ScriptedPlane
    metrics: CountedMetrics

    def submit(self, body: bytes = b"{}", timeout_s: float = 20.0, **fields: Any) -> HandlerJob:
        (job,) = self.pool.submit([request(body, timeout_s, **fields)])
        return job

    async def ask(self, body: bytes = b"{}", timeout_s: float = 20.0, **fields: Any) -> Any:
        """The answer's JSON."""
        answer = await settled(self.submit(body, timeout_s, **fields))
        assert answer.media_type == "application/json"
        return orjson.loads(answer.body)

    async def until(self, condition: Callable[[], object]) -> None:
        """Return when it holds."""
        async with asyncio.timeout(20):
            while not condition():
                await asyncio.sleep(0.01)


async def settled(job: HandlerJob) -> HandlerAnswer:
    """The answer of a job."""
    done = asyncio.Event()
    if not job.is_settled:
        job.when_settled(done.set)
        async with asyncio.timeout(30):
            await done.wait()
    return job.result()


def request(
    body: bytes = b"{}",
    timeout_s: float = 20.0,
    *,
    media_type: str = "application/json",
    accept: str = "",
    query: Mapping[str, Sequence[str]] | None = None,
    on_item: Callable[[bytes], None] | None = None,
) -> HandlerRequest:
    """A caller's request."""
    deadline = time.monotonic() + timeout_s
    return HandlerRequest(
        media_type, accept, body, "id-1", "", query or {}, deadline, on_item=on_item
    )


def write(folder: Path, methods: str, *, top: str = "") -> Path:
    """Write the module of a handler `Shop` with these methods."""
    body = indent(dedent(methods), "    ")
    text = f"import asyncio, os, sys, time\nimport torchlane\n{dedent(top)}\n"
    (folder / "shop.py").write_text(f"{text}\nclass Shop(torchlane.Handler):\n{body}")
    return folder


def spec_of(folder: Path, **fields: Any) -> HandlerSpec:
    """How to run it."""
    usual: dict[str, Any] = {
        "name": "shop",
        "version": 1,
        "folder": folder,
        "entry": "shop:Shop",
        "python": sys.executable,
        "models": ("double",),
        "max_batch_size": 1,
        "processes": 1,
        "concurrency": 4,
        "seconds": 30.0,
        "memory_bytes": 2000 * MB,
        "queue_limit": 100,
    }
    return HandlerSpec(**{**usual, **fields})


@asynccontextmanager
async def serving(
    folder: Path, methods: str, *, top: str = "", **fields: Any
) -> AsyncIterator[Served]:
    """A started pool."""
    plane, metrics = ScriptedPlane(), CountedMetrics()
    fields = {"streams": "yield" in methods} | fields
    pool = ProcessPool(spec_of(write(folder, methods, top=top), **fields), plane, metrics)
    await pool.start()
    try:
        yield Served(pool, plane, metrics)
    finally:
        await pool.close()
