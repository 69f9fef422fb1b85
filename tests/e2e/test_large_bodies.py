"""The most expensive bodies that are no pictures: how long others wait while they are read.

    python -m pytest -s -m soak tests/e2e/test_large_bodies.py

prints the table of docs/security.md.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.types import Array
from tests.e2e.server import running
from tests.e2e.test_pictures import BATCH, PREDICT, UNCACHED, ask
from tests.forms import FORM, files
from tests.unit.models.pictures import png

JSON, NPY, OCTETS = "application/json", "application/x-npy", "application/octet-stream"
MIB = 1 << 20
MOST = 16 * MIB  # the default of TORCHLANE_MAX_BODY_BYTES


def npy(array: Array) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def bodies() -> Iterator[tuple[str, str, str, bytes]]:
    """Name, path, media type and body."""
    numbers = b"[%s]" % b",".join(b"0.12345678901%03d" % (at % 1000) for at in range(1024))
    many, floats = np.random.default_rng(1).random((1024, 1, 32, 32)), "<f4"
    picture = b'"%s"' % base64.b64encode(png((28, 28), 0, 8))

    def batch(*items: bytes) -> bytes:
        return b'{"inputs": [%s]}' % b",".join(items)

    yield "JSON numbers", BATCH, JSON, batch(*[numbers] * 950)
    yield "JSON numbers in objects", BATCH, JSON, batch(*[b'{"image": %s}' % numbers] * 900)
    zeros = b"[%s]" % b",".join([b"0"] * 1024)
    yield "JSON numbers, the last item wrong", BATCH, JSON, batch(*[zeros] * 1023, b'["a"]')
    yield "JSON blanks", PREDICT, JSON, b'{"input": [1]}'.ljust(MOST)
    text = base64.b64encode(bytes(MOST * 3 // 4 - 200))
    yield "JSON base64 without a picture", PREDICT, JSON, b'{"input": "%s"}' % text
    yield "JSON, 1,000 pictures of 28 x 28", BATCH, JSON, batch(*[picture] * 1000)
    yield "octets", BATCH, OCTETS, many.astype(floats).tobytes()
    yield ".npy of float64", BATCH, NPY, npy(many)
    yield ".npy in Fortran order", BATCH, NPY, npy(np.asfortranarray(many.astype(floats)))
    yield "a form of 1,000 files", BATCH, FORM, files(*[bytes(4096)] * 1000)
    yield "a query of 60 KB", f"{PREDICT}?{'a=%41' * 12_000}", JSON, b'{"input": [1]}'


@pytest.mark.soak
def test_other_requests_wait_for_at_most_one_body(repository: Path, tmp_path: Path) -> None:
    with running(repository, tmp_path / "log", **UNCACHED) as server:

        def connected() -> contextlib.closing[http.client.HTTPConnection]:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            return contextlib.closing(connection)

        for name, path, kind, body in bodies():
            over, waits = threading.Event(), [0.0]

            def look(over: threading.Event = over, waits: list[float] = waits) -> None:
                with connected() as connection:
                    while not over.is_set():
                        began = time.perf_counter()
                        ask(connection, "/health/live")
                        waits.append(time.perf_counter() - began)
                        time.sleep(0.001)

            watcher = threading.Thread(target=look)
            watcher.start()
            with connected() as connection:
                statuses = {ask(connection, path, body, kind)[0] for _ in range(5)}
            over.set()
            watcher.join()
            size, ms = len(body) / MIB, max(waits) * 1e3
            sys.stdout.write(f"| {name} | {size:.1f} MiB | {ms:.0f} ms |\n")
            assert statuses <= {200, 422}
            assert max(waits) < 1
