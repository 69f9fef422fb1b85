"""The second half of a request to a handler, from its jobs to its answer; see `call.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from app.api.answers import LARGE_BYTES, Headers, LargeAnswer, Piece, Pieces, in_parts
from app.api.calls import Call
from app.api.errors import VARY, RawAnswer
from app.api.handlers.batches import check_written, pieces_of, written_bytes
from app.api.memo import Written
from app.api.negotiation import MUST, NEVER
from app.api.outcomes import JSON_HEADERS
from app.errors import HandlerFailed, TorchlaneError
from app.handlers.contract import NO_CONTENT, HandlerAnswer, HandlerJob
from app.registry.loaded_models import LoadedHandler
from models.timing import nothing


class HandlerAnswering(Call):
    """A call that jobs of a handler answer; `HandlerCall` reads its request."""

    __slots__ = ("_handler", "_held", "_jobs", "_stop_work", "many")
    _handler: LoadedHandler
    _held: int  # bytes of the body, until the handler has answered
    _jobs: list[HandlerJob]
    _stop_work: Callable[[], None]
    many: bool  # whether the body has items, each for a job of its own

    def sent(self) -> None:
        """See `Answering`; whatever still runs for the request is of no use any more."""
        super().sent()
        self._end()

    def _release_body(self) -> None:
        self.service.bodies.give_back(self._held)
        self._held = 0

    def _end(self) -> None:
        """Give back what the request holds; cancel what still runs for it."""
        self._stop_work()
        self._stop_work = nothing
        self._release_body()
        for job in self._jobs:
            if not job.is_settled:
                job.abandon()

    def answer(self) -> RawAnswer | LargeAnswer:
        """See `Answering`.

        Raises:
            TorchlaneError: the reason why there is no answer.
        """
        submission = self._submission
        if submission is None:
            raise RuntimeError("bug: a call was answered before it began")
        try:
            submission.result()
        except HandlerFailed as error:
            raise self._shown(error) from None
        answered = time.perf_counter()
        if self.stream is not None:
            if self.trace is not None:
                self.trace.answered = self.trace.encoded = answered
            return 200, [*self.stream.headers, *self.version_header()], b""
        status, pieces, size = self._content()
        self._jobs = []
        limit = self.service.limits.max_answer_bytes
        check_written(size, limit)
        if size > LARGE_BYTES:
            self._counts(2 * size)
        elif self.gzip != MUST or status == NO_CONTENT:
            return self._answered(status, _collected(pieces), answered)
        thread = None if self.gzip == NEVER else self._compress
        return LargeAnswer(
            self.service.turns,
            self._counts,
            pieces,
            lambda headers, content: self._answered(status, (headers, content), answered),
            thread,
        )

    def _content(self) -> tuple[int, Pieces, int]:
        """Status, body with its headers, and about how many bytes it has.

        Raises:
            TorchlaneError: the reason why there is no answer.
        """
        if self.many:
            pieces, size = self._batch()
            return 200, _with_headers(pieces, JSON_HEADERS), size
        answer = self._jobs[0].result()
        media_type = answer.media_type.encode("latin-1", "replace")
        headers = () if answer.status == NO_CONTENT else ((b"content-type", media_type),)
        body = in_parts(memoryview(answer.body))
        return answer.status, _with_headers(body, headers), len(answer.body)

    def _answered(self, status: int, written: Written, answered: float) -> RawAnswer:
        headers, content = written
        if self.counted:
            self._counts(len(content))
        if self.trace is not None:
            self.trace.answered, self.trace.encoded = answered, time.perf_counter()
        took = b"handler;dur=%.3f" % ((answered - self._decoded) * 1e3)
        fields = [*headers, VARY, (b"server-timing", took), *self.version_header()]
        if status != NO_CONTENT:  # RFC 9110, section 8.6: it has no Content-Length
            fields.append((b"content-length", b"%d" % len(content)))
        return status, fields, content

    def _batch(self) -> tuple[Iterator[bytes], int]:
        """The answers to all items, in the form of a batch prediction, and about how long it is.

        Raises:
            TorchlaneError: if no item has an answer: that of the first; or if it is too large.
        """
        places: list[HandlerAnswer | TorchlaneError] = []
        failed, size = 0, 0
        for job in self._jobs:
            try:
                places.append(job.result())
            except HandlerFailed as error:
                places.append(self._shown(error))
                failed += 1
            except TorchlaneError as error:
                places.append(error)
                failed += 1
        if failed == len(places) and isinstance(places[0], TorchlaneError):
            raise places[0]
        for place in places:
            size += written_bytes(place) if isinstance(place, HandlerAnswer) else 0
        return pieces_of(self._handler.id, places), size

    def _shown(self, error: HandlerFailed) -> HandlerFailed:
        """The error, with the exception of the handler's code if a setting allows it."""
        if self.service.limits.show_model_errors and error.reason:
            error.details = ({"handler_error": error.reason},)
        return error


def _with_headers(pieces: Iterator[Piece], headers: Headers) -> Pieces:
    yield from pieces
    return headers


def _collected(pieces: Pieces) -> Written:
    """The headers and the whole body."""
    parts: list[Piece] = []
    while True:
        try:
            parts.append(next(pieces))
        except StopIteration as end:
            headers: Headers = end.value
            return headers, b"".join(parts)
