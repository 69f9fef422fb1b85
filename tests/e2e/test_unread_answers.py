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
ANSWER = 4 * ITEMS * WIDTH * 4  # the arrays, and three times as much as JSON
COMPUTED = 100 * MIB  # of arrays that are computed and stacked at once, and of the allocator
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


def in_kernel(server: Server) -> list[int]:
    """The bytes that each of the server's connections has not sent, or the client not got."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    local = f":{server.port:04X}"
    return [int(row[4].partition(":")[0], 16) for row in rows if row[1].endswith(local)]


@pytest.fixture
def unread() -> Iterator[list[socket.socket]]:
    opened: list[socket.socket] = []
    yield opened
    for each in opened:
        each.close()


def look(server: Server, over: threading.Event, seen: list[int]) -> None:
    """Another caller, who notes the memory."""
    with httpx.Client(base_url=server.url, verify=PLAIN, timeout=60) as client:
        while not over.is_set():
            assert client.get("/health/live").status_code == 200
            seen.append(memory(server))
            time.sleep(0.01)


@pytest.mark.parametrize(
    ("workers", "headers"),
    [("1", ""), pytest.param("2", "Expect: 100-continue\r\n", marks=pytest.mark.soak)],
    ids=["one", "two"],
)
def test_memory_is_bounded_and_others_are_served(
    models: Path, tmp_path: Path, unread: list[socket.socket], workers: str, headers: str
) -> None:
    """Of 20 large answers that nobody reads, those that fit are kept, and the others rejected."""
    with running(models, tmp_path / "log", workers=workers, drain_s="4", **SETTINGS) as server:
        for at in range(2 * int(workers)):
            asked(server, 100 + at).close()  # so that every worker has computed
        server.wait_for_metric("torchlane_requests_in_flight", lambda value: value == 0)
        time.sleep(0.5)
        before, over = memory(server), threading.Event()
        seen: list[int] = []
        watcher = threading.Thread(target=look, args=(server, over, seen))
        watcher.start()
        unread += [asked(server, at, headers) for at in range(1, 1 + CALLERS)]
        server.wait_for_metric(
            "torchlane_requests_total", lambda value: value >= CALLERS // 2
        )  # nearly all are rejected, and others wait for their clients
        server.wait_for_metric("torchlane_answers_bytes", lambda value: value > 0)
        deadline = time.monotonic() + 60
        while not max(in_kernel(server)):
            assert time.monotonic() < deadline, "nothing is written"
            time.sleep(0.05)
        time.sleep(2)
        over.set()
        watcher.join()
        one_each = int(workers) * ANSWER  # one alone always fits
        assert 0 < server.metric("torchlane_answers_bytes") <= max(LIMIT, one_each)
        assert 0 < max(in_kernel(server)) < MIB
        # The arrays of the requests that are computed, a batch at a time, are no answers yet.
        assert max(seen) - before < LIMIT + COMPUTED * int(workers)
        assert len(seen) > 1
        server.signal(signal.SIGTERM)
        assert server.exit_code() == 0
