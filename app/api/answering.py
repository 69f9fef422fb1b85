"""The second half of a prediction call, from its submission to its answer; see `calls.py`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from app.api.answers import LARGE_BYTES, Encoded, Headers, LargeAnswer, Pieces
from app.api.codings import gzipped
from app.api.endpoints import Endpoint
from app.api.errors import VARY, RawAnswer
from app.api.json_pieces import Lazy, json_pieces
from app.api.memo import Remembered, Written
from app.api.negotiation import MAY, MUST, NEVER
from app.api.outcomes import (
    JSON_HEADERS,
    check_answer,
    check_mapped,
    check_mapped_size,
    dumped,
    mapped,
    mapped_in_steps,
    shown,
)
from app.api.service import Service
from app.api.streams import Stream
from app.engine.submission import Submission
from app.errors import Abandoned, InvalidItem, ItemFailed, Overloaded
from app.registry.loaded_models import LoadedModel
from app.telemetry.tracing import RequestTrace
from app.types import Answer, Arrays, CacheCounts, ModelId, Note, Outcome
from models.timing import nothing

JSON_GROWTH = 3  # bytes of JSON for a byte of float32, about
FEW = 16  # items whose rows are chosen, and which are mapped, at once: takes about 1 ms
COMPRESSION_WAIT_S = 0.1  # for a thread; an answer that would wait longer is sent as it is
DRAWN_BYTES = 16 << 10  # of arrays that become PNG files on the event loop: takes about 1 ms


class Answering:
    """A call that can be answered; `Call` reads its request and has the documentation.

    Attributes:
        counted: bytes of the answer, as counted by `AnswerMemory`.
        draws: whether the answer has PNG files, which are slow to make.
        is_divided: whether weights have chosen the version, which the answer's headers then have.
        invalid: the errors of items that were invalid and left out, by index; None: one
            invalid item fails the request.
        gzip: whether the answer is compressed: `NEVER`, `MAY` (if it is large JSON) or `MUST`.
        stream: writes the body of the answer as it comes; None: the answer has it.
        is_sent_always: whether the transport calls `sent` however the call ends; otherwise nothing
            is counted before the answer.
    """

    __slots__ = (
        "_arrived",
        "_decoded",
        "_digest",
        "_items",
        "_model_id",
        "_remembered",
        "_submission",
        "counted",
        "draws",
        "endpoint",
        "gzip",
        "invalid",
        "is_divided",
        "is_sent_always",
        "model",
        "notes",
        "service",
        "stream",
        "trace",
    )
    _arrived: float
    _decoded: float
    _digest: bytes | None
    _items: int
    _model_id: ModelId | None
    _remembered: Remembered | None
    _submission: Submission | None
    counted: int
    draws: bool
    endpoint: Endpoint
    gzip: int
    invalid: dict[int, InvalidItem] | None
    is_divided: bool
    is_sent_always: bool
    model: LoadedModel
    notes: Sequence[Note | None]
    service: Service
    stream: Stream | None
    trace: RequestTrace | None

    def write(self, outcomes: Sequence[Outcome]) -> Written:
        """The answer's body and the headers that describe it, except its length.

        Raises:
            TorchlaneError: if the outcomes cannot be written in the requested form.
        """
        return JSON_HEADERS, dumped(self.document_of(outcomes))

    def write_large(self, outcomes: Sequence[Outcome]) -> Pieces:
        """The same body in pieces that are quick to make, for an answer with large arrays.

        Raises:
            TorchlaneError: see `write`.
        """
        yield from json_pieces(self.document_of(outcomes, Lazy))
        return JSON_HEADERS

    def document_of(
        self, outcomes: Sequence[Outcome], collect: Callable[[Iterator[object]], object] = list
    ) -> object:
        """The answer as a document of JSON.

        Args:
            outcomes: of all items, in order.
            collect: makes a list of places that take long to make.

        Raises:
            TorchlaneError: see `write`.
        """
        raise NotImplementedError

    def chosen(self, outputs: Arrays) -> Arrays:
        """The outputs and rows of an item that the answer will have, before they are mapped."""
        return outputs

    def expected_bytes(self, array_bytes: int) -> int:
        """About how long the body will be, given the bytes of all outputs."""
        return JSON_GROWTH * array_bytes

    def answer(self) -> RawAnswer | LargeAnswer:
        """Status, headers and body, once the submission is settled.

        A large answer counts in the memory of answers, from now on until `sent` is called.

        Raises:
            TorchlaneError: the reason why there are no predictions.
        """
        submission = self._submission
        if submission is None:
            raise RuntimeError("bug: a call was answered before it began")
        answer = submission.result()
        answered = time.perf_counter()
        remembered = self._remembered
        if remembered is not None:
            return self._finished(answer, answered, remembered.written)
        outcomes, limits = answer.outcomes, self.service.limits
        if self.invalid:
            outcomes = self._with_invalid(outcomes, self.invalid)
        size = check_answer(outcomes, limits.max_answer_bytes)
        is_repeat = self._digest is not None and answer.cache.hit == len(outcomes)
        if limits.show_model_errors:
            outcomes = shown(outcomes)
        places = self.model.codec.places
        is_large = size > (DRAWN_BYTES if self.draws else LARGE_BYTES) or self.gzip == MUST
        if self.draws and places is not None and places.reduces:
            is_large = True  # what is made is small, but takes long
        is_long = places is not None and len(outcomes) > FEW
        if places is not None and (self.draws or not (is_large or is_long)):
            if not is_long:
                outcomes = [*map(self._chosen, outcomes)]
            mapped_bytes = check_mapped(
                places, outcomes, self.notes, limits.max_answer_bytes, drawn=self.draws
            )
            size = max(size, mapped_bytes)
        if is_large or is_long or size > LARGE_BYTES:
            self._counts(size + self.expected_bytes(size))
            answer.outcomes = ()  # freed with the pieces
            submission.forget()
            return self._large(answer, answered, outcomes, size, is_repeat)
        if places is not None:
            outcomes = mapped(places, outcomes, self.notes, drawn=self.draws)
        written = self.write(outcomes)
        if is_repeat:
            self._remember(written)
        return self._finished(answer, answered, written)

    def describe(self, record: RequestTrace) -> None:
        """Add what is known of the request to its record, when it ends."""
        endpoint, submission = self.endpoint, self._submission
        record.name, record.version = endpoint.name or "", endpoint.version or ""
        record.model, record.items = self._model_id, self._items
        record.is_repeat = self._remembered is not None
        if submission is None:
            return
        record.cache = submission.cache if any(submission.cache) else None
        record.queue_s, record.batch_items = submission.queue_s, submission.batch_items

    def _with_invalid(
        self, outcomes: Sequence[Outcome], invalid: Mapping[int, InvalidItem]
    ) -> list[Outcome]:
        """The outcomes of all items, in order; the notes are completed too."""
        found, notes = iter(outcomes), iter(self.notes)
        has_notes = bool(self.notes) or self.model.codec.places is not None
        every, every_note = list[Outcome](), list[Note | None]()
        for index in range(len(outcomes) + len(invalid)):
            failed = invalid.get(index)
            every.append(next(found) if failed is None else failed)
            if has_notes:
                every_note.append(next(notes) if failed is None else None)
        self.notes = every_note
        return every

    def _chosen(self, outcome: Outcome) -> Outcome:
        return outcome if isinstance(outcome, ItemFailed) else self.chosen(outcome)

    def _pieces(self, outcomes: Sequence[Outcome]) -> Pieces:
        """What `write_large` yields for the outcomes in the callers' pictures.

        Raises:
            PayloadTooLarge: if they are too large there.
            Overloaded: if all answers would take too many bytes.
        """
        places, total, limit = self.model.codec.places, 0, self.service.limits.max_answer_bytes

        def made(size: int) -> None:
            nonlocal total
            total += size
            if places is not None:
                check_mapped_size(places, total, limit)
            if not self.draws and total > self.counted:  # what is drawn was counted before
                self._counts(total)

        if places is not None:
            chosen = map(self._chosen, outcomes)
            outcomes = yield from mapped_in_steps(
                places, chosen, self.notes, made, drawn=self.draws
            )
        return (yield from self.write_large(outcomes))

    def sent(self) -> None:
        """Count the answer no longer: the client's socket has taken it, or there is none."""
        if self.counted:
            self.service.answers.give_back(self.counted)
            self.counted = 0

    def _large(
        self,
        answer: Answer,
        answered: float,
        outcomes: Sequence[Outcome],
        size: int,
        is_repeat: bool,
    ) -> LargeAnswer:
        """The answer with arrays of `size` bytes, which are freed once it is encoded."""

        def count(encoded: int) -> None:
            if encoded + size > self.counted + LARGE_BYTES:
                self._counts(encoded + size)

        def finish(headers: Headers, content: bytes) -> RawAnswer:
            if is_repeat:
                self._remember((headers, content))
            return self._finished(answer, answered, (headers, content))

        turns = self.service.turns
        if self.draws:
            drawn = partial(self._draw, outcomes, size)
            return LargeAnswer(turns, count, _no_pieces(), finish, drawn)
        thread = None if self.gzip == NEVER else self._compress
        return LargeAnswer(turns, count, self._pieces(outcomes), finish, thread)

    def _draw(
        self,
        outcomes: Sequence[Outcome],
        size: int,
        _headers: Headers,
        _content: bytes,
        done: Callable[[Encoded | Exception], None],
    ) -> Callable[[], None]:
        """Write an answer with pictures in a thread; see `Thread`.

        Raises:
            Overloaded: if no thread has room.
        """
        is_left = False

        def work() -> Encoded:  # in pieces, because some of them hold the GIL
            pieces, parts = self._pieces(outcomes), list[bytes | memoryview]()
            while True:
                if is_left:
                    raise Abandoned("the caller no longer waits for the answer")
                try:
                    parts.append(next(pieces))
                except StopIteration as end:
                    written = end.value, b"".join(parts)
                    return _coded(*written) if self._compresses(*written) else written

        begun = self.service.offload.start(work, size, done)

        def cancel() -> None:
            nonlocal is_left
            is_left = True
            begun.cancel()

        return cancel

    def _compress(
        self, headers: Headers, content: bytes, done: Callable[[Encoded | Exception], None]
    ) -> Callable[[], None]:
        """Compress an encoded answer in a thread, if that is worth it or demanded; see `Thread`."""
        if not self._compresses(headers, content):
            done((headers, content))
            return nothing
        try:
            if self.gzip != MUST:  # a plain answer is better than a late one
                self.service.offload.check_room(len(content), COMPRESSION_WAIT_S)
            self._counts(2 * len(content))
            work = partial(_coded, headers, content)
            return self.service.offload.start(work, len(content), done).cancel
        except Overloaded as error:
            done(error if self.gzip == MUST else (headers, content))
        return nothing

    def _compresses(self, headers: Headers, content: bytes) -> bool:
        is_large = headers == JSON_HEADERS and len(content) > LARGE_BYTES
        return self.gzip == MUST or (self.gzip == MAY and is_large)

    def _counts(self, size: int) -> None:
        """Count the bytes that the answer takes now.

        Raises:
            Overloaded: if all answers take too many.
        """
        self.counted = self.service.answers.hold(size, self.counted)

    def _reserve(self, items: int) -> None:
        """Count the answer as it will be, if it is large, before it is computed.

        Requests that come together would otherwise all find room. Outputs with a free axis count
        once they are known.

        Raises:
            Overloaded: if all answers would take too many bytes.
        """
        size = items * self.model.fixed_bytes
        if size > LARGE_BYTES:
            size += self.expected_bytes(size)
            if self.is_sent_always:
                self._counts(size)
            else:
                self.service.answers.check(size)

    def _finished(self, answer: Answer, answered: float, written: Written) -> RawAnswer:
        """The answer with its body, and the headers that every answer has."""
        headers, content = written
        if self.counted or len(content) > LARGE_BYTES:
            self._counts(len(content))
        encoded = time.perf_counter()
        if self.trace is not None:
            self.trace.answered, self.trace.encoded = answered, encoded
        timing = _server_timing(self._decoded - self._arrived, answer, encoded - answered)
        return (
            200,
            [
                *headers,
                VARY,
                (b"x-torchlane-cache", _cache_header(answer.cache, many=self.endpoint.many)),
                (b"server-timing", timing),
                (b"content-length", b"%d" % len(content)),
                *(self.version_header() if self.is_divided else ()),
            ],
            content,
        )

    def version_header(self) -> Headers:
        """The version that answers, or fails to, if weights have chosen it."""
        model = self._model_id
        if model is None or not self.is_divided:
            return ()
        return ((b"x-torchlane-version", b"%d" % model.version),)

    def _remember(self, written: Written) -> None:
        """Remember the answer, all items of which were in the cache."""
        if self._digest is not None and self._submission is not None:
            remembered = Remembered(tuple(self._submission.keys), written)
            self.service.memo.put(self._digest, remembered)


def _coded(headers: Headers, content: bytes) -> Encoded:
    return (*headers, (b"content-encoding", b"gzip")), gzipped(content)


def _no_pieces() -> Pieces:
    """Nothing, for an answer that a thread writes."""
    yield b""
    return ()


def _cache_header(counts: CacheCounts, *, many: bool) -> bytes:
    if many:
        return b"hit=%d, miss=%d, joined=%d" % (counts.hit, counts.miss, counts.joined)
    return b"hit" if counts.hit else b"miss" if counts.miss else b"joined"


def _server_timing(decode_s: float, answer: Answer, encode_s: float) -> bytes:
    times = b"decode;dur=%.3f, queue;dur=%.3f, compute;dur=%.3f, encode;dur=%.3f" % (
        decode_s * 1e3,
        answer.queue_s * 1e3,
        answer.compute_s * 1e3,
        encode_s * 1e3,
    )
    return b"%b, batch;desc=%d" % (times, answer.batch_items) if answer.batch_items else times
