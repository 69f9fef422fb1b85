"""Large answers that nobody reads, and a slow reader, over a real process."""

from __future__ import annotations

import gzip
import re
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import torch
from torch import nn

from models.tensors import TensorSpec
from tests.artifacts import write_artifact
from tests.e2e.server import PLAIN, Server, running

MIB = 1 << 20
WIDTH = 1 << 20  # 4 MiB an item, and about 12 MB of JSON
ITEMS, CALLERS, LIMIT = 6, 20, 150 * MIB
SETTINGS = {"cache_bytes": "0", "max_batch_size": "1", "answers_limit_bytes": str(LIMIT)}


class Wide(nn.Module):
    """x [n, 2] -> y [n, WIDTH], numbers with many digits."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return x.sum(1, keepdim=True) * torch.linspace(0, 1, 1 << 20)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    wide = TensorSpec(name="y", dtype="float32", shape=(-1, WIDTH))
    write_artifact(folder, "wide", module=Wide(), outputs=(wide,))
    return folder


def body(first: int) -> bytes:
    rows = ",".join(f"[{first}, {at}.5]" for at in range(ITEMS))
    return gzip.compress(b'{"inputs": [%s]}' % rows.encode())


def asked(server: Server, first: int, headers: str = "") -> socket.socket:
    """A connection whose answer nobody reads."""
    given = body(first)
    head = (
        "POST /batch-predict HTTP/1.1\r\nHost: loopback\r\nContent-Encoding: gzip\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(given)}\r\n{headers}\r\n"
    )
    deaf = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    deaf.sendall(head.encode() + given)
    return deaf


def memory(server: Server, what: str = "VmRSS") -> int:
    """Of the process and its children, in bytes."""
    pids = [str(server.process.pid)]
    for path in Path("/proc").glob("[0-9]*/stat"):
        stat = path.read_text().rpartition(")")[2].split() if path.exists() else ["", ""]
        if stat[1] == pids[0]:
            pids.append(path.parent.name)
    texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids]
    return sum(
        int(found[1]) << 10 for text in texts if (found := re.search(rf"{what}:\s+(\d+)", text))
    )


@pytest.fixture
def unread() -> Iterator[list[socket.socket]]:
    opened: list[socket.socket] = []
    yield opened
    for each in opened:
        each.close()


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("headers", ["", "Expect: 100-continue\r\n"], ids=["fast", "asgi"])
def test_memory_is_bounded_and_others_are_served(
    models: Path, tmp_path: Path, unread: list[socket.socket], workers: str, headers: str
) -> None:
    with running(models, tmp_path / "log", workers=workers, **SETTINGS) as server:
        with httpx.Client(base_url=server.url, verify=PLAIN, timeout=60) as client:
            first = client.post(
                "/batch-predict", content=body(0), headers={"content-encoding": "gzip"}
            )
            assert first.status_code == 200
            del first
            before, highest, waits = memory(server), 0, []
            over = threading.Event()

            def look() -> None:
                nonlocal highest
                with httpx.Client(base_url=server.url, verify=PLAIN, timeout=60) as other:
                    while not over.is_set():
                        began = time.perf_counter()
                        assert other.get("/health/live").status_code == 200
                        waits.append(time.perf_counter() - began)
                        highest = max(highest, memory(server))
                        time.sleep(0.005)

            watcher = threading.Thread(target=look)
            watcher.start()
            unread += [asked(server, at, headers) for at in range(1, 1 + CALLERS)]
            server.wait_for_metric("torchlane_requests_in_flight", lambda value: value == 0) if (
                not headers
            ) else time.sleep(8)
            print(server.metric("torchlane_answers_bytes"), "held")
            over.set()
            watcher.join()
            print(
                "before",
                before / MIB,
                "highest",
                highest / MIB,
                "wait",
                max(waits),
                sorted(waits)[int(0.99 * len(waits))],
            )
            reply = client.post(
                "/batch-predict", content=body(77), headers={"content-encoding": "gzip"}
            )
            print(reply.status_code, reply.text[:300])
            began = time.perf_counter()
            server.signal(signal.SIGTERM)
            print(server.exit_code(), time.perf_counter() - began)
            assert 0
