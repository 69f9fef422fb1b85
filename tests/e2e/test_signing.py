"""Signed on the command line, served by a process that takes signed artifacts only."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import pytest

from tests.artifacts import write_artifact
from tests.e2e.forking import run
from tests.e2e.server import PLAIN, free_port, running, start_process

PASSPHRASE = "correct horse battery staple"


def export(*arguments: object, **environment: str) -> str:
    """What `torchlane export` prints."""
    done = run("-m", "export", *map(str, arguments), environment=os.environ | environment)
    assert done.returncode == 0, done.stderr
    assert PASSPHRASE not in done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """signing.pem with a passphrase, keys/signing.pub.pem, artifacts/double/1 and, signed, 2."""
    folder = tmp_path_factory.mktemp("project")
    write_artifact(folder / "artifacts", "double")
    locked = {"EXPORT_KEY_PASSPHRASE": PASSPHRASE}
    export("keygen", folder / "signing.pem", "--passphrase", **locked)
    export("sign", folder / "artifacts/double/1", "--key", folder / "signing.pem", **locked)
    (folder / "keys").mkdir()
    (folder / "signing.pub.pem").rename(folder / "keys/signing.pub.pem")
    return folder


def test_only_the_signed_artifact_is_served(project: Path) -> None:
    settings = {"trusted_keys": str(project / "keys"), "log_format": "json"}
    with running(project / "artifacts", project / "log", **settings) as server:
        answer = httpx.post(f"{server.url}/predict", json={"input": [1, 2]}, verify=PLAIN).json()
        assert (answer["version"], answer["prediction"]) == (2, {"outputs": {"y": [2.0, 4.0]}})
        found = httpx.get(f"{server.url}/models/double?full=true", verify=PLAIN).json()
        assert found["signed_by"] in server.log  # as one of those that are trusted


@pytest.mark.soak
def test_an_invalid_trusted_key_prevents_the_start(project: Path, tmp_path: Path) -> None:
    settings = {"model_dir": str(project / "artifacts"), "port": str(free_port()), "workers": "2"}
    private = str(project / "signing.pem")
    with start_process(tmp_path / "log", **settings, trusted_keys=private) as process:
        assert process.wait(60) == 2
    log = (tmp_path / "log").read_text()
    assert "torchlane: TORCHLANE_TRUSTED_KEYS=" in log
    assert "signing.pem contains a private key" in log
    assert "BEGIN" not in log
