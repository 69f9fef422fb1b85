"""What wrk says, and what it sends."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from loadtests.bench import wrk
from loadtests.bench.artifacts import manifest_of
from loadtests.bench.bodies import bodies_of
from loadtests.bench.dialects import TORCHLANE
from loadtests.bench.workloads import WORKLOADS, Workload
from loadtests.bench.wrk import LoadError, LoadPlan, WrkResult
from tests.artifacts import write_artifact
from tests.unit.loadtests.openloop.servers import OK, answering

TOLD = (
    '{"sent": 120, "answered": 100, "seconds": 2.000000, "p50_ms": 1.5, "p99_ms": 9.25, '
    '"not_200": 3, "broken": %d, "timeouts": %d}'
)
BY_NAME = {workload.name: workload for workload in WORKLOADS}
needs_wrk = pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")


def test_figures_are_read_from_the_last_line() -> None:
    run = wrk.parse(f"Running 2s test\n  1 threads\n\n{TOLD % (0, 0)}\n")
    assert run == WrkResult(2.0, answered=100, sent=120, not_200=3, p50_ms=1.5, p99_ms=9.25)
    assert run.requests_per_s == 50


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("unable to connect to 127.0.0.1:1 Connection refused\n", "unable to connect"),
        ("", "wrk said: nothing"),
        ('{"sent": broken', "wrk said"),
        (TOLD % (2, 0), "2 connections broke"),
        (TOLD % (0, 4), "4 answers stayed out"),
    ],
)
def test_failed_run_is_an_error(output: str, says: str) -> None:
    with pytest.raises(LoadError, match=says):
        wrk.parse(output)


@needs_wrk
@pytest.mark.parametrize("name", ["json-32", "binary-32", "batch-json", "batch-binary", "zipf"])
async def test_it_sends_the_numbered_requests(tmp_path: Path, name: str) -> None:
    workload: Workload = BY_NAME[name]
    folder = write_artifact(tmp_path, "double")
    bodies = bodies_of(workload, manifest_of(folder), TORCHLANE, seed=5)
    bodies.write(tmp_path / "requests")
    received: list[bytes] = []

    async def answer(body: bytes) -> bytes:
        received.append(body)
        await asyncio.sleep(0.002)  # slowly: each body is looked at
        return OK

    async with answering(answer) as address:
        file = tmp_path / "requests"
        run = await asyncio.to_thread(wrk.load, address.port, file, 70_000, LoadPlan(1, 1))
    assert 10 < run.answered <= len(received) <= run.sent <= run.answered + 2
    numbers = range(70_000, 70_000 + run.sent)  # wrk may try the script once and throw that away
    expected = [bodies.request(number).partition(b"\r\n\r\n")[2] for number in numbers]
    assert received in (expected[: len(received)], expected[1 : len(received) + 1])
