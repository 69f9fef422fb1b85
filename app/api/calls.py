"""One prediction call from its head to its answer, on any transport: parse, submit, shape.

Nothing here waits: the transport reads the body and waits for the submission.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from urllib.parse import parse_qsl

from app.access.entries import PREDICT
from app.access.guard import Caller
from app.api.codings import Inflater, read_coding
from app.api.endpoints import Endpoint
from app.api.errors import RawAnswer
from app.api.memo import NOT_PARSED, Remembered
from app.api.offload import Task, without_frames
from app.api.payloads import JSON, check_length, read_items
from app.api.replies import answer_media_type, binary_answer, check_answer, json_answer, shown
from app.api.service import Service
from app.codecs.base import TooLongForLoop
from app.engine.submission import Submission
from app.errors import InvalidInput, ModelNotFound, NotAcceptable, TorchlaneError
from app.registry.loaded_models import LoadedModel
from app.types import Answer, CacheCounts, Item

BODY_LATE = "the body did not arrive before the deadline; allow more time"
BODY_CUT = "the client disconnected while sending the body"
MAX_DIGITS = 18  # of a number in a header or URL: a longer one is over any limit
MAX_PARAMETERS = 100  # of a query: parsing more would block the event loop


class Call:
    """A prediction request.

    Args:
        service: engine, models and limits.
        endpoint: the requested one.
        fields: lower-case names of headers, and values.

    Attributes:
        deadline: on the engine's clock.

    Raises:
        TorchlaneError: rejected by its head: the caller, the model, the size or a header.
    """

    __slots__ = (
        "_accept",
        "_arrived",
        "_caller",
        "_changes",
        "_coding",
        "_content_type",
        "_decoded",
        "_digest",
        "_endpoint",
        "_lag_s",
        "_many",
        "_model",
        "_remembered",
        "_service",
        "_submission",
        "_task",
        "_top_k",
        "deadline",
    )

    def __init__(self, service: Service, endpoint: Endpoint, fields: Mapping[bytes, bytes]) -> None:
        self._arrived = self._decoded = time.perf_counter()
        self._service = service
        self._many = endpoint.many
        if service.hosts.enabled:
            service.hosts.check(fields)
        self._caller: Caller | None = None
        if service.guard.enabled:
            self._caller = service.guard.admit(fields, PREDICT)
            self._caller.arrives()
        self._accept = fields.get(b"accept", b"")
        self._content_type = fields.get(b"content-type", b"")
        coding = fields.get(b"content-encoding")
        self._coding = None if coding is None else read_coding(coding)
        self._endpoint = endpoint
        self._top_k = read_top_k(endpoint.query) if endpoint.query else endpoint.top_k
        self._model = self._resolve()
        self._changes = service.loaded.changes
        self._lag_s = service.engine.read_lag_s()
        timeout_s = _timeout_s(
            fields.get(b"x-torchlane-timeout-ms"), self._model.settings.timeout_s
        )
        self.deadline = service.engine.now() + timeout_s
        content_length = fields.get(b"content-length", b"")
        if content_length.isdigit():
            check_length(int(content_length[:MAX_DIGITS]), service.limits.max_body_bytes)
        self._digest: bytes | None = None
        self._remembered: Remembered | None = None
        self._submission: Submission | None = None
        self._task: Task[list[Item] | bytes] | None = None

    def _resolve(self) -> LoadedModel:
        """The model that the path names, if the caller may call it."""
        endpoint = self._endpoint
        model = self._service.loaded.resolve(endpoint.name, _version(endpoint.version))
        allowed = model.settings.allowed_keys
        if allowed is not None and self._caller is not None:
            self._caller.may_call(model.id.name, allowed)
        return model

    def begin(self, body: bytes, request_id: bytes = b"") -> Submission:
        """Decode the body and submit its items to the engine, which may log the request id.

        Raises:
            TorchlaneError: rejected; nothing was queued.
        """
        service = self._service
        if self._changes != service.loaded.changes:  # while the body arrived
            self._model = self._resolve()
        model = self._model
        if self._top_k is not None:
            model.codec.check_top_k()
            self._check_json_answer()
        if self._coding is not None:
            inflater = Inflater(self._coding, body, service.limits.max_body_bytes)
            inflated = inflater.inflate_shortly()
            if inflated is None:
                return self._begin_off_loop(inflater.inflate, inflater.limit, request_id)
            body = inflated
        content_type = self._content_type.decode("latin-1")
        memo = service.memo
        identity = service.engine.identity(model.id)
        if model.settings.cache:
            self._digest = memo.digest(
                model.id, identity, content_type, body, many=self._many, top_k=self._top_k
            )
        if self._digest is not None:
            self._remembered = memo.get(self._digest)
            if self._remembered is not None:
                keys = self._remembered.keys
                self._asks_for(len(keys))
                known = service.engine.submit_known(model.id, keys, self.deadline)
                if known is not None:
                    self._decoded = time.perf_counter()
                    self._submission = known
                    return known
                self._remembered = None  # its predictions have left the cache
        if content_type not in NOT_PARSED:  # parsing would be most of the cost of a rejection
            service.engine.foresee(model.id, self.deadline, self._lag_s)
        try:
            items = self._read(body, on_loop=True)
        except TooLongForLoop:
            read = partial(self._read, body, on_loop=False)
            return self._begin_off_loop(read, len(body), request_id)
        self._asks_for(len(items))
        self._decoded = time.perf_counter()
        self._submission = service.engine.submit(
            model.id, items, self.deadline, self._lag_s, request_id
        )
        return self._submission

    def _read(self, body: bytes, *, on_loop: bool) -> list[Item]:
        return read_items(
            self._model.codec,
            self._content_type.decode("latin-1"),
            body,
            many=self._many,
            max_items=self._service.limits.max_items,
            on_loop=on_loop,
        )

    def _begin_off_loop(
        self, work: Callable[[], list[Item] | bytes], size_bytes: int, request_id: bytes
    ) -> Submission:
        """Have the body inflated, or its items read, in a thread.

        Until then the engine knows that they come.
        """
        engine = self._service.engine
        engine.foresee(self._model.id, self.deadline, self._lag_s)
        # Before `expect`, since that accepts the request.
        self._service.offload.check_room(size_bytes, self.deadline - engine.now())
        submission = self._submission = engine.expect(
            self._model.id, self.deadline, self._drop_task, request_id
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

        self._task = self._service.offload.start(work, size_bytes, done)

    def _supply(self, submission: Submission, made: list[Item] | bytes) -> None:
        """Submit items that were made in a thread; read them first from an inflated body."""
        if isinstance(made, bytes):
            try:
                items = self._read(made, on_loop=True)
            except TooLongForLoop:
                self._start(submission, partial(self._read, made, on_loop=False), len(made))
                return
        else:
            items = made
        self._decoded = time.perf_counter()
        self._asks_for(len(items))
        self._service.engine.supply(submission, items, self._lag_s)

    def _drop_task(self) -> None:
        """Cancel the work in a thread; harmless when it is done."""
        if self._task is not None:
            self._task.cancel()

    def answer(self) -> RawAnswer:
        """Status, headers and body, once the submission is settled.

        Raises:
            TorchlaneError: why there are no predictions.
        """
        if self._submission is None:
            raise RuntimeError("bug: a call was answered before it began")
        answer = self._submission.result()
        answered = time.perf_counter()
        media_type = self._answer_media_type()
        if media_type == JSON:
            content = self._json(answer)
        else:
            limits = self._service.limits
            check_answer(answer.outcomes, limits.max_answer_bytes)
            outcomes = shown(answer.outcomes) if limits.show_model_errors else answer.outcomes
            content = binary_answer(self._model, media_type, outcomes, many=self._many)
        timing = _server_timing(
            self._decoded - self._arrived, answer, time.perf_counter() - answered
        )
        return (
            200,
            [
                (b"content-type", media_type.encode()),
                (b"x-torchlane-cache", _cache_header(answer.cache, many=self._many)),
                (b"server-timing", timing),
                (b"content-length", b"%d" % len(content)),
            ],
            content,
        )

    def _answer_media_type(self) -> str:
        accept = self._accept
        if not accept or accept == b"*/*":
            return JSON
        return answer_media_type(accept.decode("latin-1"))

    def _check_json_answer(self) -> None:
        media_type = self._answer_media_type()
        if media_type != JSON:
            raise NotAcceptable(
                f"an answer with top_k has scores with their labels or indices, which only {JSON} "
                f"can carry; ask for {JSON}, or for {media_type} without top_k"
            )

    def _asks_for(self, items: int) -> None:
        """Count the items once, whichever way their number becomes known."""
        caller, self._caller = self._caller, None
        if caller is not None:
            caller.asks_for(items)

    def _json(self, answer: Answer) -> bytes:
        if self._remembered is not None:
            return self._remembered.content
        limits = self._service.limits
        check_answer(answer.outcomes, limits.max_answer_bytes)
        outcomes = shown(answer.outcomes) if limits.show_model_errors else answer.outcomes
        content = json_answer(self._model, outcomes, many=self._many, top_k=self._top_k)
        if self._digest is not None and answer.cache.hit == len(answer.outcomes):
            keys = self._submission.keys if self._submission is not None else ()
            self._service.memo.put(self._digest, Remembered(tuple(keys), content))
        return content


def _timeout_s(given: bytes | None, most_s: float) -> float:
    if given is None:
        return most_s
    try:
        timeout_ms = math.nan if b"_" in given else float(given)
    except ValueError:
        timeout_ms = math.nan
    if not timeout_ms > 0 or math.isinf(timeout_ms):
        shown = given.decode("latin-1")
        raise InvalidInput(f"X-Torchlane-Timeout-Ms must be a positive number, got {shown!r}")
    return min(timeout_ms / 1000, most_s)


def read_top_k(query: bytes) -> int | None:
    """The number of scores that a query asks for; None: any. Other parameters are ignored.

    Raises:
        InvalidInput: if top_k is not one whole number of at least 1.
    """
    try:
        pairs = parse_qsl(query.decode("latin-1"), True, max_num_fields=MAX_PARAMETERS)
    except ValueError as error:
        raise InvalidInput(f"the URL has more than {MAX_PARAMETERS} query parameters") from error
    given = [value for name, value in pairs if name == "top_k"]
    if not given:
        return None
    if len(given) > 1:
        raise InvalidInput(f"the URL has top_k {len(given)} times; give it once")
    text = given[0]
    digits = text.lstrip("0")
    if not text.isascii() or not text.isdigit() or not digits:
        raise InvalidInput(f"top_k must be a whole number of at least 1, got {text[:MAX_DIGITS]!r}")
    return int(digits[:MAX_DIGITS])


def _version(given: str | None) -> int | None:
    if given is None:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > MAX_DIGITS:
        raise ModelNotFound("a version is a whole number; GET /models lists what is loaded")
    return int(given)


def _cache_header(counts: CacheCounts, *, many: bool) -> bytes:
    if many:
        return b"hit=%d, miss=%d, joined=%d" % (counts.hit, counts.miss, counts.joined)
    return b"hit" if counts.hit else b"miss" if counts.miss else b"joined"


def _server_timing(decode_s: float, answer: Answer, encode_s: float) -> bytes:
    return b"decode;dur=%.3f, queue;dur=%.3f, compute;dur=%.3f, encode;dur=%.3f" % (
        decode_s * 1e3,
        answer.queue_s * 1e3,
        answer.compute_s * 1e3,
        encode_s * 1e3,
    )
