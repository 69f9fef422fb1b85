"""A real S3, moto's in a process of its own, and a proxy in front of it that breaks answers."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import os
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from tests.clients.environments import environment
from tests.conftest import Once

START_LIMIT_S = 60.0
PIECE = 64 * 1024
SECRET, TOKEN = "a-secret-access-key", "a-session-token"
VARIABLES = {
    "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_SESSION_TOKEN": TOKEN,
    "AWS_REGION": "us-east-1",
}


@contextlib.contextmanager
def s3_server(once: Once, log: Path) -> Iterator[int]:
    """A server on a free port of the loopback interface."""
    port = free_port()
    python = environment(once, "moto") / "bin" / "python"
    command = [str(python), "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with running(command, port, log):
        yield port


def free_port() -> int:
    """A port of the loopback interface on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: Sequence[str], port: int, log: Path) -> Iterator[None]:
    """A process, from when it listens on a port."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while not _listens(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, f"{command[0]} does not listen"
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@dataclass
class Seen:
    """A request that went through the proxy, and the bytes of its answer's body."""

    method: str
    path: str
    nbytes: int = 0


# Breaks the answer to a request; returns whether it has answered in its own way.
Fault = Callable[["Handler", Seen], bool]


@dataclass
class Proxy:
    """Passes requests on to a server, unless a fault is set.

    Attributes:
        fault: asked about each request; None: all pass.
        change: changes the bodies of answers.
        seen: all requests.
    """

    upstream: int
    port: int = 0
    fault: Fault | None = None
    change: Callable[[Seen, bytes], bytes] | None = None
    seen: list[Seen] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def got(self, name: str) -> list[Seen]:
        """The requests that read a file of this name."""
        return [each for each in self.seen if each.method == "GET" and each.path.endswith(name)]

    def looks(self) -> int:
        """How often the repository was listed, from the beginning."""
        return sum(
            "list-type" in each.path and "continuation" not in each.path for each in self.seen
        )

    def wait_for_looks(self, more: int = 1) -> None:
        """Return once the repository was listed more often."""
        wanted, deadline = self.looks() + more, time.monotonic() + 30
        while self.looks() < wanted:
            assert time.monotonic() < deadline, "nobody looks"
            time.sleep(0.01)


class Handler(http.server.BaseHTTPRequestHandler):
    """Handles one connection of a proxy."""

    protocol_version = "HTTP/1.1"
    proxy: Proxy
    body: bytes  # of the request

    def handle_any(self) -> None:
        seen = Seen(self.command, self.path)
        self.proxy.seen.append(seen)
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.proxy.fault is not None and self.proxy.fault(self, seen):
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.proxy.upstream, timeout=60)
        try:
            upstream.request(self.command, self.path, self.body, dict(self.headers.items()))
            answer = upstream.getresponse()
            content = answer.read()
        finally:
            upstream.close()
        if self.proxy.change is not None:
            content = self.proxy.change(seen, content)
        self.answer(answer.status, content, dict(answer.getheaders()), seen)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

    def answer(
        self,
        status: int,
        content: bytes,
        headers: dict[str, str] | None = None,
        seen: Seen | None = None,
    ) -> None:
        """Send a whole answer."""
        left_out = ("content-length", "transfer-encoding", "connection", "date", "server")
        self.send_response(status)
        for name, value in (headers or {}).items():
            if name.lower() not in left_out:
                self.send_header(name, value)
        length = (headers or {}).get("Content-Length") if self.command == "HEAD" else None
        self.send_header("Content-Length", length or str(len(content)))
        self.end_headers()
        for at in range(0, len(content), PIECE):
            self.wfile.write(content[at : at + PIECE])
            if seen is not None:
                seen.nbytes += len(content[at : at + PIECE])

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Say nothing of connections that the client has ended."""


@contextlib.contextmanager
def proxied(upstream: int) -> Iterator[Proxy]:
    """A proxy on a free port."""
    proxy = Proxy(upstream)
    handler = type("ProxyHandler", (Handler,), {"proxy": proxy})
    server = _Quiet(("127.0.0.1", 0), handler)
    proxy.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()


class Bucket:
    """A bucket, as another program sees it: past the proxy."""

    def __init__(self, port: int, name: str) -> None:
        self._port = port
        self.name = name
        self._ask("PUT", "")

    @property
    def url(self) -> str:
        return f"s3://{self.name}/models"

    def put(self, key: str, content: bytes) -> None:
        self._ask("PUT", f"/models/{key}", content)

    def upload(self, folder: Path) -> None:
        """Put the files of a version, the manifest last, as export does."""
        files = sorted(folder.iterdir(), key=lambda file: file.name == "manifest.json")
        for file in files:
            self.put(f"{folder.parent.name}/{folder.name}/{file.name}", file.read_bytes())

    def remove(self, *keys: str) -> None:
        for key in keys:
            self._ask("DELETE", f"/models/{key}")

    def remove_version(self, folder: Path) -> None:
        names = (file.name for file in folder.iterdir())
        self.remove(*(f"{folder.parent.name}/{folder.name}/{name}" for name in names))

    def read(self, key: str) -> bytes:
        return self._ask("GET", f"/models/{key}")

    def _ask(self, method: str, path: str, body: bytes | None = None) -> bytes:
        url = f"http://127.0.0.1:{self._port}/{self.name}{quote(path)}"
        credential = "Credential=x/20260101/us-east-1/s3/aws4_request"
        headers = {
            "Authorization": f"AWS4-HMAC-SHA256 {credential}",
            "Content-Type": "application/octet-stream",
        }
        request = urllib.request.Request(url, data=body, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            content: bytes = answer.read()
            return content


# Faults.


def status(code: int, content: bytes = b"") -> Fault:
    """Answers every request with a status."""

    def fault(handler: Handler, _: Seen) -> bool:
        handler.answer(code, content)
        return True

    return fault


def expired(handler: Handler, _: Seen) -> bool:
    """As S3 answers a token that has expired: with the token in it."""
    text = f"<Error><Code>ExpiredToken</Code><Token-0>{TOKEN}</Token-0></Error>"
    handler.answer(400, text.encode())
    return True


def reset(handler: Handler, _: Seen) -> bool:
    """Cuts the connection in place of an answer."""
    handler.close_connection = True
    linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.connection.close()
    return True


def only(name: str, fault: Fault) -> Fault:
    """A fault of the requests whose path contains something."""
    return lambda handler, seen: name in seen.path and fault(handler, seen)


def environment_of(proxy: Proxy) -> dict[str, str]:
    """Variables with which the tools of S3 use the proxy, and no files of the user."""
    nothing = {"AWS_SHARED_CREDENTIALS_FILE": os.devnull, "AWS_CONFIG_FILE": os.devnull}
    return {**VARIABLES, **nothing, "AWS_ENDPOINT_URL": proxy.url}
