"""Requests to the server of a run, one at a time."""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from typing import NamedTuple

import orjson

from app.bulk.errors import BulkError
from app.bulk.handlers.bodies import Body
from app.codecs.base import JSON
from app.errors import InvalidInput

ACCEPT = "application/json, */*;q=0.5"  # a stream becomes a list
BUSY = (429, 503)
PATIENCE_S = 120.0  # for a handler whose processes end again and again
LONGEST_PAUSE_S = 5.0
FIRST_ERROR = 400
MOST_SHOWN = 1000
# The process ended. Another request may have ended it, so it is sent again, alone.
NOT_ITS_OWN = ("handler_died", "handler_memory")


class Outcome(NamedTuple):
    """What became of a row.

    Attributes:
        error: why it has no answer; None if it has one.
        media_type: of the answer.
        body: of the answer.
        is_uncertain: whether the error may be another request's.
    """

    error: str | None
    media_type: str = ""
    body: bytes = b""
    is_uncertain: bool = False


class Client:
    """A connection, which is opened again if it is lost."""

    def __init__(self, host: str, port: int, key: str, timeout_s: float) -> None:
        self._connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
        self._headers = {"Accept": ACCEPT, "Authorization": f"Bearer {key}"}

    def is_ready(self) -> bool:
        """Whether the server is ready."""
        try:
            return self._send("GET", "/health/ready", b"", {}).status < FIRST_ERROR
        except (OSError, http.client.HTTPException):
            return False

    def ask(self, path: str, body: Body, beat: Callable[[], None]) -> Outcome:
        """Send a row until there is an outcome of its own; a busy server is asked again.

        Args:
            path: of the call.
            body: of the request.
            beat: raises an exception to end this.

        Raises:
            BulkError: if the server has ended, or the handler does not become ready again.
        """
        try:
            content = body.read()
        except InvalidInput as error:
            return Outcome(str(error))
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            beat()
            answer = self._posted(path, body.media_type, content, beat)
            error_of, code = _error_of(answer)
            if answer.status not in BUSY or not code:
                break
            if time.monotonic() > give_up_at:
                raise BulkError(f"the handler takes no rows for {PATIENCE_S:.0f} s: {error_of}")
            time.sleep(min(LONGEST_PAUSE_S, answer.retry_after_s))
        if answer.status >= FIRST_ERROR:
            return Outcome(error_of, is_uncertain=code in NOT_ITS_OWN)
        return Outcome(None, answer.media_type, answer.body)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _posted(
        self, path: str, media_type: str, content: bytes, beat: Callable[[], None]
    ) -> _Answer:
        # The server closes connections that were idle for long: a new one is tried then.
        for is_last in (self._connection.sock is None, True):
            try:
                return self._send("POST", path, content, {"Content-Type": media_type})
            except (OSError, http.client.HTTPException) as error:
                beat()
                if is_last or isinstance(error, TimeoutError):
                    raise BulkError(f"the server of the run does not answer: {error!r}") from error
        raise RuntimeError("bug: a request was not sent")

    def _send(self, method: str, path: str, content: bytes, more: dict[str, str]) -> _Answer:
        try:
            self._connection.request(method, path, content, self._headers | more)
            response = self._connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise
        try:
            retry_after_s = float(response.headers.get("Retry-After", "1"))
        except ValueError:
            retry_after_s = 1.0
        kind = response.headers.get("Content-Type", "")
        return _Answer(response.status, kind, body, retry_after_s)


class _Answer(NamedTuple):
    status: int
    media_type: str
    body: bytes
    retry_after_s: float


def _error_of(answer: _Answer) -> tuple[str, str]:
    """The error as a sentence, and the server's code; no code if it is the handler's own answer."""
    if answer.status < FIRST_ERROR:
        return "", ""
    try:
        fields = orjson.loads(answer.body)
        if answer.media_type == JSON and "request_id" in fields:
            found = [text for each in fields.get("details") or () for text in each.values()]
            more = f" ({'; '.join(map(str, found))})" if found else ""
            return f"{fields['error']}{more}"[:MOST_SHOWN], str(fields["code"])
    except (ValueError, TypeError, KeyError, AttributeError):  # the handler's own answer
        pass
    text = answer.body[:MOST_SHOWN].decode("utf-8", "replace")
    return f"the handler answered {answer.status}: {text}", ""
