"""A real server with several custom models, some of which cannot be loaded."""

from __future__ import annotations

import os
from pathlib import Path

import httpx

from tests.artifacts import change_manifest, write_artifact
from tests.e2e.server import PLAIN, running


def test_a_damaged_model_does_not_affect_the_others(tmp_path: Path) -> None:
    for name in ("birds", "cats", "dogs"):
        folder = write_artifact(tmp_path / "models", name)
    (folder / "script.pt").write_bytes(b"damaged")
    eels = write_artifact(tmp_path / "models", "eels")
    change_manifest(eels, lambda manifest: manifest.update(golden=[1] * 5_000_000))
    os.mkfifo(write_artifact(tmp_path / "models", "foxes").parent / "2")
    (tmp_path / "models/foxes/1/manifest.json").unlink()
    os.mkfifo(tmp_path / "models/foxes/1/manifest.json")
    (tmp_path / "models/a").symlink_to("x" * 300)  # to look at it is an error
    (tmp_path / "models/cats/20261125120000").mkdir()
    with running(tmp_path / "models", tmp_path / "log", workers="2") as server:
        for name, status in (("birds", 200), ("cats", 200), ("dogs", 503), ("eels", 503)):
            url = f"{server.url}/models/{name}/predict"
            answer = httpx.post(url, json={"input": [1, 2]}, verify=PLAIN)
            assert answer.status_code == status, answer.text
        (told,) = httpx.get(f"{server.url}/models/dogs", verify=PLAIN).json()["versions"]
        assert "script.pt has 7 bytes" in told["problem"]
        for name, problem in (("eels", "values; at most 200,000 are read"), ("foxes", "a pipe")):
            (told,) = httpx.get(f"{server.url}/models/{name}", verify=PLAIN).json()["versions"]
            assert problem in told["problem"]
        # A worker publishes its gauges once a second: the last ones may be those of its load.
        server.wait_for_metric("torchlane_models_unready", lambda models: models == 4)
        server.wait_for_metric("torchlane_model_folders_unreadable", lambda folders: folders == 1)
        assert "model_not_loaded" in server.log
        assert "File name too long" in server.log
        assert "cats/20261125120000" in server.log
