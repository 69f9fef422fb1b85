"""A caller's request to a handler, from its head to its answer, on both ways through the server."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from typing import ClassVar

import orjson

from app.access.guard import Caller
from app.api.answers import LARGE_BYTES, LargeAnswer, Pieces, in_parts
from app.api.calls import Call
from app.api.codings import Inflater
from app.api.endpoints import TOP_K, version_number
from app.api.errors import VARY, RawAnswer
from app.api.memo import Written
from app.api.multipart import FORM, read_files
from app.api.negotiation import MUST, NEVER
from app.api.outcomes import JSON_HEADERS
from app.api.payloads import check_length
from app.api.queries import parameters_of
from app.codecs.base import JSON, check_count
from app.engine.submission import Submission
from app.errors import (
    HandlerFailed,
    InvalidInput,
    ModelNotReady,
    PayloadTooLarge,
    TorchlaneError,
)
from app.handlers.contract import HandlerAnswer, HandlerJob, HandlerRequest
from app.registry.loaded_models import LoadedHandler
from app.types import Item

INPUTS = "inputs"
MAX_ACCEPT = 4096  # bytes of the header that a handler gets


class HandlerCall(Call):
    """See `Call`; the body goes to the handler as it came.

    Attributes:
        depth: how many handlers called each other to get here.
        who: the caller, for the calls of the handler.
    """

    __slots__ = (
        "_content_type",
        "_failures",
        "_handler",
        "_held",
        "_host_trace",
        "_jobs",
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
        self._held = 0
        self.depth = 0
        self.who: Caller | None = self._caller

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
            raise ModelNotReady("the handler was replaced while the request arrived; send it again")
        self._handler: LoadedHandler = handler
        self._model_id = handler.id
        self._changes = loaded.changes
        allowed = handler.settings.allowed_keys
        if allowed is not None and self.who is not None:
            self.who.may_call(handler.id.name, allowed)
        problem = handler.pool.problem() or loaded.missing(handler.manifest)
        if problem is not None:
            raise ModelNotReady(f"the handler {handler.id.name!r} is not ready: {problem}")

    def _begin(self, body: bytes, request_id: bytes) -> Submission:
        service = self.service
        if self._changes != service.loaded.changes:  # models changed while the body arrived
            self._find()
        submission = Submission(self.deadline, self._closed, request_id, self.arrived_at)
        self._submission = submission
        submission.expect()
        if self._coding is not None:
            inflater = Inflater(self._coding, body, service.limits.max_body_bytes)
            inflated = inflater.inflate_shortly()
            if inflated is None:
                service.offload.check_room(inflater.limit, self.deadline - service.engine.now())
                self._inflate(submission, inflater, request_id)
                return submission
            body = inflated
        self._submit(submission, body, request_id)
        return submission

    def _inflate(self, submission: Submission, inflater: Inflater, request_id: bytes) -> None:
        def done(made: list[Item] | bytes | Exception) -> None:
            if isinstance(made, Exception):
                submission.fail(made)
            elif isinstance(made, bytes) and not submission.is_settled:
                try:
                    self._submit(submission, made, request_id)
                except Exception as error:
                    submission.fail(error)

        self._task = self.service.offload.start(inflater.inflate, inflater.limit, done)

    def _submit(self, submission: Submission, body: bytes, request_id: bytes) -> None:
        """Give the body, or each of its items, to the processes of the handler.

        Raises:
            TorchlaneError: if any is rejected; then none is run.
        """
        service, handler = self.service, self._handler
        most = handler.manifest.limits.body_bytes
        if most is not None:
            check_length(len(body), most)
        bodies = [(self._content_type, body)]
        if self.endpoint.many:
            bodies = _items(body, self._content_type, service.limits.max_items)
        self._asks_for(len(bodies))
        self._is_decoded(len(bodies))
        self._held = service.bodies.hold(len(body), 0)  # until the handler has answered
        query = self._query()
        trace, traceparent = self.trace, self._host_trace
        if trace is not None and trace.trace_id:
            traceparent = f"00-{trace.trace_id}-{trace.span_id}-01"
        try:
            for media_type, each in bodies:
                request = HandlerRequest(
                    media_type,
                    self.accept[:MAX_ACCEPT].decode("latin-1"),
                    each,
                    request_id.decode("latin-1"),
                    traceparent,
                    query,
                    self.deadline,
                    self.depth,
                    self,
                )
                self._jobs.append(handler.pool.submit(request))
        except Exception:
            self._end()
            raise
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

    def _one_ended(self) -> None:
        self._waiting -= 1
        submission = self._submission
        if self._waiting == 0 and submission is not None:
            self._ended(submission)

    def _ended(self, submission: Submission) -> None:
        if not self.endpoint.many:
            try:
                self._jobs[0].result()
            except Exception as error:
                submission.fail(error)
                return
        submission.complete()

    def _closed(self, submission: Submission) -> None:
        self._end()
        then, submission.then = submission.then, None
        if then is not None:
            then()

    def _end(self) -> None:
        """Give back what the request holds; cancel what still runs for it."""
        self._drop_task()
        self.service.bodies.give_back(self._held)
        self._held = 0
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
        status, written = 200, (JSON_HEADERS, b"")
        if self.endpoint.many:
            written = JSON_HEADERS, self._batch()
        else:
            answer = self._jobs[0].result()
            media_type = (b"content-type", answer.media_type.encode("latin-1", "replace"))
            status, written = answer.status, ((media_type,), answer.body)
        self._jobs.clear()
        self._check_size(len(written[1]))
        if self.gzip != MUST and len(written[1]) <= LARGE_BYTES:
            return self._answered(status, written, answered)
        thread = None if self.gzip == NEVER else self._compress
        return LargeAnswer(
            self.service.turns,
            self._counts,
            _pieces(written),
            lambda headers, content: self._answered(status, (headers, content), answered),
            thread,
        )

    def _check_size(self, size: int) -> None:
        limit = self.service.limits.max_answer_bytes
        if size > limit:
            raise PayloadTooLarge(f"the handler's answer has {size} bytes, the limit is {limit}")
        if size > LARGE_BYTES:
            self._counts(2 * size)

    def _answered(self, status: int, written: Written, answered: float) -> RawAnswer:
        headers, content = written
        if self.counted:
            self._counts(len(content))
        if self.trace is not None:
            self.trace.answered, self.trace.encoded = answered, time.perf_counter()
        took = b"handler;dur=%.3f" % ((answered - self._decoded) * 1e3)
        length = (b"content-length", b"%d" % len(content))
        return status, [*headers, VARY, (b"server-timing", took), length], content

    def _batch(self) -> bytes:
        """The answers to all items, in the form of a batch prediction.

        Raises:
            TorchlaneError: if no item has an answer: that of the first.
        """
        places: list[object] = []
        errors: list[TorchlaneError] = []
        size = 0
        for job in self._jobs:
            try:
                answer = job.result()
            except HandlerFailed as error:
                errors.append(self._shown(error))
                places.append(_failed(errors[-1]))
            except TorchlaneError as error:
                errors.append(error)
                places.append(_failed(error))
            else:
                size += len(answer.body)
                self._check_size(size)
                places.append(_place(answer))
        if len(errors) == len(places):
            raise errors[0]
        made = self._handler.id
        return orjson.dumps({"model": made.name, "version": made.version, "predictions": places})

    def _shown(self, error: HandlerFailed) -> HandlerFailed:
        """The error, with the exception of the handler's code if a setting allows it."""
        if self.service.limits.show_model_errors and error.reason:
            error.details = ({"handler_error": error.reason},)
        return error


def _items(body: bytes, content_type: str, most: int) -> list[tuple[str, bytes]]:
    """The items of a batch, each as the media type and the body of a request of its own.

    Raises:
        InvalidInput: if the body is neither JSON nor a form with files.
        PayloadTooLarge: if there are too many.
    """
    media_type = content_type.partition(";")[0].strip().lower()
    if media_type == FORM:
        return [(each.content_type, each.data) for each in read_files(content_type, body, most)]
    if media_type not in ("", JSON):
        raise InvalidInput(
            'a batch for a handler is JSON, {"inputs": [...]}, or a form with files, got '
            f"{content_type[:80]!r}; send other bodies one by one to predict"
        )
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"the body is not JSON: {error}") from None
    values = document.get(INPUTS) if isinstance(document, dict) else None
    if not isinstance(values, list) or not values or len(document) > 1:
        raise InvalidInput(
            'the body of a batch must be {"inputs": [...]} with at least one item, each of them '
            "what the body of predict would be"
        )
    check_count(len(values), most)
    return [(JSON, orjson.dumps(each)) for each in values]


def _place(answer: HandlerAnswer) -> object:
    """What an answer is in a batch: its JSON, else its bytes in base64."""
    if answer.status >= 400:
        text = answer.body[:1000].decode("utf-8", "replace")
        return {"error": f"the handler answered {answer.status}: {text}", "code": "handler_status"}
    if answer.media_type.partition(";")[0].strip().lower() == JSON:
        return orjson.Fragment(answer.body)
    content = base64.b64encode(answer.body).decode("ascii")
    return {"media_type": answer.media_type, "base64": content}


def _failed(error: TorchlaneError) -> object:
    place: dict[str, object] = {"error": str(error), "code": error.code}
    if error.details:
        place["details"] = error.details
    return place


def _pieces(written: Written) -> Pieces:
    headers, content = written
    yield from in_parts(memoryview(content))
    return headers
