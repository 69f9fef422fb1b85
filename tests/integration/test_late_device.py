"""The whole application on an asynchronous device that does everything as late as possible."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.integration.harness import serving
from tests.late_streams import put_everything_off

REQUESTS = 60
BAD = (101.0, -101.0)  # fails its batch, and gives NaN


@pytest.mark.parametrize(("device", "replicas"), [("cpu", 1), ("cpu*2", 2)])
async def test_every_request_gets_its_own_answer(
    double: Path, monkeypatch: pytest.MonkeyPatch, device: str, replicas: int
) -> None:
    devices = put_everything_off(monkeypatch)
    async with serving(double, devices=device, cache_bytes=0, max_batch_size=4) as api:

        async def ask(number: int) -> None:
            items = [[number / 10, row / 10] for row in range(number % 7 + 1)]
            bad = number % len(items) if number % 5 == 0 else None
            if bad is not None:
                items[bad] = [BAD[number % 2], 0.0]
            response = await api.client.post("/batch-predict", json={"inputs": items})
            if bad is not None and len(items) == 1:
                assert response.status_code == 500
                return
            assert response.status_code == 200
            for at, prediction in enumerate(response.json()["predictions"]):
                if at == bad:
                    code = "backend_failed" if items[at][0] > 0 else "non_finite_output"
                    assert prediction["code"] == code
                else:
                    wanted = [2 * value for value in items[at]]
                    assert prediction["outputs"]["y"] == pytest.approx(wanted)

        await asyncio.gather(*(ask(number) for number in range(REQUESTS)))
        for stage in ("copy_in", "compute", "copy_out"):
            assert await api.metric("torchlane_replica_device_seconds_total", stage=stage) > 0
        assert await api.metric("torchlane_replica_faults_total") == 0
    assert len(devices) == replicas
    assert not any(each.waiting for each in devices)
