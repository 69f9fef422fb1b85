"""A proxy that removes a path prefix and does not tell the server about it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import httpx

from tests.e2e.server import PLAIN

PREFIX = "/some/prefix"
OF_THE_HOP = ("transfer-encoding", "connection")


@contextlib.contextmanager
def below_a_prefix(url: str) -> Iterator[str]:
    """The address of the proxy; it passes on what comes as it comes, streams too."""

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if not self.path.startswith(f"{PREFIX}/"):
                self.send_error(HTTPStatus.NOT_FOUND)
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            asked = url + self.path.removeprefix(PREFIX)
            headers = dict(self.headers.items())
            with (
                httpx.Client(verify=PLAIN, timeout=30) as client,
                client.stream(self.command, asked, headers=headers, content=body) as answer,
                contextlib.suppress(ConnectionError),  # the browser has left
            ):
                self.send_response(answer.status_code)
                for name, value in answer.headers.items():
                    if name not in OF_THE_HOP:
                        self.send_header(name, value)
                self.end_headers()
                for data in answer.iter_raw():
                    self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        Thread(target=proxy.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{proxy.server_address[1]}{PREFIX}"
        proxy.shutdown()
