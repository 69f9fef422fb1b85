"""Calls of models from a handler's code: numbers, replies, cancellation."""

from __future__ import annotations

import asyncio
import concurrent.futures
import re
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import Any

from torchlane.handlers.api import FIRST_ERROR, CallFailed
from torchlane.handlers.encoding import (
    Encoded,
    accept_of,
    decode_replies,
    decode_reply,
    encode_item,
    encode_items,
)
from torchlane.handlers.frames import (
    CALL,
    DROP,
    FROM_HANDLER_BYTES,
    Frame,
    MalformedFrame,
    next_number,
)

# The request whose code runs; 0: `setup`, and what it started.
CURRENT: ContextVar[int] = ContextVar("torchlane_request", default=0)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
MAX_VERSION = 2**63 - 1  # what every reader of JSON keeps exact
Send = Callable[[int, int, dict[str, Any], bytes], None]


class Calls:
    """The calls of a process; implements `Models`.

    Args:
        send: sends a frame: kind, number, meta, body.
        is_open: whether the request of a number still runs, and was not cancelled.
    """

    def __init__(self, send: Send, is_open: Callable[[int], bool]) -> None:
        self._send = send
        self._is_open = is_open
        self._loop = asyncio.get_running_loop()
        self._number = 0
        # By number, with the request that each belongs to.
        self._open: dict[int, tuple[asyncio.Future[Frame], int]] = {}

    async def call(self, model: str, x: Any, version: int | None, *, arrays: bool) -> Any:
        frame = await self._ask(model, version, encode_item(x), many=False, arrays=arrays)
        status, output = frame.meta.get("status", 200), frame.meta.get("output", "")
        return decode_reply(model, _encoded(frame), status, output)

    async def call_many(
        self, model: str, xs: Sequence[Any], version: int | None, *, arrays: bool
    ) -> list[Any]:
        frame = await self._ask(model, version, encode_items(xs), many=True, arrays=arrays)
        return decode_replies(model, _encoded(frame), len(xs), frame.meta.get("output", ""))

    def wait_for(self, call: Coroutine[Any, Any, Any]) -> Any:
        try:
            running: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is self._loop:
            call.close()
            raise RuntimeError("call_sync is for `def predict`; in `async def` use await self.call")
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError as error:
            # Not an Exception, so that code that catches those ends too.
            raise asyncio.CancelledError("the request was cancelled") from error

    def replied(self, frame: Frame) -> None:
        """Deliver a reply.

        Raises:
            MalformedFrame: nothing of this number was called.
        """
        call = self._open.pop(frame.number, None)
        if call is None:
            raise MalformedFrame(f"a reply to the unknown call {frame.number}")
        future, _ = call
        if not future.done():
            future.set_result(frame)

    def cancel(self, request: int) -> None:
        """Cancel the calls of a request."""
        for future, of in self._open.values():
            if of == request:
                future.cancel()

    async def _ask(
        self, model: str, version: int | None, encoded: Encoded, *, many: bool, arrays: bool
    ) -> Frame:
        of = CURRENT.get()
        if of and not self._is_open(of):
            raise asyncio.CancelledError("the request that this call belongs to has ended")
        if not isinstance(model, str):
            raise TypeError(f"the name of a model is a text, not {type(model).__name__}")
        if not NAME.fullmatch(model):
            raise ValueError(f"{model[:80]!r} is not the name of a model")
        if version is not None and (type(version) is not int or not 1 <= version <= MAX_VERSION):
            raise ValueError(f"a version is a whole number from 1, not {version!r:.80}")
        if len(encoded.body) > FROM_HANDLER_BYTES:
            raise ValueError(
                f"the call of {model} has {len(encoded.body)} bytes, the limit is "
                f"{FROM_HANDLER_BYTES}: send less at once"
            )
        fields = {
            "of": of,
            "model": model,
            "version": version,
            "many": many,
            "media_type": encoded.media_type,
            "accept": accept_of(arrays=arrays),
        }
        if encoded.is_enveloped:
            fields["enveloped"] = True
        self._number = number = self._free_number()
        self._send(CALL, number, fields, encoded.body)
        future: asyncio.Future[Frame] = self._loop.create_future()
        self._open[number] = future, of
        try:
            frame = await future
        except asyncio.CancelledError:
            if number in self._open:
                self._send(DROP, number, {}, b"")
            raise
        status = frame.meta.get("status", 500)
        if status >= FIRST_ERROR:
            raise CallFailed(
                model,
                status,
                frame.meta.get("code", "") or "http_error",
                frame.meta.get("error", "") or f"the call of {model} ended with status {status}",
                frame.meta.get("retry_after_ms"),
            )
        return frame

    def _free_number(self) -> int:
        number = next_number(self._number)
        while number in self._open:
            number = next_number(number)
        return number


def _encoded(frame: Frame) -> Encoded:
    return Encoded(frame.meta.get("media_type", ""), frame.body)
