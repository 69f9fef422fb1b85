"""The process of a handler: reads frames, runs the handler's code on asyncio, answers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, cast

from torchlane.handlers.answers import (
    ABANDONED,
    END_OF_STREAM,
    Answer,
    answer_of,
    failure_of,
    item_of,
    message_of,
    reason_of,
)
from torchlane.handlers.api import Request, Response
from torchlane.handlers.calls import CURRENT, Calls
from torchlane.handlers.code import Code, HandlerInvalid
from torchlane.handlers.encoding import JSON
from torchlane.handlers.frames import (
    ANSWER,
    CANCEL,
    FROM_HANDLER_BYTES,
    HELD,
    ITEM,
    READY,
    REPLY,
    REQUEST,
    TAKEN,
    TO_HANDLER,
    TO_HANDLER_BYTES,
    Decoder,
    Frame,
    MalformedFrame,
    head,
    meta_of,
)
from torchlane.handlers.launch import Settings
from torchlane.handlers.limits import limit_process
from torchlane.handlers.runs import Run
from torchlane.handlers.streams import Flow

HELD_S = 0.5  # after a cancellation: then the server is told that the code still runs
COPIED_BYTES = 64 << 10  # a body up to this is sent together with its head
FAILED_EXIT_CODE = 1


class Process(asyncio.Protocol):
    """The connection to the server, and what runs.

    Args:
        settings: of the handler.
    """

    def __init__(self, settings: Settings) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(settings.concurrency, "predict")
        self._decoder = Decoder(TO_HANDLER, TO_HANDLER_BYTES)
        self._runs: dict[int, Run] = {}
        self._next = Run()  # collects the requests of a batch
        self._transport: asyncio.Transport | None = None
        self._code: Code | None = None
        self._flows: dict[int, Flow] = {}  # by number of the request
        self.calls = Calls(self.send, self._is_open)
        self.stopped = self._loop.create_future()

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
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

    def send(self, kind: int, number: int, meta: dict[str, Any], body: bytes = b"") -> None:
        """Send a frame; on the event loop only.

        Raises:
            TypeError, ValueError: nothing was sent, because of the meta: see `meta_of`.
        """
        self._write(kind, number, meta_of(meta), body)

    def _write(self, kind: int, number: int, meta: bytes, body: bytes) -> None:
        transport = self._transport
        if transport is None:
            raise RuntimeError("bug: there is no connection")
        start = head(kind, number, meta, len(body))
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
        elif kind == TAKEN:
            if flow := self._flows.get(number):
                flow.taken()
        elif not self.stopped.done():
            self.stopped.set_result(None)

    def _begin(self, frame: Frame) -> None:
        run = self._next
        if frame.number in self._runs or frame.number in run.requests:
            raise MalformedFrame(f"a second request {frame.number}")
        request = run.requests[frame.number] = Request(frame.body, frame.meta)
        if self._code is not None:
            request._inputs = self._code.inputs
        if frame.meta.get("more"):
            return
        self._next = Run()
        run.streams = frame.meta.get("stream") is True
        self._start(run)

    def _cancel(self, number: int) -> None:
        run = self._runs.get(number)
        if run is None:  # its answer is on the way
            return
        run.cancelled.add(number)
        if not run.is_cancelled:
            return
        for each in run.requests:
            self.calls.cancel(each)
        if run.task is not None and self._code is not None and self._code.is_async:
            run.task.cancel()
        self._loop.call_later(HELD_S, self._tell_held, number, run)

    def _tell_held(self, number: int, run: Run) -> None:
        if self._runs.get(number) is run:
            self.send(HELD, number, {})

    def _is_open(self, number: int) -> bool:
        run = self._runs.get(number)
        return run is not None and not run.is_cancelled

    # The handler's code

    @property
    def about(self) -> dict[str, Any]:
        """What export records of the handler."""
        code = self._code
        about: dict[str, Any] = {"streams": True} if code is not None and code.yields else {}
        if code is not None and code.is_concurrent:
            about["concurrent"] = True
        if code is not None and code.schema is not None:
            about["schema"] = code.schema
        if code is not None and code.inputs:
            for part, tensors in (("inputs", code.inputs), ("outputs", code.outputs)):
                about[part] = {name: str(each) for name, each in tensors.items()}
        return about

    async def prepare(self, settings: Settings) -> None:
        """Import the handler and set it up.

        Raises:
            BaseException: of its code.
            HandlerInvalid: it is not what this process can run.
        """
        self._code = code = Code(settings, self.calls, self._threads)
        await code.set_up()

    def _start(self, run: Run) -> None:
        if self._code is None:
            raise MalformedFrame("a request before the handler was ready")
        for number in run.requests:
            self._runs[number] = run
        # The task is kept by the run once it has begun: one that is cancelled earlier never begins.
        task = self._loop.create_task(self._run(run, self._code))
        task.add_done_callback(lambda _: self._ended(run))

    async def _run(self, run: Run, code: Code) -> None:
        run.task = asyncio.current_task()
        arguments = {}
        for number, request in [*run.requests.items()]:
            try:
                if run.is_cancelled:
                    raise asyncio.CancelledError
                arguments[number] = code.argument(request)
            except BaseException as error:  # of users' code: ends this request alone
                self._answer(number, failure_of(error))
        if not arguments:
            return
        first, *others = arguments
        CURRENT.set(first)
        requests = [run.requests[number] for number in arguments]
        try:
            if code.yields:
                answers = [await self._stream(first, arguments[first], run, code)]
            else:
                answers = [*await code.answers([*arguments.values()], requests)]
        except BaseException as error:  # of users' code: ends its requests alone
            if others and not run.is_cancelled:
                run.following = run.split()
                for alone in run.following:
                    self._runs |= dict.fromkeys(alone.requests, alone)
                return
            answers = [failure_of(error)] * len(requests)
        for number, answer in zip(arguments, answers, strict=True):
            self._answer(number, answer)

    def _answer(self, number: int, answer: Answer) -> None:
        run = self._runs.pop(number)
        del run.requests[number]
        answer = ABANDONED if number in run.cancelled else answer
        self._write(ANSWER, number, answer.meta, answer.body)

    def _ended(self, run: Run) -> None:
        """Begin the next run of a batch that was split."""
        for number in [*run.requests]:  # users' code has cancelled the task before it began
            self._answer(number, failure_of(asyncio.CancelledError("its task was cancelled")))
        if run.following:
            following, *others = run.following
            following.following = others
            self._start(following)

    async def _stream(self, number: int, argument: Any, run: Run, code: Code) -> Answer:
        request = run.requests[number]
        flow = Flow(lambda item: self.send(ITEM, number, {}, item), request)
        self._flows[number] = flow
        try:
            async with aclosing(code.values(argument)) as values:
                collected, size = [], 0
                async for value in values:
                    if run.is_cancelled:  # which its code has ignored
                        raise asyncio.CancelledError
                    item = item_of(value, request, code.outputs)
                    if run.streams:
                        await flow.put(item)
                    else:
                        collected.append(item)
                        size += len(collected[-1]) + 1
                        if size > FROM_HANDLER_BYTES:  # before they take the process's memory
                            raise ValueError(f"all items have more than {FROM_HANDLER_BYTES} bytes")
                    await asyncio.sleep(0)  # its code may never wait, and others would
                if not run.streams:
                    every = Response(b"[%b]" % b",".join(collected), JSON)
                    return answer_of(every, request, code.outputs)
        finally:
            del self._flows[number]
        return END_OF_STREAM


async def _serve(settings: Settings) -> int:
    loop = asyncio.get_running_loop()
    end = socket.socket(fileno=settings.descriptor)
    end.setblocking(False)
    end.set_inheritable(False)
    _, process = await loop.create_unix_connection(lambda: Process(settings), sock=end)
    try:
        await process.prepare(settings)
    except HandlerInvalid as error:
        process.send(READY, 0, {"error": message_of(error)})
        return FAILED_EXIT_CODE
    except BaseException as error:  # of users' code
        process.send(READY, 0, {"error": reason_of(error)})
        raise
    process.send(READY, 0, process.about)
    await process.stopped
    return 0


def _event_loop() -> asyncio.AbstractEventLoop:
    """The loop of uvloop if the interpreter has it: a round trip takes half the time."""
    try:
        import uvloop  # noqa: PLC0415 # may be missing
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _result_of(loop: asyncio.AbstractEventLoop, task: asyncio.Task[int]) -> int:
    """Run a task to its end, also if tasks of users' code raise what stops an event loop."""
    while True:
        try:
            return loop.run_until_complete(task)
        except (SystemExit, KeyboardInterrupt):
            if task.done():
                raise


def main(text: str) -> None:
    """Run a handler until the server stops it.

    Args:
        text: the `Settings` as a JSON object.
    """
    settings = Settings(**json.loads(text))
    limit_process(settings.parent)
    loop = _event_loop()
    asyncio.set_event_loop(loop)
    code = _result_of(loop, loop.create_task(_serve(settings)))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that still run would be waited for
