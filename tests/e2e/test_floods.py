"""Floods of cheap requests from 60 connections do not stop the server for anybody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.access.entries import make_key
from tests.e2e.floods import Flood, every_flood, flooded, notice
from tests.e2e.server import running

KEY, LINE = make_key("mobile", ["predict"])
BODY = b'{"input": [1, 2]}'
FLOODS = every_flood(BODY)
WORKERS = pytest.mark.parametrize("workers", ["1", "2"])


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        ("wrong key", "1"),
        pytest.param("chunks of one byte, unknown path", "2", marks=pytest.mark.soak),
    ],
)
def test_a_flood_starves_nobody(models: Path, name: str, workers: str) -> None:
    """Without turns, others wait for as long as the flood lasts; a stop drains during it."""
    log = models.parent / "log"
    with (
        running(models, log, api_keys=LINE, workers=workers) as server,
        flooded(*_of(name, server.port, 120)) as flood,
    ):
        notice(server.url, BODY, 2, KEY)
        assert flood.is_alive()  # others were answered before it ended
        server.signal()
        assert server.exit_code() == 0
    assert "Traceback" not in server.log


@pytest.mark.soak
@pytest.mark.timeout(120)
@WORKERS
@pytest.mark.parametrize("name", FLOODS)
def test_every_flood_delays_others_little(models: Path, name: str, workers: str) -> None:
    with running(models, models.parent / "log", api_keys=LINE, workers=workers) as server:
        with flooded(*_of(name, server.port, 25)):
            noticed = notice(server.url, BODY, 20, KEY)
        print(f"{name}, workers: {workers}: {noticed}")  # noqa: T201
        assert noticed.worst_p99 < 100, noticed
        server.signal()
        assert server.exit_code() == 0


def _of(name: str, port: int, seconds: float) -> tuple[Flood, int, bytes, float]:
    send, data = FLOODS[name]
    return send, port, data, seconds
