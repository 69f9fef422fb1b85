"""6,000 mixed requests at concurrency 64; every answer is known beforehand and compared."""

from __future__ import annotations

import asyncio
import collections
import json
import random
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.artifacts import write_artifact
from tests.e2e.server import Server, running

TASKS = "torchlane_event_loop_tasks"
REQUESTS = 3_000
CONCURRENCY = 64
MAX_BODY_BYTES = 100_000
MAX_ITEMS = 16
GROWTH_LIMIT_BYTES = 64 * 1024 * 1024  # allocator slack; the cache is off or tiny


@dataclass(frozen=True)
class Wanted:
    """What must come back: a status, and the answer's predictions or the error's code."""

    status: int
    content: object


@dataclass(frozen=True)
class Shot:
    """One request, and what it must be answered; None: the sender leaves before the answer."""

    path: str
    body: bytes
    wanted: Wanted | None
    content_type: str = "application/json"


def draw(rng: random.Random) -> Shot:
    """Mostly good requests, with every kind of bad one among them."""
    kind = rng.choices(
        ["single", "popular", "batch", "poison", "mixed", "gone", "malformed", "shape", "large",
         "many", "type", "nowhere", "raw"],
        weights=[30, 15, 15, 4, 4, 10, 5, 5, 2, 2, 3, 2, 5],
    )[0]  # fmt: skip
    number = rng.randrange(100) if kind == "popular" else rng.random() * 100
    if kind in ("single", "popular"):
        return _single(number)
    if kind == "gone":
        return Shot("/predict", _single(number).body, None)
    if kind == "batch":
        numbers = [rng.choice([number, rng.random() * 50, 1.0]) for _ in range(rng.randrange(1, 9))]
        return _batch(numbers, [_prediction(n) for n in numbers])
    if kind == "mixed":
        right = [_prediction(number), "backend_failed", "non_finite_output"]
        return _batch([number, 500, -500], right)
    octets = "application/octet-stream"
    return {
        "poison": Shot("/predict", b'{"input": [500, 1]}', Wanted(500, "backend_failed")),
        "raw": Shot("/predict", b"123456789", Wanted(422, "invalid_input"), octets),
        "malformed": Shot("/predict", b'{"input": [1, 2', Wanted(422, "invalid_input")),
        "shape": Shot("/predict", b'{"input": [[1], [2, 3]]}', Wanted(422, "invalid_input")),
        "large": Shot("/predict", b" " * (MAX_BODY_BYTES + 1), Wanted(413, "payload_too_large")),
        "many": Shot(
            "/batch-predict",
            json.dumps({"inputs": [[1, 2]] * (MAX_ITEMS + 1)}).encode(),
            Wanted(413, "payload_too_large"),
        ),
        "type": Shot("/predict", b"x", Wanted(415, "unsupported_media_type"), "text/csv"),
        "nowhere": Shot("/models/x/predict", b'{"input": 1}', Wanted(404, "model_not_found")),
    }[kind]


def _prediction(number: float) -> object:
    return {"outputs": {"y": [pytest.approx(2 * number, rel=1e-5), 2.0]}}


def _single(number: float) -> Shot:
    body = json.dumps({"input": [number, 1]}).encode()
    return Shot("/predict", body, Wanted(200, _prediction(number)))


def _batch(numbers: list[float], predictions: list[object]) -> Shot:
    body = json.dumps({"inputs": [[number, 1] for number in numbers]}).encode()
    return Shot("/batch-predict", body, Wanted(200, predictions))


class Client:
    """A keep-alive connection that is reopened after each abandoned one."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def fire(self, shot: Shot, rng: random.Random) -> Wanted | None:
        """Send a request; what came back, or None where we left first."""
        reader, writer = self._streams or await asyncio.open_connection("127.0.0.1", self._port)
        self._streams = (reader, writer)
        head = (
            f"POST {shot.path} HTTP/1.1\r\nHost: loopback\r\nContent-Type: {shot.content_type}\r\n"
            f"Content-Length: {len(shot.body)}\r\n\r\n"
        )
        writer.write(head.encode() + shot.body)
        if shot.wanted is None:
            await asyncio.sleep(rng.random() * 0.003)
            writer.transport.abort()
            self._streams = None
            return None
        status_line = await reader.readline()
        length = 0
        while (line := await reader.readline()) != b"\r\n":
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        body = json.loads(await reader.readexactly(length))
        return Wanted(int(status_line.split()[1]), _content(body))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()


def _content(body: dict[str, object]) -> object:
    if "code" in body:
        return body["code"]
    if "prediction" in body:
        return body["prediction"]
    places = body["predictions"]
    assert isinstance(places, list)
    return [place.get("code", place) for place in places]


async def storm(server: Server, requests: int) -> collections.Counter[str]:
    """Fire; returns how many answers were right, wrong, or given up."""
    counts: collections.Counter[str] = collections.Counter()
    left = iter(range(requests))

    async def one_client(seed: int) -> None:
        rng = random.Random(seed)
        client = Client(server.port)
        for _ in left:
            shot = draw(rng)
            got = await client.fire(shot, rng)
            verdict = "gone" if got is None else "right" if got == shot.wanted else "wrong"
            counts[verdict] += 1
            if verdict == "wrong" and counts["wrong"] < 5:
                counts[f"wanted {shot.wanted}, got {got}"] += 1
        client.close()

    await asyncio.gather(*(one_client(seed) for seed in range(CONCURRENCY)))
    return counts


@pytest.mark.parametrize(
    ("requests", "cache_bytes"),
    [
        pytest.param(REQUESTS, 0, id="no cache"),
        pytest.param(REQUESTS, 50_000, id="a cache that always makes room"),
        pytest.param(1_000_000, 50_000, id="soak", marks=pytest.mark.soak),
    ],
)
@pytest.mark.timeout(1800)
def test_a_mixed_load_is_answered_without_leaks(
    tmp_path: Path, requests: int, cache_bytes: int
) -> None:
    write_artifact(tmp_path / "models", "double")
    settings = {
        "max_body_bytes": str(MAX_BODY_BYTES),
        "max_items": str(MAX_ITEMS),
        "cache_bytes": str(cache_bytes),
        "log_level": "warning",
    }
    with running(tmp_path / "models", tmp_path / "log", **settings) as server:
        process = psutil.Process(server.process.pid)
        asyncio.run(storm(server, 1000))  # the allocator's first growth is not a leak
        before, threads = process.memory_info().rss, process.num_threads()
        tasks = server.metric(TASKS)
        counts = asyncio.run(storm(server, requests))
        assert set(counts) == {"right", "gone"}, counts
        assert counts["right"] + counts["gone"] == requests
        assert counts["gone"] > requests // 20
        server.wait_for_metric(TASKS, lambda now: now <= tasks)
        assert server.metric("torchlane_queue_depth_items") == 0
        assert server.metric("torchlane_cache_bytes") <= cache_bytes
        assert process.memory_info().rss - before < GROWTH_LIMIT_BYTES
        assert process.num_threads() == threads
        assert "unhandled_error" not in server.log
        server.signal()
        assert server.exit_code() == 0
