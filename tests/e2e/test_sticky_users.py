"""Sticky users while weights change and a worker is killed, in a server with several workers."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from app.registry.weights import split_of
from tests.artifacts import write_artifact
from tests.e2e.server import Server, running

USERS, REQUESTS, THREADS = 1000, 100_000, 4
SETTLED_S = 5.0  # after which all workers have read the file, also on a busy machine
WEIGHTS: tuple[Mapping[int, float], ...] = (
    *({1: 100}, {1: 99, 2: 1}, {1: 90, 2: 10}, {1: 50, 2: 50}, {1: 50, 2: 40, 3: 10}),
    *({1: 50, 2: 25, 3: 25}, {2: 25, 3: 25}, {2: 1, 3: 3}, {1: 5, 3: 95}, {3: 100}, {1: 100, 3: 0}),
)


@dataclass
class Traffic:
    """What users saw: for each answer the time of its request, the user and the version."""

    server: Server
    answers: list[tuple[float, int, int]] = field(default_factory=list)
    cut: int = 0
    users: itertools.count[int] = field(default_factory=itertools.count)
    stop: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Ask for one user after the other; a cut connection is opened again."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        with contextlib.closing(connection):
            self._ask(connection)

    def _ask(self, connection: http.client.HTTPConnection) -> None:
        while not self.stop.is_set():
            user = next(self.users) % USERS
            headers = {"Content-Type": "application/json", "X-User": f"user-{user}"}
            body = json.dumps({"input": [user / USERS, 0]})
            began = time.monotonic()
            try:
                connection.request("POST", "/models/m/predict", body, headers)
                answer = connection.getresponse()
                answer.read()
            except (OSError, http.client.HTTPException):
                self.cut += 1
                connection.close()
                continue
            assert answer.status == 200, answer.status
            self.answers.append((began, user, int(answer.headers["X-Torchlane-Version"])))


def choices(weights: Mapping[int, float]) -> list[int]:
    """The version of each user."""
    split = split_of("m", weights, "header:X-User", (1, 2, 3))
    if split is None:
        raise ValueError("no weights")
    return [split.ranked(b"user-%d" % user)[0] for user in range(USERS)]


def write(file: Path, weights: Mapping[int, float]) -> None:
    text = ", ".join(f"{version} = {weight}" for version, weight in weights.items())
    new = file.with_suffix(".new")
    new.write_text(f'[models.m]\nweights = {{ {text} }}\nsticky = "header:X-User"\n')
    new.replace(file)


@pytest.mark.soak
def test_a_user_changes_version_only_with_the_weights(tmp_path: Path) -> None:
    for version in (1, 2, 3):
        write_artifact(tmp_path / "models", "m", version)
    file = tmp_path / "models.toml"
    write(file, WEIGHTS[0])
    settings = {"models_file": str(file), "versions": "all", "workers": "2", "reload_s": "1"}
    with running(tmp_path / "models", tmp_path / "log", **settings) as server:
        time.sleep(SETTLED_S)
        traffic = Traffic(server)
        threads = [threading.Thread(target=traffic.run) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        changed: list[float] = [time.monotonic()]
        for number, weights in enumerate(WEIGHTS[1:], 1):
            while len(traffic.answers) < number * REQUESTS / len(WEIGHTS) or (
                time.monotonic() < changed[-1] + 1.5 * SETTLED_S
            ):
                assert all(each.is_alive() for each in threads)
                time.sleep(0.05)
            if number == len(WEIGHTS) // 2:
                worker = psutil.Process(server.process.pid).children()[-1]
                os.kill(worker.pid, signal.SIGKILL)
            changed.append(time.monotonic())
            write(file, weights)
        while len(traffic.answers) < REQUESTS or time.monotonic() < changed[-1] + 1.5 * SETTLED_S:
            time.sleep(0.05)
        traffic.stop.set()
        for thread in threads:
            thread.join()
    by_weights = [choices(weights) for weights in WEIGHTS]
    shares: list[Counter[int]] = [Counter() for _ in WEIGHTS]
    late_s = 0.0
    for began, user, version in traffic.answers:
        now = max(at for at, moment in enumerate(changed) if began >= moment or at == 0)
        if version != by_weights[now][user]:
            assert now, (user, version)
            assert version == by_weights[now - 1][user], (user, now, version)
            late_s = max(late_s, began - changed[now])
        if began > changed[now] + SETTLED_S:
            shares[now][version] += 1
    for at, (weights, seen) in enumerate(zip(WEIGHTS, shares, strict=True)):
        total = sum(seen.values())
        found = {version: round(count / total, 3) for version, count in sorted(seen.items())}
        print(f"{at}: {dict(weights)} -> {found} of {total}")  # noqa: T201
        for version, users in Counter(by_weights[at]).items():
            assert seen[version] / total == pytest.approx(users / USERS, abs=0.01)
    print(  # noqa: T201
        f"{len(traffic.answers)} answers, {traffic.cut} connections cut; "
        f"weights took at most {late_s:.1f} s to arrive"
    )
    assert 0 < traffic.cut <= THREADS
    assert late_s < SETTLED_S
