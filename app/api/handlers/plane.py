"""Calls that handlers make: native predictions, as if their callers had sent them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from app.access.guard import InnerCaller
from app.api.answers import LargeAnswer
from app.api.calls import Call
from app.api.errors import INTERNAL_MESSAGE, STATUS, RawAnswer
from app.api.handlers.call import HandlerCall
from app.api.service import Service
from app.codecs.base import NPY, NPZ
from app.engine.submission import Submission
from app.errors import DeadlineExceeded, InvalidInput, ModelNotFound, RetryLater, TorchlaneError
from app.handlers.contract import CallReply, HandlerRequest, ModelCall
from models.handlers import MAX_DEPTH
from models.rows import answer_outputs
from models.timing import nothing
from torchlane.handlers.encoding import ARRAYS, ENVELOPE

LOG = structlog.get_logger(__name__)
# The only output of a model as .npy, which takes a fifth of the time of .npz; the reply names it.
NAMELESS = f"{NPY}, {NPZ};q=0.9"
LATE = "the deadline of the handler's request has passed"


class ServedModels:
    """Implements `Plane` for one handler.

    Args:
        service: engine, models and limits.
        versions: the versions that the handler calls, of the models of which it names one.
    """

    def __init__(self, service: Service, versions: Mapping[str, int]) -> None:
        self._service = service
        self._versions = versions
        self._nobody = InnerCaller(None)

    def call(
        self, request: HandlerRequest | None, call: ModelCall, reply: Callable[[CallReply], None]
    ) -> Callable[[], None]:
        inner: Call | None = None
        try:
            inner = self._opened(request, call)
            submission = self._begun(inner, _body(inner, call), request)
        except Exception as error:
            if inner is not None:
                inner.sent()
            reply(_failure(error))
            return nothing
        return _Waiting(inner, submission, reply).cancel

    def _opened(self, request: HandlerRequest | None, call: ModelCall) -> Call:
        """The call of a model, or of another handler.

        Raises:
            TorchlaneError: if its head is rejected.
        """
        service = self._service
        version = call.version or self._versions.get(call.model)
        path = f"/models/{call.model}" + (f"/versions/{version}" if version else "")
        path += "/batch-predict" if call.many else "/predict"
        endpoint = service.dialects.endpoints.at(path.encode("utf-8", "replace"))
        if endpoint is None:
            raise ModelNotFound(f"{call.model[:80]!r} is not the name of a model")
        accept = NAMELESS if call.accept == ARRAYS else call.accept
        fields = {b"accept": accept.encode("latin-1", "replace")}
        if call.media_type:
            fields[b"content-type"] = call.media_type.encode("latin-1", "replace")
        outer = request.context if request is not None else None
        if request is not None:
            left_s = request.deadline - service.engine.now()
            if left_s <= 0:
                raise DeadlineExceeded(LATE)
            fields[b"x-torchlane-timeout-ms"] = b"%f" % (left_s * 1000)
        caller = self._nobody  # `setup` and examples have no caller
        if isinstance(outer, HandlerCall) and outer.who is not None:
            caller = InnerCaller(outer.who)
        inner: Call = endpoint.call(service, endpoint, fields, caller)
        inner.is_sent_always = True
        if isinstance(outer, HandlerCall):  # all its calls get versions for the same user
            inner.headers, inner.body_digest = outer.headers, outer.body_digest
        if isinstance(inner, HandlerCall):
            inner.depth = 1 + (request.depth if request is not None else 0)
            if inner.depth >= MAX_DEPTH:
                raise InvalidInput(f"more than {MAX_DEPTH} handlers call each other")
        return inner

    def _begun(self, inner: Call, body: bytes, request: HandlerRequest | None) -> Submission:
        engine = self._service.engine
        request_id = b"" if request is None else request.request_id.encode("latin-1", "replace")
        engine.takes_inner_calls = True  # also in a drain: the handler's request was accepted
        try:
            submission = inner.begin(body, request_id)
        finally:
            engine.takes_inner_calls = False
        outer = request.context if request is not None else None
        if isinstance(outer, HandlerCall) and outer.trace is not None:
            submission.follow(outer.trace)
        return submission


class _Waiting:
    """A call that waits for its outcomes, and then for its answer to be encoded."""

    __slots__ = ("_call", "_is_left", "_large", "_reply", "_submission")

    def __init__(
        self, call: Call, submission: Submission, reply: Callable[[CallReply], None]
    ) -> None:
        self._call = call
        self._submission = submission
        self._reply = reply
        self._is_left = False
        self._large: LargeAnswer | None = None
        if submission.is_settled:
            self._settled()
        else:
            submission.when_settled(self._settled)

    def cancel(self) -> None:
        """The reply is not needed; harmless if it was given."""
        self._is_left = True
        if self._large is not None:
            self._large.cancel()
        elif not self._submission.is_settled:
            self._submission.abandon()
        self._call.sent()

    def _settled(self) -> None:
        if self._is_left:
            return
        try:
            answer = self._call.answer()
        except Exception as error:
            self._end(error)
            return
        if isinstance(answer, LargeAnswer):
            self._large = answer
            answer.start(self._end)
        else:
            self._end(answer)

    def _end(self, answer: RawAnswer | Exception) -> None:
        self._large = None
        self._call.sent()
        if not self._is_left:
            self._is_left = True
            if isinstance(answer, Exception):
                self._reply(_failure(answer))
            else:
                self._reply(_reply(answer, self._call))


def _body(inner: Call, call: ModelCall) -> bytes:
    """The body of a call: a handler gets the value alone that a model gets as its input."""
    if call.is_enveloped and isinstance(inner, HandlerCall):
        return call.body[len(ENVELOPE) : -1]
    return call.body


def _reply(answer: RawAnswer, call: Call) -> CallReply:
    status, headers, content = answer
    media_type = dict(headers).get(b"content-type", b"").decode("latin-1")
    is_array = media_type == NPY and not isinstance(call, HandlerCall)
    output = answer_outputs(call.model.manifest.outputs)[0].name if is_array else ""
    return CallReply(status, media_type, content, output)


def _failure(error: Exception) -> CallReply:
    status = STATUS.get(type(error)) if isinstance(error, TorchlaneError) else None
    if not isinstance(error, TorchlaneError) or status is None:
        LOG.error("handler_call_failed", exc_info=error)
        return CallReply(500, code="internal", error=INTERNAL_MESSAGE)
    wait_ms = error.retry_after_s * 1000 if isinstance(error, RetryLater) else None
    return CallReply(status, code=error.code, error=str(error), retry_after_ms=wait_ms)
