"""A caller's request to a handler, from its head to its answer, on both ways through the server."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import ClassVar, TypeVar

from app.access.guard import Caller
from app.api.answers import LARGE_BYTES, Headers, LargeAnswer, Piece, Pieces, in_parts
from app.api.calls import Call
from app.api.codings import Inflater
from app.api.endpoints import TOP_K, Endpoint, version_number
from app.api.errors import VARY, RawAnswer
from app.api.handlers.batches import check_written, items_of, pieces_of, written_bytes
from app.api.memo import Written
from app.api.negotiation import MUST, NEVER, check_accepted, preferred
from app.api.outcomes import JSON_HEADERS
from app.api.payloads import check_length
from app.api.queries import parameters_of
from app.api.service import Service
from app.api.streams import OFFERS, Stream
from app.codecs.base import JSON
from app.engine.submission import Submission
from app.errors import HandlerFailed, ModelNotReady, NotAcceptable, Overloaded, TorchlaneError
from app.handlers.contract import (
    FAILED,
    NO_CONTENT,
    HandlerAnswer,
    HandlerJob,
    HandlerRequest,
)
from app.registry.loaded_models import LoadedHandler
from app.registry.weights import digest_of

REPLACED = "the handler was replaced while the request arrived; send it again"
T = TypeVar("T")


class HandlerCall(Call):
    """See `Call`; the body goes to the handler as it came.

    Attributes:
        depth: how many handlers called each other to get here.
        who: the caller, for the calls of the handler.
    """

    __slots__ = (
        "_content_type",
        "_handler",
        "_held",
        "_host_trace",
        "_is_streaming",
        "_jobs",
        "_stop_work",
        "_user",
        "_waiting",
        "depth",
        "who",
    )

    takes_any_query: ClassVar[bool] = True  # the handler gets all

    def read_head(self, fields: Mapping[bytes, bytes]) -> None:
        self._content_type = fields.get(b"content-type", b"").decode("latin-1")
        self._host_trace = fields.get(b"traceparent", b"").decode("latin-1")
        self._jobs: list[HandlerJob] = []
        self._waiting = 0
        self._stop_work: Callable[[], None] = _nothing
        self._held = 0
        self._is_streaming = False  # its answer has begun
        self._user = b""  # what identifies the caller to weights, once the body is here
        self.depth = 0
        self.who: Caller | None = self._caller

    @property
    def is_nested(self) -> bool:
        """Whether a handler calls, which reads any answer."""
        return self.depth > 0

    def find_model(self) -> None:
        """Find the handler that the path names, and set the deadline by its settings.

        Raises:
            TorchlaneError: if it cannot work, or the caller may not call it.
        """
        self._find()
        self.limit_time(self._handler.settings.timeout_s)

    def _find(self) -> None:
        loaded, endpoint = self.service.loaded, self.endpoint
        handler = loaded.handler(endpoint.name, version_number(endpoint.version))
        if handler is None:
            raise ModelNotReady(REPLACED)
        problem = self._problem_of(handler)
        if loaded.has_weights and endpoint.version is None:
            split = loaded.split(handler.id.name)
            self.is_divided = split is not None
            for number in () if split is None else split.ranked(self._user):
                other = loaded.handler(handler.id.name, number)
                if other is not None and self._problem_of(other) is None:
                    handler, problem = other, None
                    break
        self._handler: LoadedHandler = handler
        self._model_id = handler.id
        self._changes = loaded.changes
        allowed = handler.settings.allowed_keys
        if allowed is not None and self.who is not None:
            self.who.may_call(handler.id.name, allowed)
        if problem is not None:
            raise ModelNotReady(f"the handler {handler.id.name!r} is not ready: {problem}")

    def _problem_of(self, handler: LoadedHandler) -> str | None:
        return handler.pool.problem() or self.service.loaded.missing(handler.manifest)

    def _find_again(self) -> None:
        """Find the handler again if models have changed in the meantime."""
        if self._changes != self.service.loaded.changes:
            self._find()

    def _begin(self, body: bytes, request_id: bytes) -> Submission:
        service = self.service
        if service.loaded.has_weights:
            self._choose_version(body)
        self._find_again()
        if self.endpoint.many and not self.is_nested:
            check_accepted(self.accept, JSON)
        if self._handler.manifest.streams and self.may_stream and not self.endpoint.many:
            media_type = preferred(self.accept, OFFERS)
            if media_type != JSON:
                if self.gzip == MUST:
                    raise NotAcceptable("a stream has no Content-Encoding; accept `identity`")
                self.stream = Stream(media_type, self._counts, self._taken, self._end)
        submission = Submission(self.deadline, self._closed, request_id, self.arrived_at)
        self._submission = submission
        submission.expect()
        try:
            if self._coding is None:
                self._take(submission, body)
                return submission
            inflater = Inflater(self._coding, body, service.limits.max_body_bytes)
            inflated = inflater.inflate_shortly()
            if inflated is None:
                self._work(submission, inflater.inflate, inflater.limit, self._take)
            else:
                self._take(submission, inflated)
        except BaseException:
            self._end()
            raise
        return submission

    def _choose_version(self, body: bytes) -> None:
        """Choose the version by weights; those of the models that it calls need the digest too."""
        if self.body_digest is None:
            self.body_digest = digest_of(body)
        split = self.service.loaded.split(self._handler.id.name)
        if split is not None and self.endpoint.version is None:
            self._user = self._user_of(split, body)
            self._find()

    def _work(
        self,
        submission: Submission,
        work: Callable[[], T],
        size: int,
        then: Callable[[Submission, T], None],
    ) -> None:
        """Work in a thread, then go on.

        Raises:
            Overloaded: if no thread has room.
        """

        def done(result: T | Exception) -> None:
            self._stop_work = _nothing
            if submission.is_settled:
                return
            try:
                if isinstance(result, Exception):
                    raise result
                then(submission, result)
            except Exception as error:
                submission.fail(error)

        offload = self.service.offload
        offload.check_room(size, self.deadline - self.service.engine.now())
        self._stop_work = offload.start(work, size, done).cancel

    def _take(self, submission: Submission, body: bytes) -> None:
        """Go on with the body, which is inflated.

        Raises:
            TorchlaneError: if it is rejected; nothing was run.
        """
        service, most = self.service, self._handler.manifest.limits.body_bytes
        if most is not None:
            check_length(len(body), most)
        try:
            self._held = service.bodies.hold(len(body), 0)  # until the handler has answered
        except Overloaded as error:
            told = "requests to handlers and unfinished bodies take too much memory; try again"
            raise Overloaded(told, error.retry_after_s) from error
        if not self.endpoint.many:
            self._submit(submission, [(self._content_type, body)])
            return
        work = partial(items_of, body, self._content_type, service.limits.max_items)
        if len(body) > LARGE_BYTES:
            self._work(submission, work, len(body), self._submit)
        else:
            self._submit(submission, work())

    def _submit(self, submission: Submission, bodies: Sequence[tuple[str, bytes]]) -> None:
        """Give the items to the processes of the handler.

        Raises:
            TorchlaneError: if they are rejected; none is run.
        """
        self._find_again()
        if self.stream is not None and not self._handler.manifest.streams:
            raise ModelNotReady(REPLACED)
        self._asks_for(len(bodies))
        self._is_decoded(len(bodies))
        handler, query, accept = self._handler, self._query(), ""
        if not (self.endpoint.many or self.is_nested or self.stream is not None):
            accept = self.accept.decode("latin-1")
        trace, traceparent = self.trace, self._host_trace
        if trace is not None and trace.trace_id:
            traceparent = f"00-{trace.trace_id}-{trace.span_id}-01"
        caller = self.who.name if self.who is not None and handler.manifest.models else ""
        request_id = submission.label.decode("latin-1")
        self._jobs = handler.pool.submit(
            [
                HandlerRequest(
                    media_type=media_type,
                    accept=accept,
                    body=body,
                    request_id=request_id,
                    traceparent=traceparent,
                    query=query,
                    deadline=self.deadline,
                    caller=caller,
                    is_item=self.endpoint.many,
                    on_item=None if self.stream is None else self._add,
                    depth=self.depth,
                    context=self,
                )
                for media_type, body in bodies
            ]
        )
        for job in self._jobs:
            if not job.is_settled:
                self._waiting += 1
                job.when_settled(self._one_ended)
        if self._waiting == 0:
            self._ended(submission)

    def _query(self) -> dict[str, list[str]]:
        query: dict[str, list[str]] = {}
        if self.endpoint.top_k is not None:  # the transport has read it
            query[TOP_K] = [str(self.endpoint.top_k)]
        for name, value in parameters_of(self.endpoint.query) if self.endpoint.query else ():
            query.setdefault(name, []).append(value)
        return query

    def _add(self, item: bytes) -> None:
        stream, submission = self.stream, self._submission
        if stream is None or submission is None:
            return
        try:
            check_written(len(item), self.service.limits.max_answer_bytes)
            stream.add(item)
        except TorchlaneError as error:
            for job in self._jobs:
                job.fail(error)
            return
        if not self._is_streaming:  # the answer begins
            self._is_streaming = True
            self._release_body()
            submission.complete()

    def _taken(self) -> None:
        for job in self._jobs:
            job.taken()

    def _one_ended(self) -> None:
        self._waiting -= 1
        submission = self._submission
        if self._waiting == 0 and submission is not None:
            self._ended(submission)

    def _ended(self, submission: Submission) -> None:
        error: Exception | None = None
        if not self.endpoint.many:
            try:
                self._jobs[0].result()
            except Exception as reason:
                error = reason
        if self._is_streaming and self.stream is not None:
            if isinstance(error, HandlerFailed):
                error = self._shown(error)
            elif error is not None and not isinstance(error, TorchlaneError):
                error = HandlerFailed(FAILED)
            self.stream.end(error)
        elif error is not None:
            submission.fail(error)
        else:
            if self.stream is not None:
                self.stream.end()
            submission.complete()

    def _closed(self, submission: Submission) -> None:
        if not self._is_streaming:
            self._end()
        then, submission.then = submission.then, None
        if then is not None:
            then()

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
        self._stop_work = _nothing
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
            return 200, [*self.stream.headers, *self._version_header()], b""
        headers: Headers = JSON_HEADERS
        pieces: Iterator[Piece]
        status = 200
        if self.endpoint.many:
            pieces, size = self._batch()
        else:
            answer = self._jobs[0].result()
            status, size = answer.status, len(answer.body)
            media_type = answer.media_type.encode("latin-1", "replace")
            headers = () if status == NO_CONTENT else ((b"content-type", media_type),)
            pieces = in_parts(memoryview(answer.body))
        self._jobs = []
        limit = self.service.limits.max_answer_bytes
        check_written(size, limit)
        if size > LARGE_BYTES:
            self._counts(2 * size)
        elif self.gzip != MUST or status == NO_CONTENT:
            return self._answered(status, (headers, b"".join(pieces)), answered)
        thread = None if self.gzip == NEVER else self._compress
        return LargeAnswer(
            self.service.turns,
            self._counts,
            _with_headers(pieces, headers),
            lambda headers, content: self._answered(status, (headers, content), answered),
            thread,
        )

    def _answered(self, status: int, written: Written, answered: float) -> RawAnswer:
        headers, content = written
        if self.counted:
            self._counts(len(content))
        if self.trace is not None:
            self.trace.answered, self.trace.encoded = answered, time.perf_counter()
        took = b"handler;dur=%.3f" % ((answered - self._decoded) * 1e3)
        fields = [*headers, VARY, (b"server-timing", took), *self._version_header()]
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


def model_or_handler(of_model: Callable[..., Call]) -> Callable[..., Call]:
    """What makes the calls of paths that name a model or a handler; see `Call` for the arguments.

    Args:
        of_model: makes those of models.
    """

    def made(
        service: Service,
        endpoint: Endpoint,
        fields: Mapping[bytes, bytes],
        caller: Caller | None = None,
    ) -> Call:
        loaded = service.loaded
        if loaded.has_handlers and (
            loaded.handler(endpoint.name, version_number(endpoint.version)) is not None
        ):
            return HandlerCall(service, endpoint, fields, caller)
        return of_model(service, endpoint, fields, caller)

    return made


def _with_headers(pieces: Iterator[Piece], headers: Headers) -> Pieces:
    yield from pieces
    return headers


def _nothing() -> None:
    """Stop nothing."""
