"""The calls of models that one process has begun."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from app.handlers.contract import CallReply, HandlerSpec, ModelCall
from app.handlers.failures import text_of
from app.handlers.job import Job, Run
from torchlane.handlers.frames import TO_HANDLER_BYTES, Frame, MalformedFrame

MAX_CALLS = 256  # at once; further ones are not read
MAX_CALL_BYTES = 64 << 20  # of their bodies
ABANDONED = CallReply(499, code="abandoned", error="the call was dropped, or its request has ended")


class Caller(Protocol):
    """What carries out the calls of models."""

    def call(
        self, job: Job | None, call: ModelCall, reply: Callable[[CallReply], None]
    ) -> Callable[[], None]:
        """Begin a call of a model, for a job or for `setup`; see `Plane.call`."""


class _Call:
    __slots__ = ("cancel", "run", "size")

    def __init__(self, size: int, run: Run | None) -> None:
        self.size = size
        self.run = run  # that it belongs to; None: to `setup`
        self.cancel: Callable[[], None] | None = None


class Calls:
    """Begins calls, and sends exactly one reply to each.

    Args:
        caller: carries them out.
        send: sends the reply to the call of a number: meta and body.
    """

    def __init__(self, caller: Caller, send: Callable[[int, object, bytes], None]) -> None:
        self._caller = caller
        self._send = send
        self._open: dict[int, _Call] = {}
        self._bytes = 0

    @property
    def are_many(self) -> bool:
        """Whether no further ones should be read for now."""
        return len(self._open) >= MAX_CALLS or self._bytes >= MAX_CALL_BYTES

    def begin(self, frame: Frame, run: Run | None) -> None:
        """Begin a call.

        Args:
            frame: as it came.
            run: that it says it belongs to; None if there is no such run.

        Raises:
            MalformedFrame: it is no call, or belongs to nothing.
        """
        number, meta = frame.number, frame.meta
        model, version, of = meta.get("model"), meta.get("version"), meta.get("of")
        if not (isinstance(model, str) and isinstance(version, int | None) and isinstance(of, int)):
            raise MalformedFrame("a call of no model")
        if of != 0 and run is None:
            raise MalformedFrame(f"a call for the unknown request {of}")
        if number in self._open:
            raise MalformedFrame(f"a second call {number}")
        call = self._open[number] = _Call(len(frame.body), run)
        self._bytes += call.size
        job = None if run is None else _payer(run, of)
        if run is not None and (job is None or job.is_settled):  # its cancellation is on the way
            self._reply(number, ABANDONED)
            return

        def reply(answer: CallReply) -> None:
            if self._open.get(number) is call:
                self._reply(number, answer)

        many = meta.get("many") is True
        media_type, accept = text_of(meta, "media_type"), text_of(meta, "accept")
        asked = ModelCall(
            model, version, many, media_type, accept, frame.body, meta.get("enveloped") is True
        )
        call.cancel = self._caller.call(job, asked, reply)  # may reply at once

    def drop(self, number: int) -> None:
        """End a call whose reply is not needed; harmless if its reply was sent."""
        call = self._open.get(number)
        if call is None:
            return
        if call.cancel is not None:
            call.cancel()
        if number in self._open:
            self._reply(number, ABANDONED)

    def drop_all_of(self, run: Run) -> None:
        """End the calls of a run, which has no caller any more."""
        for number in [number for number, call in self._open.items() if call.run is run]:
            self.drop(number)

    def cancel_all(self) -> None:
        """End all calls, because there is nobody to reply to."""
        calls, self._open = self._open, {}
        for call in calls.values():
            if call.cancel is not None:
                call.cancel()

    def _reply(self, number: int, answer: CallReply) -> None:
        self._bytes -= self._open.pop(number).size
        if len(answer.body) > TO_HANDLER_BYTES:
            answer = CallReply(
                413,
                code="payload_too_large",
                error=f"the answer has {len(answer.body)} bytes, a handler takes "
                f"{TO_HANDLER_BYTES}: call with fewer items",
            )
        meta: dict[str, object] = {"status": answer.status, "media_type": answer.media_type}
        if answer.output:
            meta["output"] = answer.output
        if answer.code:
            meta |= {"code": answer.code, "error": answer.error}
            if answer.retry_after_ms is not None:
                meta["retry_after_ms"] = answer.retry_after_ms
        self._send(number, meta, answer.body)


def not_named(spec: HandlerSpec, model: str) -> CallReply:
    """The reply to a call of a model that the handler does not name."""
    known = ", ".join(spec.models) or "none"
    return CallReply(
        403,
        code="forbidden",
        error=f"the handler {spec.name} does not name the model {model[:80]!r} in `models`, which "
        f"has {known}",
    )


def _payer(run: Run, number: int) -> Job | None:
    """The job that a call belongs to; of a batch the one that waits the longest."""
    waiting = [job for job in run.jobs.values() if not job.is_settled]
    job = run.jobs.get(number)
    return max(waiting, key=lambda each: each.request.deadline, default=job)
