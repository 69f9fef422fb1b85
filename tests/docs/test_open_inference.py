"""The commands of docs/open-inference.md, run as they stand against a real server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from app.access.entries import make_key
from tests.docs.blocks import curl_blocks
from tests.docs.test_readme import run
from tests.e2e.server import running

BLOCKS = curl_blocks("docs/open-inference.md")


@pytest.mark.parametrize("with_key", [False, True])
def test_the_commands_work(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, with_key: bool
) -> None:
    shutil.copytree(repository / "digits", tmp_path / "models/digits")
    secret, line = make_key("ops", ["admin"])
    monkeypatch.setenv("KEY", secret)
    keys = {"api_keys": line} if with_key else {}
    chosen = [block for block in BLOCKS if ("$KEY" in block[0]) is with_key]
    assert chosen
    with running(tmp_path / "models", tmp_path / "log", **keys) as server:
        for script, printed in chosen:
            output = run(server, script)
            assert '"error"' not in output
            if printed is not None:
                assert json.loads(output) == json.loads(printed)
