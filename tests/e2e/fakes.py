"""HAProxy with the shipped configuration before small servers that answer what a test wants."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.e2e.balanced import SHIPPED, Balancer, balancing
from tests.e2e.names import Names, naming
from tests.e2e.server import free_port


class Fake(ThreadingHTTPServer):
    """A server that is always ready, answers its address, and keeps no connection.

    Attributes:
        status: of its answers; 0: it closes the connection without one.
        seen: the heads of the requests that it got, without the checks.
    """

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, host: str, port: int) -> None:
        self.host, self.status = host, 200
        self.seen: list[Message] = []
        super().__init__((host, port), Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Checks reset their connections: that is no error."""


class Handler(BaseHTTPRequestHandler):
    """Answers GET and POST."""

    protocol_version = "HTTP/1.1"
    server: Fake

    def do_POST(self) -> None:
        """Answer what the test has set."""
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append(self.headers)
        self._answer(self.server.status)

    def do_GET(self) -> None:
        """Be ready."""
        if self.path == "/health/ready":
            self._answer(200)
        else:
            self.do_POST()

    def _answer(self, status: int) -> None:
        self.close_connection = True
        if status == 0:
            return
        text = self.server.host.encode()
        head = b"HTTP/1.1 %d said\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
        self.wfile.write(head % (status, len(text)) + text)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@dataclass(frozen=True)
class Faked:
    """A balancer before fakes."""

    balancer: Balancer
    fakes: list[Fake]
    names: Names

    def counts(self) -> list[int]:
        """Requests that each has got."""
        return [len(each.seen) for each in self.fakes]


@contextlib.contextmanager
def faked(folder: Path, count: int, **settings: str) -> Iterator[Faked]:
    """Fakes at 127.0.0.1, 127.0.0.2 and so on, all of which the balancer has found."""
    port = free_port()
    hosts = [f"127.0.0.{number}" for number in range(1, count + 1)]
    with contextlib.ExitStack() as stack:
        fakes = [stack.enter_context(Fake(host, port)) for host in hosts]
        for fake in fakes:
            threading.Thread(target=fake.serve_forever, args=(0.05,), daemon=True).start()
            stack.callback(fake.shutdown)
        names = stack.enter_context(naming(hosts))
        found = {"nameserver": f"127.0.0.1:{names.port}", "server_port": str(port)}
        balancer = stack.enter_context(balancing(folder, SHIPPED, **found, **settings))
        balancer.wait_ready(count)
        yield Faked(balancer, fakes, names)
