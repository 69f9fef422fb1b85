"""Answers of handlers that are written as they come, with each item that a job gives."""

from __future__ import annotations

from app.api.handlers.answering import HandlerAnswering
from app.api.handlers.batches import check_written
from app.api.negotiation import MUST, preferred
from app.api.streams import OFFERS, Stream
from app.codecs.base import JSON
from app.engine.submission import Submission
from app.errors import HandlerFailed, NotAcceptable, TorchlaneError
from app.handlers.contract import FAILED


class HandlerStreaming(HandlerAnswering):
    """A call whose answer may be a stream, which begins with its first item."""

    __slots__ = ("_is_streaming",)
    _is_streaming: bool  # its answer has begun

    def _open_stream(self) -> None:
        """Answer with a stream if the caller takes one, and the handler yields.

        Raises:
            NotAcceptable: if the caller takes none of its forms.
        """
        if not self._handler.manifest.streams or not self.may_stream or self.many:
            return
        media_type = preferred(self.accept, OFFERS)
        if media_type != JSON:
            if self.gzip == MUST:
                raise NotAcceptable("a stream has no Content-Encoding; accept `identity`")
            self.stream = Stream(media_type, self._counts, self._taken, self._end)

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

    def _ended(self, submission: Submission) -> None:
        error: Exception | None = None
        if not self.many:
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
            self._have_ended(submission)

    def _have_ended(self, submission: Submission) -> None:
        """All jobs have ended, and the only one has an answer."""
        submission.complete()

    def _closed(self, submission: Submission) -> None:
        if not self._is_streaming:
            self._end()
        then, submission.then = submission.then, None
        if then is not None:
            then()
