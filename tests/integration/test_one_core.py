"""The application on one core, where its event loop stands still for short batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.engine.replica import Replica
from app.main import BLOCK_S
from tests.integration.harness import serving


@pytest.mark.parametrize(("cores", "blocks_for"), [(1, BLOCK_S), (2, 0.0)])
async def test_short_batches_block_the_loop_on_one_core(
    double: Path, monkeypatch: pytest.MonkeyPatch, cores: int, blocks_for: float
) -> None:
    blocked: list[float] = []
    start = Replica.start

    def noted(replica: Replica, model: Any, *how: Any) -> None:
        blocked.append(how[3])
        start(replica, model, *how)

    monkeypatch.setattr(Replica, "start", noted)
    monkeypatch.setattr("app.backends.devices.usable_cores", lambda: cores)
    async with serving(double, devices="cpu", cache_bytes=0) as api:
        for number in range(1, 6):
            answer = await api.client.post("/predict", json={"input": [number, 0.5]})
            assert answer.json()["prediction"]["outputs"]["y"] == [2 * number, 1]
    assert blocked == [blocks_for] * 5
