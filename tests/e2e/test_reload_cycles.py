"""Fifty versions of digits, one after the other, under load: no request fails, no memory stays.

The measured growth is printed: `make nightly PYTEST_ARGS='-s -k reload_cycles'`.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import pytest

from export.cli import main as export_main
from models.catalog import CATALOG
from models.manifest import MANIFEST_FILE, Manifest
from models.runtimes.openvino_models import GRAPH, WEIGHTS, pack
from tests.artifacts import write_manifest
from tests.e2e.server import PLAIN, Server, running

CLIENTS = 3
GROWTH_LIMIT = 0.05
MIB = 1 << 20


def retrained(data: bytes, number: int) -> bytes:
    """Another file with the same answers, as another training makes it."""
    if not data.startswith(b"PK"):
        return data + bytes([0x28, number])  # ONNX: the field `model_version`
    made = io.BytesIO(data)
    with zipfile.ZipFile(made) as archive:
        names = archive.namelist()
        if names == [GRAPH, WEIGHTS]:
            graph, weights = (archive.read(name) for name in names)
            return pack(graph + b"<!-- %d -->" % number, weights)
    with zipfile.ZipFile(made, "a") as archive:
        archive.writestr(f"{names[0].partition('/')[0]}/made", str(number))
    return made.getvalue()


class Versions:
    """A repository of which only the newest version is ever needed."""

    def __init__(self, exported: Path, root: Path, variant: str) -> None:
        self.repository = root / "models"
        self._staging = root / "staging"
        self._exported = exported
        self._variant = variant
        self.newest = 0

    def publish(self) -> int:
        self.newest += 1
        made = self._staging / str(self.newest)
        shutil.copytree(self._exported, made)
        manifest = Manifest.model_validate_json((made / MANIFEST_FILE).read_bytes())
        file = made / manifest.variants[self._variant].file
        data = retrained(file.read_bytes(), self.newest)
        file.write_bytes(data)
        entry = manifest.files[file.name].model_copy(
            update={"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
        )
        files = {**manifest.files, file.name: entry}
        change = {"version": self.newest, "files": files}
        write_manifest(made, manifest.model_copy(update=change))
        target = self.repository / "digits" / str(self.newest)
        target.parent.mkdir(parents=True, exist_ok=True)
        made.rename(target)
        old = target.parent / str(self.newest - 2)
        if old.exists():
            shutil.rmtree(old)
        return self.newest


class Load:
    """Clients that send unique requests as fast as they are answered."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._ends = threading.Event()
        self.statuses: dict[int, int] = {}
        self.versions: set[int] = set()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._ask, args=(n,)) for n in range(CLIENTS)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        headers = {"content-type": "application/octet-stream"}
        with httpx.Client(base_url=self._server.url, verify=PLAIN, timeout=30) as client:
            while not self._ends.is_set():
                body = rng.random(1024, dtype=np.float32).tobytes()
                answer = client.post("/predict", content=body, headers=headers)
                with self._lock:
                    self.statuses[answer.status_code] = self.statuses.get(answer.status_code, 0) + 1
                    if answer.status_code == 200:
                        self.versions.add(answer.json()["version"])


def state_of(server: Server, version: int) -> str | None:
    info: dict[str, Any] = httpx.get(f"{server.url}/models/digits", verify=PLAIN).json()
    states = {each["version"]: each["state"] for each in info["versions"]}
    if info["version"] == version and "draining" not in states.values():
        return "current"
    found: str | None = states.get(version)
    return found


def wait_for(server: Server, version: int) -> None:
    deadline = time.monotonic() + 60
    while (state := state_of(server, version)) != "current":
        assert state != "failed", server.log
        assert time.monotonic() < deadline, state
        time.sleep(0.05)


def cycles(server: Server, versions: Versions, count: int) -> Iterator[int]:
    """Yields the resident memory after each new version has taken over."""
    process = psutil.Process(server.process.pid)
    for _ in range(count):
        wait_for(server, versions.publish())
        time.sleep(0.2)  # the old one's memory is given back a moment later
        yield process.memory_info().rss


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("variant", ["script", "compiled", "openvino", "onnx", "int8"])
def test_fifty_reload_cycles_under_load(trained_digits: Path, tmp_path: Path, variant: str) -> None:
    weights = ["--weights", str(trained_digits), "--variants", f"script,{variant}"]
    assert export_main(["digits", *weights, "--out", str(tmp_path / "exported")], CATALOG) == 0
    exported = tmp_path / "exported/digits/1"
    manifest = Manifest.model_validate_json((exported / MANIFEST_FILE).read_bytes())
    if variant not in manifest.variants:
        pytest.skip("; ".join(each.reason for each in manifest.left_out))
    versions = Versions(exported, tmp_path, variant)
    versions.publish()
    settings = {"reload_s": "0.1", "cache_bytes": "1MiB", "log_level": "warning"}
    settings["variant"] = variant
    with running(versions.repository, tmp_path / "log", **settings) as server:
        with Load(server) as load:
            memory = list(cycles(server, versions, 50))
        grown = memory[49] / memory[9] - 1
        per_cycle = (memory[49] - memory[9]) / 40 / MIB
        figures = {
            "variant": variant,
            "answered": load.statuses,
            "resident MiB at cycles 1, 10, 30, 50": [
                round(memory[n - 1] / MIB, 1) for n in (1, 10, 30, 50)
            ],
            "growth from 10 to 50": f"{grown:.1%}, {per_cycle:.2f} MiB a cycle",
        }
        print(json.dumps(figures))  # noqa: T201  # what the run was for
        assert set(load.statuses) == {200}
        assert len(load.versions) == 51
        assert grown < GROWTH_LIMIT, figures
        server.signal()
        assert server.exit_code() == 0
