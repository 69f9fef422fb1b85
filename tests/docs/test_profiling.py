"""The commands of docs/profiling.md, run as they stand."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.access.entries import make_key
from tests.artifacts import write_artifact
from tests.docs.blocks import ROOT, blocks
from tests.e2e.server import running
from tests.perfetto.engine import opened

SECRET, LINE = make_key("ops", ["admin"])
COMMANDS = [text for language, text in blocks("docs/profiling.md") if language == "sh"]
(QUERY,) = [text for language, text in blocks("docs/profiling.md") if language == "sql"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_artifact(tmp_path / "artifacts", "digits")
    return tmp_path


def printed(folder: Path, script: str) -> str:
    script = script.replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "KEY": SECRET}
    done = subprocess.run(
        ["bash", "-ec", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_trace_command_and_perfetto_query_work(folder: Path) -> None:
    (script,) = [each for each in COMMANDS if "curl" in each]
    with running(folder / "artifacts", folder / "log", api_keys=LINE) as server:
        printed(folder, script.replace("http://127.0.0.1:8000", server.url))
    trace = (folder / "trace.json").read_bytes()
    assert json.loads(trace)["otherData"]["seconds"] >= 2
    with opened(gzip.compress(trace)) as perfetto:
        assert perfetto.rows(QUERY) == []  # nobody asked it anything


@pytest.mark.soak  # tests/unit/export/test_operators.py reads the same table and trace
def test_an_artifacts_operators_are_printed(folder: Path) -> None:
    plain, chosen = [each for each in COMMANDS if "torchlane profile" in each]
    told = printed(folder, plain)
    assert "script, batch of 1: x float32[1, 2]" in told
    assert "script, batch of 8: x float32[8, 2]" in told
    told = printed(folder, chosen)
    assert "script, batch of 32: x float32[32, 2]" in told
    assert json.loads(gzip.decompress((folder / "digits.json.gz").read_bytes()))["traceEvents"]
    with opened((folder / "digits.json.gz").read_bytes()) as perfetto:
        ((forwards,),) = perfetto.rows(
            "select count(*) from slice where name = 'script, batch of 32'"
        )
    assert forwards == 10
