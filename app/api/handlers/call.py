"""A caller's request to a handler, from its head to its answer, on both ways through the server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, TypeVar

from app.access.guard import Caller
from app.api.answers import LARGE_BYTES
from app.api.calls import Call
from app.api.codings import Inflater
from app.api.endpoints import TOP_K, Endpoint, version_number
from app.api.handlers.batches import Item as HandlerBody
from app.api.handlers.batches import items_of
from app.api.handlers.streams import HandlerStreaming
from app.api.negotiation import check_accepted
from app.api.payloads import check_length
from app.api.queries import parameters_of
from app.api.service import Service
from app.codecs.base import JSON
from app.engine.submission import Submission
from app.errors import ModelNotReady, Overloaded
from app.handlers.contract import HandlerRequest
from app.registry.loaded_models import LoadedHandler
from app.registry.weights import digest_of
from models.timing import nothing

REPLACED = "the handler was replaced while the request arrived; send it again"
T = TypeVar("T")


class HandlerCall(HandlerStreaming):
    """See `Call`; the body goes to the handler as it came.

    Attributes:
        depth: how many handlers called each other to get here.
        parses: whether it takes long to read a large body.
        small_bytes: of a body that is read on the event loop all the same.
        tensors: whether the handler gets the inputs that it declares, and not the body.
        who: the caller, for the calls of the handler.
    """

    __slots__ = (
        "_content_type",
        "_host_trace",
        "_user",
        "_waiting",
        "depth",
        "parses",
        "small_bytes",
        "tensors",
        "who",
    )

    takes_any_query: ClassVar[bool] = True  # the handler gets all

    def read_head(self, fields: Mapping[bytes, bytes]) -> None:
        self._content_type = fields.get(b"content-type", b"").decode("latin-1")
        self._host_trace = fields.get(b"traceparent", b"").decode("latin-1")
        self._jobs = []
        self._waiting = 0
        self._stop_work = nothing
        self._held = 0
        self._is_streaming = False
        self._user = b""  # what identifies the caller to weights, once the body is here
        self.many = self.parses = self.endpoint.many
        self.small_bytes = LARGE_BYTES
        self.tensors = False
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
        self._handler = handler
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
        if self.many and not self.is_nested:
            check_accepted(self.accept, JSON)
        self._open_stream()
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
            self._stop_work = nothing
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
        most = self._handler.manifest.limits.body_bytes
        if most is not None:
            check_length(len(body), most)
        self._hold(len(body))
        if self.parses and len(body) > self.small_bytes:
            self._work(submission, partial(self._read, body), len(body), self._submit)
        else:
            self._submit(submission, self._read(body))

    def _hold(self, size: int) -> None:
        """Count the bytes that wait for the handler's answer.

        Raises:
            Overloaded: if those of all callers are too many.
        """
        try:
            self._held = self.service.bodies.hold(size, self._held)
        except Overloaded as error:
            told = "requests to handlers and unfinished bodies take too much memory; try again"
            raise Overloaded(told, error.retry_after_s) from error

    def _read(self, body: bytes) -> Sequence[HandlerBody]:
        """What a body has for the handler; called in a thread if it is large and `parses` is set.

        Raises:
            TorchlaneError: if the body is invalid.
        """
        if self.many:
            return items_of(body, self._content_type, self.service.limits.max_items)
        return [(self._content_type, body)]

    def _count(self, bodies: Sequence[HandlerBody]) -> int:
        """How many items the caller has sent."""
        return len(bodies)

    def _submit(self, submission: Submission, bodies: Sequence[HandlerBody]) -> None:
        """Give the items to the processes of the handler.

        Raises:
            TorchlaneError: if they are rejected; none is run.
        """
        self._find_again()
        if self.stream is not None and not self._handler.manifest.streams:
            raise ModelNotReady(REPLACED)
        count = self._count(bodies)
        self._count_items(count)
        handler, query, accept = self._handler, self._query(), ""
        if not (self.many or self.tensors or self.is_nested or self.stream is not None):
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
                    is_item=self.many,
                    on_item=None if self.stream is None else self._add,
                    depth=self.depth,
                    tensors=self.tensors,
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

    def _one_ended(self) -> None:
        self._waiting -= 1
        submission = self._submission
        if self._waiting == 0 and submission is not None:
            self._ended(submission)


def model_or_handler(
    of_model: Callable[..., Call],
    of_handler: Callable[..., Call] = HandlerCall,
    *,
    with_tensors: bool = False,
) -> Callable[..., Call]:
    """What makes the calls of paths that name a model or a handler; see `Call` for the arguments.

    Args:
        of_model: makes those of models.
        of_handler: makes those of handlers.
        with_tensors: whether only handlers that declare their tensors can be called.
    """

    def made(
        service: Service,
        endpoint: Endpoint,
        fields: Mapping[bytes, bytes],
        caller: Caller | None = None,
    ) -> Call:
        loaded = service.loaded
        if loaded.has_handlers:
            handler = loaded.handler(endpoint.name, version_number(endpoint.version))
            if handler is not None and not (with_tensors and handler.tensors is None):
                return of_handler(service, endpoint, fields, caller)
        return of_model(service, endpoint, fields, caller)

    return made
