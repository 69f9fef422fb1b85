"""Asks servers about themselves: their metrics, their models, whether they are ready."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.chaos.connection import ChaosAnswer, connect
from tests.e2e.server import Server

LIMIT_S = 20.0


class Scrape:
    """What GET /metrics said.

    Args:
        text: as it came, of several servers one behind the other.
    """

    def __init__(self, text: str) -> None:
        self._samples = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def total(self, name: str, **labels: str) -> float:
        """The sum of all series with these labels; 0 where there is none yet."""
        return sum(
            sample.value
            for sample in self._samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    def by(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """Labels' values -> the sum of all series that have them."""
        found: dict[tuple[str, ...], float] = {}
        for sample in self._samples:
            if sample.name == name:
                key = tuple(sample.labels[label] for label in labels)
                found[key] = found.get(key, 0.0) + sample.value
        return found


async def get(server: Server, path: str) -> ChaosAnswer:
    """One GET on a connection of its own."""
    connection = await connect(server.port, server.host)
    try:
        connection.send(f"GET {path} HTTP/1.1\r\nHost: loopback\r\n\r\n".encode())
        return await connection.receive(LIMIT_S)
    finally:
        connection.leave()


async def scrape(servers: Sequence[Server]) -> Scrape:
    """What the metrics say now."""
    return Scrape("\n".join([(await get(each, "/metrics")).body.decode() for each in servers]))


async def model_info(server: Server, model: str) -> dict[str, Any]:
    """What GET /models/MODEL says."""
    found: dict[str, Any] = json.loads((await get(server, f"/models/{model}")).body)
    return found
