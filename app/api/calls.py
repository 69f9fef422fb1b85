"""One prediction call from its head to its answer, on any transport: parse, submit, shape.

Nothing here waits: the transport reads the body and waits for the submission. A subclass reads and
writes each protocol: `native/predictions.py`, `oip/infer.py`, `torchserve/predictions.py`, and
subclasses of `text/body.py`, whose body names the model, and of `instances.py`, for rows.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar

from app.access.entries import PREDICT
from app.access.guard import Caller
from app.api.answering import Answering
from app.api.codings import Inflater, read_coding
from app.api.endpoints import Endpoint, version_number
from app.api.memo import Remembered
from app.api.negotiation import NEVER, check_accepted, gzip_of
from app.api.offload import Task, without_frames
from app.api.payloads import MAX_DIGITS, check_length
from app.api.service import Service
from app.codecs.base import JSON, Budget, TooLongForLoop
from app.engine.submission import Submission
from app.errors import InvalidInput, InvalidItem, TorchlaneError
from app.registry.loaded_models import LoadedModel
from app.registry.weights import KEY, Split, digest_of
from app.telemetry.tracing import RequestTrace
from app.types import Item, ModelId, Note

BODY_LATE = "the body did not arrive before the deadline; allow more time"
BODY_CUT = "the client disconnected while sending the body"


def admitted(service: Service, fields: Mapping[bytes, bytes]) -> Caller | None:
    """The caller of a prediction, which counts as one item from now on; None if all are free.

    Raises:
        Unauthorized, Forbidden: see `Guard.admit`.
        RateLimited: if one more item exceeds the caller's limit.
    """
    if not service.guard.enabled:
        return None
    caller = service.guard.admit(fields, PREDICT)
    caller.arrives()
    return caller


class Call(Answering):
    """A prediction request; a subclass for each protocol reads its items and writes its answer.

    Args:
        service: engine, models and limits.
        endpoint: the requested endpoint.
        fields: headers, with names in lower case.
        caller: the caller, if `admitted` has been called already.

    Attributes:
        accept: the caller's Accept header.
        arrived_at: when the head arrived, on the engine's clock.
        deadline: on the engine's clock.
        notes: the items' notes, once the items have been read; empty if none has one.
        may_stream: whether the transport can write an answer as it comes.
        headers: by which weights may choose the version; if a handler calls, its caller's.
        body_digest: what identifies its caller's body to weights; None: this call's body does.
        on_loop: whether the body is read on the event loop; else in a thread, after a first try.
        trace: the request's trace; None if it is not traced.

    Raises:
        TorchlaneError: if the head is rejected: its caller, model, size or a header.
    """

    __slots__ = (
        "_caller",
        "_changes",
        "_coding",
        "_is_left",
        "_lag_s",
        "_received",
        "_task",
        "_timeout_ms",
        "accept",
        "arrived_at",
        "body_digest",
        "deadline",
        "headers",
        "may_stream",
        "model",
        "on_loop",
    )

    takes_any_query: ClassVar[bool] = False  # parameters that the endpoint does not have

    def __init__(
        self,
        service: Service,
        endpoint: Endpoint,
        fields: Mapping[bytes, bytes],
        caller: Caller | None = None,
    ) -> None:
        self._arrived = self._decoded = time.perf_counter()
        self.service = service
        self.endpoint = endpoint
        if service.hosts.enabled and (caller is None or not caller.is_inner):
            service.hosts.check(fields)
        self._caller = caller
        if caller is None and service.guard.enabled:
            self._caller = admitted(service, fields)
        coding = fields.get(b"content-encoding")
        self._coding = None if coding is None else read_coding(coding)
        self._received = 0  # bytes of the body before its Content-Encoding was undone
        self.on_loop = True
        self.headers = fields
        self.body_digest: bytes | None = None
        self.is_divided = False
        self.accept = fields.get(b"accept", b"")
        codings = fields.get(b"accept-encoding")
        self.draws = False
        self.gzip = NEVER if codings is None else gzip_of(codings)
        self.read_head(fields)
        self._timeout_ms = fields.get(b"x-torchlane-timeout-ms")
        self._model_id: ModelId | None = None
        self._items = 0
        self.arrived_at = service.engine.now()
        self.find_model()
        self._lag_s = service.engine.read_lag.seconds()
        content_length = fields.get(b"content-length", b"")
        if content_length.isdigit():
            check_length(int(content_length[:MAX_DIGITS]), service.limits.max_body_bytes)
        self._digest: bytes | None = None
        self._remembered: Remembered | None = None
        self._submission: Submission | None = None
        self.notes: Sequence[Note | None] = ()
        self._task: Task[list[Item] | bytes] | None = None
        self._is_left = False
        self.trace: RequestTrace | None = None
        self.invalid: dict[int, InvalidItem] | None = None
        self.counted = 0
        self.stream = None
        self.is_sent_always = False
        self.may_stream = False

    def read_head(self, fields: Mapping[bytes, bytes]) -> None:
        """Read this protocol's headers and URL; the caller is already admitted.

        Raises:
            TorchlaneError: if they are invalid.
        """
        raise NotImplementedError

    def check_model(self) -> None:
        """Check the head against the model, before the body is decoded.

        Answers are JSON unless a subclass says otherwise.

        Raises:
            NotAcceptable: if the caller does not accept the answer's media type.
            TorchlaneError: if the model cannot do what the head asks for.
        """
        check_accepted(self.accept, JSON)

    def memo_text(self, body: bytes) -> str | None:
        """Everything that determines the answer, except the model and the body, as one text.

        None if the body is not worth remembering, because reading it again costs almost nothing.
        """
        raise NotImplementedError

    def read(self, body: bytes) -> list[Item]:
        """The items of a body.

        Nothing else uses the call at that time, so it may store what the answer needs.

        Raises:
            TooLongForLoop: on the event loop, if reading would block it for long.
            TorchlaneError: if the body is invalid.
        """
        raise NotImplementedError

    def budget(self) -> Budget:
        """The limits of what `read` decodes."""
        return Budget(on_loop=self.on_loop, is_left=self._has_left, received=self._received)

    def find_model(self) -> None:
        """Find the model that the path names, and set the deadline by its settings.

        Raises:
            TorchlaneError: if there is no such model, or the caller may not call it.
        """
        self.model = self._resolve()
        self._model_id = self.model.id
        self._changes = self.service.loaded.changes
        self.limit_time(self.model.settings.timeout_s)

    def limit_time(self, most_s: float) -> None:
        """Set the requested deadline, but at most `most_s` after arrival.

        Raises:
            InvalidInput: if the caller's header is not a valid time.
        """
        given = self._timeout_ms
        timeout_s = most_s if given is None else _timeout_s(given, most_s)
        self.deadline = self.arrived_at + timeout_s

    def _resolve(self) -> LoadedModel:
        """The model that the endpoint names, if the caller may call it."""
        endpoint = self.endpoint
        number = None if endpoint.version is None else version_number(endpoint.version)
        model = self.service.loaded.resolve(endpoint.name, number)
        allowed = model.settings.allowed_keys
        if allowed is not None and self._caller is not None:
            self._caller.may_call(model.id.name, allowed)
        return model

    def begin(self, body: bytes, request_id: bytes = b"") -> Submission:
        """Decode the body and submit its items to the engine, which may log the request id.

        Raises:
            TorchlaneError: if the request is rejected; nothing was queued.
        """
        trace = self.trace
        if trace is None:
            return self._begin(body, request_id)
        trace.received = time.perf_counter()
        submission = self._begin(body, request_id)
        submission.follow(trace)
        return submission

    def _begin(self, body: bytes, request_id: bytes) -> Submission:
        service = self.service
        if self._changes != service.loaded.changes:  # models changed while the body arrived
            self.model = self._resolve()
            self._model_id = self.model.id
        if service.loaded.has_weights and self.endpoint.version is None:
            self._choose_version(body)
        model = self.model
        self.check_model()
        if self._coding is not None:
            self._received = len(body)
            inflater = Inflater(self._coding, body, service.limits.max_body_bytes)
            inflated = inflater.inflate_shortly()
            if inflated is None:
                return self._begin_off_loop(inflater.inflate, inflater.limit, request_id)
            body = inflated
        text = self.memo_text(body)
        foreseen = False
        if text is not None:
            if self.gzip != NEVER:
                text = f"gzip {self.gzip}|{text}"
            memo = service.memo
            if model.settings.cache and memo.has_come_before(body):
                self._digest = memo.digest(model.id, service.engine.identity(model.id), text, body)
                self._remembered = memo.get(self._digest)
            if self._remembered is not None:
                keys = self._remembered.keys
                self._charge(len(keys))
                known = service.engine.submit_known(model.id, keys, self.deadline)
                if known is not None:
                    self._count_items(len(keys))
                    self._submission = known
                    return known
                self._remembered = None  # its predictions have left the cache
            # Decoding the items would be most of the cost of a rejection.
            foreseen = service.engine.foresee(model.id, self.deadline, self._lag_s)
        try:
            items = self.read(body)
        except TooLongForLoop:
            read = partial(self._read_in_thread, body)
            return self._begin_off_loop(read, len(body), request_id)
        except TorchlaneError:
            service.metrics.model(model.id).count_failure(time.perf_counter() - self._arrived)
            raise
        self._take_items(items)
        self._submission = service.engine.submit(
            model.id,
            items,
            self.deadline,
            self._lag_s,
            request_id,
            len(self.invalid or ()),
            foreseen=foreseen,
        )
        return self._submission

    def _choose_version(self, body: bytes) -> None:
        """Choose the version by the weights of the model, if it has any."""
        loaded, name = self.service.loaded, self.model.id.name
        split = loaded.split(name)
        if split is None:
            return
        self.is_divided = True
        for number in split.ranked(self._user_of(split, body)):
            model = loaded.find(ModelId(name, number))
            if model is not None and self.service.engine.can_run(model.id):
                self.model = model
                self._model_id = model.id
                return

    def _user_of(self, split: Split, body: bytes) -> bytes:
        """What identifies the caller to the weights: a header, the key's name, else the body."""
        user = b""
        header = split.header
        if header is not None:
            user = self.headers.get(header, b"")
        elif split.sticky == KEY and self._caller is not None:
            user = self._caller.name.encode()
        if user:
            return user
        return digest_of(body) if self.body_digest is None else self.body_digest

    def _begin_off_loop(
        self, work: Callable[[], list[Item] | bytes], size_bytes: int, request_id: bytes
    ) -> Submission:
        """Inflate the body, or read its items, in a thread.

        Until then the engine expects the items.
        """
        engine = self.service.engine
        engine.foresee(self.model.id, self.deadline, self._lag_s)
        # Before `expect`, because `expect` accepts the request.
        self.service.offload.check_room(size_bytes, self.deadline - engine.now())
        submission = self._submission = engine.expect(
            self.model.id, self.deadline, self._drop_task, request_id
        )
        self._start(submission, work, size_bytes)
        return submission

    def _start(
        self, submission: Submission, work: Callable[[], list[Item] | bytes], size_bytes: int
    ) -> None:
        def done(made: list[Item] | bytes | Exception) -> None:
            if isinstance(made, Exception):
                submission.fail(made)
                return
            try:
                self._supply(submission, made)
            except TorchlaneError as error:
                submission.fail(without_frames(error))
            except Exception as bug:
                submission.fail(bug)

        self._task = self.service.offload.start(work, size_bytes, done)

    def _supply(self, submission: Submission, made: list[Item] | bytes) -> None:
        """Submit items that were decoded in a thread; an inflated body is read first."""
        if isinstance(made, bytes):
            try:
                items = self.read(made)
            except TooLongForLoop:
                self._start(submission, partial(self._read_in_thread, made), len(made))
                return
        else:
            items = made
        self._take_items(items)
        invalid = len(self.invalid or ())
        self.service.engine.supply(submission, items, self.deadline, self._lag_s, invalid)

    def _read_in_thread(self, body: bytes) -> list[Item]:
        self.on_loop = False
        return self.read(body)

    def _has_left(self) -> bool:
        """Whether the caller no longer waits for items that are read in a thread."""
        return self._is_left

    def _take_items(self, items: list[Item]) -> None:
        """Keep the items' notes, and count them and their answer, before they are submitted.

        Raises:
            RateLimited, PayloadTooLarge: see `Caller`.
            Overloaded: if all answers would take too many bytes.
        """
        # Only for models of pictures may some items have a note and others none.
        if (items and items[0].note is not None) or self.model.codec.places is not None:
            self.notes = [item.note for item in items]
        self._count_items(len(items))
        self._reserve(len(items))

    def _drop_task(self) -> None:
        """Cancel the work in a thread; harmless if the work is done."""
        self._is_left = True
        if self._task is not None:
            self._task.cancel()

    def _count_items(self, items: int) -> None:
        """Record how many items there are, which have been decoded, and charge for them."""
        self._decoded = time.perf_counter()
        self._items = items
        if self.trace is not None:
            self.trace.decoded = self._decoded
        if self._caller is not None:
            self._charge(items)

    def _charge(self, items: int) -> None:
        """Count the items for the caller's limit, once, however their number becomes known."""
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.asks_for(items + len(self.invalid or ()))


def _timeout_s(given: bytes, most_s: float) -> float:
    try:
        timeout_ms = math.nan if b"_" in given else float(given)
    except ValueError:
        timeout_ms = math.nan
    if not timeout_ms > 0 or math.isinf(timeout_ms):
        shown = given.decode("latin-1")
        raise InvalidInput(f"X-Torchlane-Timeout-Ms must be a positive number, got {shown!r}")
    return min(timeout_ms / 1000, most_s)
