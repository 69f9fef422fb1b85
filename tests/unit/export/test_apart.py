"""Exports whose model is built and proved in a process of its own.

Each is forked from a process that has not computed anything: else a fork of it may hang in torch.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from models.manifest import MANIFEST_FILE, Manifest
from tests.e2e.forking import run
from tests.unit.export.torchscripts import Sums, scripted

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks safely")

# The command line with another limit for large models. HOOK runs before both processes.
PROGRAM = """
import os, pathlib, signal, sys, time
from export import apart, pipeline
from export.__main__ import interrupt
from export.cli import main
from models.catalog import CATALOG

apart.LARGE_BYTES = 1
HOOK
signal.signal(signal.SIGTERM, interrupt)
sys.exit(main(["adopt", *sys.argv[1:]], CATALOG))
"""
INPUT = ("--name", "sums", "--input", "x=float32[-1,3]")
QUICK = ("--variants", "script", "--max-batch-size", "2")


def adopt(folder: Path, *options: str, hook: str = "") -> subprocess.CompletedProcess[str]:
    """Adopt `Sums` into `folder`/out."""
    file = folder / "sums.pt"
    file.write_bytes(scripted(Sums()))
    program = PROGRAM.replace("HOOK", hook)
    return run("-c", program, file, "--out", folder / "out", *options)


def during_proof(what: str) -> str:
    """A hook: does this while variants are verified, in the process that does so."""
    return f"pipeline.prove_variants = lambda *_: {what}"


def test_the_parent_times_what_the_other_process_has_proved(tmp_path: Path) -> None:
    hook = """
prove, publish, parent = apart.prove, apart.time_and_publish, os.getpid()
def proving(*args): print("proved", os.getpid() == parent); return prove(*args)
def timing(*args): print("timed", os.getpid() == parent); return publish(*args)
apart.prove, apart.time_and_publish = proving, timing"""
    done = adopt(tmp_path, *INPUT, *QUICK, hook=hook)
    assert done.returncode == 0, done.stderr
    assert "proved False\n" in done.stdout
    assert "timed True\n" in done.stdout
    assert done.stdout.index("\nscript ") < done.stdout.index("\ntiming ")
    folder = tmp_path / "out/sums/1"
    manifest = Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())
    assert manifest.plan is not None
    assert [*manifest.variants] == ["script"]


@pytest.mark.parametrize(
    ("options", "hook", "code", "message"),
    [
        pytest.param([*INPUT, "--variants", "nope"], "", 2, "nope", marks=pytest.mark.soak),
        (
            [*INPUT, *QUICK],
            during_proof("os.kill(os.getpid(), signal.SIGKILL)"),
            1,
            "ended (SIGKILL); is memory short?",
        ),
        pytest.param(
            [*INPUT, *QUICK],
            during_proof("(os.kill(os.getppid(), signal.SIGTERM), time.sleep(60))"),
            130,
            "nothing was written",
            marks=pytest.mark.soak,
        ),
    ],
    ids=["unknown-variant", "killed", "interrupted"],
)
def test_a_failure_is_told_once_and_leaves_nothing(
    tmp_path: Path, options: list[str], hook: str, code: int, message: str
) -> None:
    done = adopt(tmp_path, *options, hook=hook)
    assert done.returncode == code, done.stderr
    assert message in done.stderr
    assert done.stderr.startswith("torchlane: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_killed_parent_leaves_no_process(tmp_path: Path) -> None:
    """The other one ends when it has something to tell."""
    hook = f"""
prove_variants = pipeline.prove_variants
def prove(*args):
    (pathlib.Path({str(tmp_path)!r}) / "pid").write_text(str(os.getpid()))
    os.kill(os.getppid(), signal.SIGKILL)
    return prove_variants(*args)
pipeline.prove_variants = prove"""
    done = adopt(tmp_path, *INPUT, *QUICK, hook=hook)
    assert done.returncode == -signal.SIGKILL
    pid = int((tmp_path / "pid").read_text())
    for _ in range(600):
        if not Path(f"/proc/{pid}").exists():
            return
        time.sleep(0.1)
    os.kill(pid, signal.SIGKILL)
    pytest.fail("it still runs")
