"""Floods of cheap requests, each from many connections, and what another caller notices of them.

`python -m tests.e2e.floods URL` runs each flood against a server and prints one line for each.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import re
import selectors
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

import httpx

from tests.e2e.server import PLAIN

Flood: TypeAlias = Callable[[int, bytes, float], None]  # port, what to send, seconds
CONNECTIONS = 60
WRITTEN_BYTES = 256 << 10  # at once
PAUSE_S = 0.01  # between two requests of the other caller
JSON = b"content-type: application/json\r\n"


def _post(path: bytes, body: bytes, headers: bytes = JSON) -> bytes:
    head = b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n"
    return head % (path, headers, len(body)) + body


def _chunks(path: bytes) -> bytes:
    head = b"POST %b HTTP/1.1\r\nhost: x\r\n%btransfer-encoding: chunked\r\n\r\n"
    return head % (path, JSON) + b"1\r\n \r\n" * 40_000 + b"0\r\n\r\n"


def floods(cached: bytes) -> dict[str, bytes]:
    """What each connection sends again and again, by the name of the flood.

    Args:
        cached: a body whose prediction is cached.
    """
    return {
        "unknown model": _post(b"/models/nope/predict", b"{}"),
        "unknown path": b"GET /nope HTTP/1.1\r\nhost: x\r\n\r\n",
        "wrong key": _post(b"/predict", b"", b"authorization: Bearer x\r\n"),
        "empty body": _post(b"/predict", b""),
        "cached": _post(b"/predict", cached),
        "probes": b"GET /health/ready HTTP/1.1\r\nhost: x\r\n\r\n",
        "chunks of one byte": _chunks(b"/predict"),
        "chunks of one byte, refused": _chunks(b"/models/nope/predict"),
        "chunks of one byte, unknown path": _chunks(b"/nope"),
        "refused bodies": _post(b"/models/nope/predict", b" " * (8 << 20)),
        "blank lines": b"\r\n" * 4096,
    }


@dataclass(frozen=True)
class Noticed:
    """Milliseconds that another caller waited for its answers, in order of size."""

    live: list[float]
    predict: list[float]

    @property
    def worst_p99(self) -> float:
        """The larger of both 99th percentiles."""
        return max(_p99(self.live), _p99(self.predict))

    def __str__(self) -> str:
        kinds = {"/health/live": self.live, "/predict": self.predict}
        return "; ".join(
            f"{path} p50 {statistics.median(times):.1f} p99 {_p99(times):.1f} "
            f"max {times[-1]:.1f} ms of {len(times)}"
            for path, times in kinds.items()
        )


def _p99(times: list[float]) -> float:
    return times[min(len(times) - 1, int(0.99 * len(times)))]


def send_ahead(port: int, data: bytes, seconds: float) -> None:
    """Write requests without waiting for answers, which are read and dropped."""
    ahead = data * max(1, WRITTEN_BYTES // len(data))
    unsent: dict[socket.socket, memoryview] = {}
    with selectors.DefaultSelector() as selector:

        def connect() -> None:
            sock = socket.create_connection(("127.0.0.1", port), timeout=20)
            sock.setblocking(False)
            unsent[sock] = memoryview(ahead)
            selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE)

        for _ in range(CONNECTIONS):
            connect()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for key, events in selector.select(0.1):
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                try:
                    if events & selectors.EVENT_READ and not sock.recv(1 << 20):
                        raise ConnectionResetError
                    if events & selectors.EVENT_WRITE:
                        left = unsent[sock][sock.send(unsent[sock]) :]
                        unsent[sock] = left or memoryview(ahead)
                except BlockingIOError:
                    continue
                except ConnectionError:
                    selector.unregister(sock)
                    sock.close()
                    del unsent[sock]
                    connect()
        for sock in unsent:
            sock.close()


def come_and_go(port: int, data: bytes, seconds: float) -> None:
    """Open a connection, send once, and close it with a reset or an end; many at a time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        opened = []
        for _ in range(CONNECTIONS):
            with contextlib.suppress(OSError):
                opened.append(socket.create_connection(("127.0.0.1", port), timeout=20))
                opened[-1].sendall(data)
        for number, sock in enumerate(opened):
            if number % 2:
                with contextlib.suppress(OSError):
                    sock.recv(1 << 16)
            sock.close()


@contextlib.contextmanager
def flooded(
    send: Flood, port: int, data: bytes, seconds: float
) -> Iterator[multiprocessing.process.BaseProcess]:
    """A flood in a process of its own, ended at the end of the block."""
    process = multiprocessing.get_context("spawn").Process(target=send, args=(port, data, seconds))
    process.start()
    try:
        time.sleep(0.5)  # until it has begun
        yield process
    finally:
        process.terminate()
        process.join()


def notice(url: str, body: bytes, seconds: float, key: str = "") -> Noticed:
    """Ask for /health/live, on a new connection each time, and for a prediction, in turns.

    The first number of the body changes each time, so that no prediction is cached.
    """
    live: list[float] = []
    predict: list[float] = []
    headers = {"content-type": "application/json", "x-api-key": key}
    with httpx.Client(base_url=url, verify=PLAIN, timeout=60) as client:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter()
            with httpx.Client(base_url=url, verify=PLAIN, timeout=60) as other:
                other.get("/health/live").raise_for_status()
            between = time.perf_counter()
            changed = re.sub(rb"[0-9.]+", b"%g" % (time.time() % 1), body, count=1)
            client.post("/predict", content=changed, headers=headers).raise_for_status()
            live.append((between - began) * 1000)
            predict.append((time.perf_counter() - between) * 1000)
            time.sleep(PAUSE_S)
    return Noticed(sorted(live), sorted(predict))


def every_flood(body: bytes) -> dict[str, tuple[Flood, bytes]]:
    """What sends each flood, and the bytes to send.

    Args:
        body: a body whose prediction is cached.
    """
    ahead: dict[str, tuple[Flood, bytes]] = {
        name: (send_ahead, data) for name, data in floods(body).items()
    }
    return ahead | {"come and go": (come_and_go, _post(b"/models/nope/predict", b"{}"))}


def main() -> None:
    """Run the floods that the command line names, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--body", type=argparse.FileType(), help="a file with a prediction's JSON")
    parser.add_argument("--key", default="", help="API key of the normal caller")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--only", action="append", help="a flood; may be repeated")
    given = parser.parse_args()
    port = urlsplit(given.url).port or 80
    body = given.body.read().encode() if given.body else b'{"input": [1, 2]}'
    print(f"{'none':34}", notice(given.url, body, 5, given.key), flush=True)  # noqa: T201
    for name, (send, data) in every_flood(body).items():
        if given.only is None or name in given.only:
            with flooded(send, port, data, given.seconds + 5):
                noticed = notice(given.url, body, given.seconds, given.key)
            print(f"{name:34}", noticed, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
