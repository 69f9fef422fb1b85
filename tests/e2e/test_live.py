"""GET /live of real processes: it counts all workers, and keeps no server from stopping."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.server import PLAIN, running

REQUESTS = 60


def snapshots(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


@pytest.mark.slow
def test_a_shutdown_does_not_wait_for_listeners(models: Path, tmp_path: Path) -> None:
    with running(models, tmp_path / "log", workers="2", drain_s="600") as server:
        with httpx.stream("GET", f"{server.url}/live", verify=PLAIN) as answer:
            coming = snapshots(answer)
            assert any(each["ready"] for each in coming)  # another worker may have been ready first
            server.signal()
            for _ in coming:  # it ends as an answer should, else httpx raises
                pass
        assert server.exit_code() == 0


@pytest.mark.slow
def test_snapshots_count_all_workers(models: Path, tmp_path: Path) -> None:
    with running(models, tmp_path / "log", workers="2") as server:
        with httpx.stream("GET", f"{server.url}/live", verify=PLAIN) as answer:
            coming = snapshots(answer)
            named = (sorted(one["name"] for one in each["replicas"]) for each in coming)
            assert ["cpu#0", "cpu#1"] in named  # one worker may have been ready first
            with contextlib.ExitStack() as stack:  # connections that stay open go to both workers
                made = [httpx.Client(verify=PLAIN, base_url=server.url) for _ in range(6)]
                clients = [stack.enter_context(each) for each in made]
                for number, client in zip(range(REQUESTS), itertools.cycle(clients), strict=False):
                    answer_to = client.post("/predict", json={"input": [number, 2]})
                    assert answer_to.status_code == 200
            counted, items = 0.0, 0.0
            by_replica = dict.fromkeys(("cpu#0", "cpu#1"), 0.0)
            for each in coming:
                counted += each["requests"]["per_s"] * each["interval_s"]
                items += each["models"][0]["items_per_s"] * each["interval_s"]
                for replica in each["replicas"]:
                    by_replica[replica["name"]] += replica["items_per_s"] * each["interval_s"]
                if counted > REQUESTS - 0.5:
                    break
        assert counted == pytest.approx(REQUESTS, abs=0.5)
        assert items == pytest.approx(REQUESTS, abs=0.5)
        assert all(each > 1 for each in by_replica.values())


@pytest.mark.soak
def test_the_server_prints_the_pages_url(models: Path, tmp_path: Path) -> None:
    with running(models, tmp_path / "log", workers="2", host="0.0.0.0", page="on") as server:
        (url,) = (told["url"] for told in server.events("page"))
        assert url == f"http://127.0.0.1:{server.port}/"
        assert "<html" in httpx.get(url, verify=PLAIN).text
