"""Runs a handler in a process as a server does, and sends its calls to a running server."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from export.errors import ExportError, UsageError
from models.handlers import HandlerLimits, unpack_code
from torchlane.handlers.encoding import ENVELOPE
from torchlane.handlers.frames import (
    ANSWER,
    CALL,
    FROM_HANDLER,
    FROM_HANDLER_BYTES,
    READY,
    REPLY,
    REQUEST,
    STOP,
    Decoder,
    Frame,
    MalformedFrame,
    head,
    meta_of,
)
from torchlane.handlers.launch import Code, has_exited, launch

END_S = 2.0  # to end by itself
READY_S = 300.0  # for import and `setup`, as in a server
PIECE = 1 << 20
STDERR = 2  # where all output of the handler goes
# Not TORCHLANE_...: a server in the same environment would reject it as an unknown setting.
API_KEY = "EXPORT_API_KEY"


class Answer(NamedTuple):
    """The answer to an example."""

    status: int
    media_type: str
    body: bytes


class Host:
    """A handler's process; used by `running`.

    Args:
        end: this side of the connection.
        server: the URL of a server with its models; None: it calls none.
        seconds: the longest time of a request.

    Attributes:
        about: what the process says of the handler, once it is ready.
        calls: how often it has called a model.
    """

    def __init__(self, end: socket.socket, server: str | None, seconds: float) -> None:
        self._end = end
        self._server = server
        self._seconds = seconds
        self._decoder = Decoder(FROM_HANDLER, FROM_HANDLER_BYTES)
        self._frames: list[Frame] = []
        self._number = 0
        self._kinds: dict[str, str] = {}  # of models, by name
        self.about: Mapping[str, Any] = {}
        self.calls = 0

    def until_ready(self) -> None:
        """Wait for import and `setup`.

        Raises:
            ExportError: with the reason, if the handler cannot be run.
        """
        self._end.settimeout(READY_S)
        frame = self._next(READY)
        if "error" in frame.meta:
            raise ExportError(f"the handler cannot be run: {frame.meta['error']}")
        self.about = frame.meta

    def ask(self, body: bytes, media_type: str) -> Answer:
        """The answer to a request.

        Raises:
            ExportError: if it fails.
        """
        self._end.settimeout(self._seconds)
        self._number += 1
        meta = {
            "media_type": media_type,
            "accept": "",
            "request_id": f"example-{self._number}",
            "timeout_ms": self._seconds * 1000,
            "traceparent": "",
        }
        self._send(REQUEST, self._number, meta, body)
        frame = self._next(ANSWER)
        if "code" in frame.meta:
            where = f" ({frame.meta['where']})" if frame.meta.get("where") else ""
            raise ExportError(f"{frame.meta.get('error', frame.meta['code'])}{where}")
        return Answer(int(frame.meta["status"]), str(frame.meta["media_type"]), frame.body)

    def stop(self) -> None:
        """Tell the process to end; it may not read any more."""
        with contextlib.suppress(OSError):
            self._end.settimeout(END_S)
            self._send(STOP, 0, {}, b"")

    def _next(self, kind: int) -> Frame:
        """The next frame of a kind; calls until then are answered."""
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if frame.kind == kind:
                    return frame
                if frame.kind == CALL:
                    self._reply(frame)
            try:
                received = self._end.recv(PIECE)
                self._frames += self._decoder.feed(received)
            except TimeoutError:
                raise ExportError(
                    f"the handler did not answer within {self._end.gettimeout():g} s"
                ) from None
            except (OSError, MalformedFrame) as error:
                raise ExportError(f"the handler's process failed: {error}") from error
            if not received:
                raise ExportError("the handler's process ended; its output above says why")

    def _reply(self, call: Frame) -> None:
        self.calls += 1
        body = call.body
        if call.meta.get("enveloped") and self._is_handler(str(call.meta.get("model"))):
            body = body[len(ENVELOPE) : -1]
        status, media_type, body = self._called(call.meta, body)
        meta: dict[str, Any] = {"status": status, "media_type": media_type}
        if status >= 400:
            meta |= _failure(body)
            body = b""
        self._send(REPLY, call.number, meta, body)

    def _is_handler(self, name: str) -> bool:
        """Whether the server runs a handler of this name."""
        if self._server is None:
            return False
        if name not in self._kinds:
            answer = self._sent("GET", f"/models/{name}", b"", {})
            try:
                self._kinds[name] = json.loads(answer.body)["kind"] if answer.status == 200 else ""
            except (ValueError, KeyError, TypeError) as error:
                raise ExportError(f"--server {self._server} is not a Torchlane server") from error
        return self._kinds[name] == "handler"

    def _called(self, meta: Mapping[str, Any], body: bytes) -> Answer:
        if self._server is None:
            raise UsageError(
                f"the handler calls {meta.get('model')!r}: start a server with `torchlane serve`, "
                "and give its URL with --server http://127.0.0.1:8000"
            )
        path = f"/models/{meta.get('model')}"
        if meta.get("version") is not None:
            path += f"/versions/{meta['version']}"
        path += "/batch-predict" if meta.get("many") else "/predict"
        headers = {"Accept": str(meta.get("accept") or "*/*")}
        if meta.get("media_type"):
            headers["Content-Type"] = str(meta["media_type"])
        return self._sent("POST", path, body, headers)

    def _sent(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        """The server's answer.

        Raises:
            ExportError: if there is none.
        """
        return ask_server(self._server or "", method, path, body, headers, self._seconds)

    def _send(self, kind: int, number: int, meta: Mapping[str, Any], body: bytes) -> None:
        self._end.sendall(head(kind, number, meta_of(meta), len(body)) + body)


def _failure(body: bytes) -> dict[str, Any]:
    try:
        content = json.loads(body)
        failure = {"code": str(content["code"]), "error": str(content["error"])}
    except (ValueError, KeyError, TypeError):
        return {"code": "internal", "error": body[:200].decode("utf-8", "replace")}
    if "retry_after_ms" in content:
        failure["retry_after_ms"] = content["retry_after_ms"]
    return failure


def ask_server(
    server: str, method: str, path: str, body: bytes, headers: dict[str, str], seconds: float
) -> Answer:
    """The answer of a server.

    Args:
        server: its URL.
        method: of the request.
        path: below the URL.
        body: of the request.
        headers: of the request; the API key is added.
        seconds: the longest time of the request.

    Raises:
        ExportError: if there is none.
    """
    if key := os.environ.get(API_KEY):
        headers["Authorization"] = f"Bearer {key}"
    parts = urlsplit(server)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.netloc, timeout=seconds)
    try:
        connection.request(method, parts.path.rstrip("/") + path, body, headers)
        answer = connection.getresponse()
        return Answer(answer.status, answer.getheader("content-type", ""), answer.read())
    except (OSError, HTTPException) as error:
        raise ExportError(f"--server {server} does not answer: {error}") from error
    except ValueError as error:  # of a media type that an example has
        raise ExportError(f"a call of the handler cannot be sent: {error}") from error
    finally:
        connection.close()


@contextlib.contextmanager
def running(
    code: bytes, entry: str, limits: HandlerLimits, server: str | None, python: str
) -> Iterator[Host]:
    """A process of a handler that is ready; ended with all that it started.

    Args:
        code: its files, packed.
        entry: module and class.
        limits: of the handler.
        server: see `Host`.
        python: the interpreter.

    Raises:
        UsageError: if there is no such interpreter.
        ExportError: if it cannot be run.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torchlane-")))
        unpack_code(code, folder)
        what = Code(entry, folder, entry, python, limits.max_batch_size, limits.concurrency)
        try:
            process, end = launch(what, STDERR, STDERR)
        except OSError as error:
            raise UsageError(f"--python {python} cannot be started: {error.strerror}") from error
        stack.enter_context(end)
        stack.callback(_end, process)
        host = Host(end, server, limits.seconds)
        stack.callback(host.stop)
        host.until_ready()
        yield host


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait a moment for a process, then kill it with all that it started."""
    late = time.monotonic() + END_S
    try:
        # It is not reaped here: until then no other group can get its number.
        while time.monotonic() < late and not has_exited(process.pid):
            time.sleep(0.01)
    finally:  # also at a second Ctrl-C
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
