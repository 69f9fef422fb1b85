"""The process of a handler: reads frames, runs the handler's code on asyncio, answers."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, cast

from torchlane.handlers.api import Handler, Request
from torchlane.handlers.calls import CURRENT, Calls
from torchlane.handlers.encoding import encode_answer
from torchlane.handlers.failures import meta_of, reason_of, where
from torchlane.handlers.frames import (
    ANSWER,
    CANCEL,
    FROM_HANDLER_BYTES,
    HELD,
    READY,
    REPLY,
    REQUEST,
    TO_HANDLER,
    TO_HANDLER_BYTES,
    Decoder,
    Frame,
    MalformedFrame,
    head,
)
from torchlane.handlers.launch import Settings
from torchlane.handlers.limits import limit_process

HELD_S = 0.5  # after a cancellation: then the server is told that the code still runs
COPIED_BYTES = 64 << 10  # a body up to this is sent together with its head
FAILED_EXIT_CODE = 1
META = json.JSONEncoder(separators=(",", ":"))


class HandlerInvalid(Exception):
    """The handler cannot be run."""


class Run:
    """Requests that run together: one of `predict`, or those of one `predict_batch`.

    Attributes:
        requests: by number.
        cancelled: numbers of requests that need no answer.
        task: that runs them; None before it has begun.
    """

    __slots__ = ("cancelled", "requests", "task")

    def __init__(self) -> None:
        self.requests: dict[int, Request] = {}
        self.cancelled: set[int] = set()
        self.task: asyncio.Task[None] | None = None


class Process(asyncio.Protocol):
    """The connection to the server, and what runs.

    Args:
        settings: of the handler.
    """

    def __init__(self, settings: Settings) -> None:
        self._loop = asyncio.get_running_loop()
        self._is_batch = settings.max_batch_size > 1
        self._threads = ThreadPoolExecutor(settings.concurrency, "predict")
        self._decoder = Decoder(TO_HANDLER, TO_HANDLER_BYTES)
        self._runs: dict[int, Run] = {}
        self._next = Run()  # collects the requests of a batch
        self._transport: asyncio.Transport | None = None
        self._predict: Callable[[Any], Any] = _not_ready
        self._is_async = False
        self.calls = Calls(self.send, self._is_open)
        self.stopped = self._loop.create_future()

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        try:
            for frame in self._decoder.feed(data):
                self._received(frame)
        except MalformedFrame as error:
            sys.stderr.write(f"torchlane: the server sent {error}; this process ends\n")
            sys.stderr.flush()
            os._exit(FAILED_EXIT_CODE)

    def connection_lost(self, error: Exception | None) -> None:
        """The server has gone: so does all that this process started."""
        os.killpg(0, signal.SIGKILL)

    def send(self, kind: int, number: int, meta: dict[str, Any], body: bytes) -> None:
        """Send a frame; on the event loop only."""
        transport = self._transport
        if transport is None:
            raise RuntimeError("bug: there is no connection")
        text = META.encode(meta).encode() if meta else b""
        start = head(kind, number, text, len(body))
        if len(body) <= COPIED_BYTES:
            transport.write(start + body)
        else:
            transport.write(start)
            transport.write(body)

    # What the server sends

    def _received(self, frame: Frame) -> None:
        kind, number = frame.kind, frame.number
        if kind == REQUEST:
            self._begin(frame)
        elif kind == REPLY:
            self.calls.replied(frame)
        elif kind == CANCEL:
            self._cancel(number)
        elif not self.stopped.done():
            self.stopped.set_result(None)

    def _begin(self, frame: Frame) -> None:
        run = self._next
        if frame.number in self._runs or frame.number in run.requests:
            raise MalformedFrame(f"a second request {frame.number}")
        run.requests[frame.number] = Request(frame.body, frame.meta)
        if frame.meta.get("more"):
            return
        self._next = Run()
        for number in run.requests:
            self._runs[number] = run
        self._loop.create_task(self._run(run))  # kept by `run` once it has begun

    def _cancel(self, number: int) -> None:
        run = self._runs.get(number)
        if run is None:  # its answer is on the way
            return
        run.cancelled.add(number)
        if len(run.cancelled) < len(run.requests) or run.task is None:
            return
        for each in run.requests:
            self.calls.cancel(each)
        if self._is_async:
            run.task.cancel()
        self._loop.call_later(HELD_S, self._tell_held, number, run)

    def _tell_held(self, number: int, run: Run) -> None:
        if self._runs.get(number) is run:
            self.send(HELD, number, {}, b"")

    def _is_open(self, number: int) -> bool:
        run = self._runs.get(number)
        return run is not None and len(run.cancelled) < len(run.requests)

    # The handler's code

    async def prepare(self, settings: Settings) -> None:
        """Import the handler and set it up.

        Raises:
            BaseException: of its code.
            HandlerInvalid: it is not what this process can run.
        """
        handler = _handler_of(settings)
        handler._served = self.calls
        name = "predict_batch" if self._is_batch else "predict"
        predict = getattr(handler, name, None)
        if not callable(predict):
            raise HandlerInvalid(
                f"{settings.entry} has no {name}; write `async def {name}(self, "
                f"{'requests' if self._is_batch else 'request'})`"
            )
        if inspect.isasyncgenfunction(predict) or inspect.isgeneratorfunction(predict):
            raise HandlerInvalid(f"{settings.entry}.{name} has a yield; return the answer instead")
        self._is_async = inspect.iscoroutinefunction(predict)
        self._predict = predict
        if inspect.iscoroutinefunction(handler.setup):
            await handler.setup()
        else:  # as `def predict`, it may block and use `call_sync`
            await self._loop.run_in_executor(self._threads, handler.setup)

    async def _run(self, run: Run) -> None:
        first, *_ = run.requests
        run.task = asyncio.current_task()
        CURRENT.set(first)
        requests: list[Request] = list(run.requests.values())
        argument = requests if self._is_batch else requests[0]
        try:
            if not self._is_open(first):  # a task that is cancelled before it begins never runs
                raise asyncio.CancelledError
            if self._is_async:
                answers = self._answers(await self._predict(argument), requests)
            else:
                context = copy_context()
                answers = await self._loop.run_in_executor(
                    self._threads, context.run, self._answers_in_thread, argument, requests
                )
        except BaseException as error:  # of users' code: ends their request alone
            answers = [(meta_of(error), b"")] * len(requests)
        for (number, _), (meta, body) in zip(run.requests.items(), answers, strict=True):
            del self._runs[number]
            is_read = number not in run.cancelled
            self.send(ANSWER, number, meta if is_read else {"code": "abandoned"}, body * is_read)

    def _answers_in_thread(self, argument: Any, requests: list[Request]) -> list[Answer]:
        try:
            return self._answers(self._predict(argument), requests)
        except BaseException as error:  # a future takes no StopIteration
            return [(meta_of(error), b"")] * len(requests)

    def _answers(self, returned: Any, requests: list[Request]) -> list[Answer]:
        if not self._is_batch:
            return [_answer(returned, requests[0])]
        if not isinstance(returned, list | tuple) or len(returned) != len(requests):
            size = f" of {len(returned)}" if isinstance(returned, list | tuple) else ""
            raise TypeError(
                f"predict_batch returns a list with one answer for each request: got a "
                f"{type(returned).__name__}{size} for {len(requests)} requests"
            )
        return [*map(_answer, returned, requests)]


Answer = tuple[dict[str, Any], bytes]  # meta and body


def _answer(value: Any, request: Request) -> Answer:
    """What `predict` returned, or an exception of `predict_batch`, as an answer."""
    try:
        if isinstance(value, BaseException):
            return meta_of(value), b""
        status, encoded = encode_answer(value, request.accept)
        if len(encoded.body) > FROM_HANDLER_BYTES:
            raise ValueError(
                f"the answer has {len(encoded.body)} bytes, the limit is {FROM_HANDLER_BYTES}"
            )
    except BaseException as error:  # of users' code: ends their request alone
        return meta_of(error), b""
    return {"status": status, "media_type": encoded.media_type}, encoded.body


def _not_ready(argument: Any) -> Any:
    raise RuntimeError("bug: a request came before the handler was ready")


def _handler_of(settings: Settings) -> Handler:
    """Import the module of a handler, and make its object."""
    sys.path.insert(0, settings.folder)
    module_name, _, name = settings.entry.partition(":")
    module = importlib.import_module(module_name)
    kind = getattr(module, name, None)
    if not (isinstance(kind, type) and issubclass(kind, Handler)):
        raise HandlerInvalid(f"{module_name} has no class {name} that is a torchlane.Handler")
    return kind()


async def _serve(settings: Settings) -> int:
    loop = asyncio.get_running_loop()
    end = socket.socket(fileno=settings.descriptor)
    end.setblocking(False)
    end.set_inheritable(False)
    _, process = await loop.create_unix_connection(lambda: Process(settings), sock=end)
    try:
        await process.prepare(settings)
    except BaseException as error:  # of users' code
        place = where(error)
        process.send(READY, 0, {"error": reason_of(error) + (f" ({place})" if place else "")}, b"")
        raise
    process.send(READY, 0, {}, b"")
    await process.stopped
    return 0


def _event_loop() -> asyncio.AbstractEventLoop:
    """The loop of uvloop if the interpreter has it: a round trip takes half the time."""
    try:
        import uvloop  # noqa: PLC0415 # may be missing
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def main(text: str) -> None:
    """Run a handler until the server stops it.

    Args:
        text: the `Settings` as a JSON object.
    """
    settings = Settings(**json.loads(text))
    limit_process(settings.parent)
    loop = _event_loop()
    asyncio.set_event_loop(loop)
    code = loop.run_until_complete(_serve(settings))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that still run would be waited for
