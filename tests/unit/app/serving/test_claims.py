"""Claims: which digests the processes of a server serve. Two objects are like two processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from app.serving.claims import LOCK, Claims
from app.types import ModelId

MODEL, OTHER = ModelId("m", 1), ModelId("m", 11)
A, B = "a" * 64, "b" * 64


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Claims, Claims]:
    return Claims(tmp_path / "digests"), Claims(tmp_path / "digests")


def test_all_processes_serve_the_first_digest(pair: tuple[Claims, Claims]) -> None:
    first, second = pair
    assert first.served(MODEL) is None
    assert first.claim(MODEL, A) == A
    assert second.claim(MODEL, B) == A
    assert second.claim(MODEL, A) == A
    assert (first.served(MODEL), second.served(MODEL)) == (A, A)
    assert second.claim(OTHER, B) == B


def test_another_digest_may_come_after_the_last_release(
    pair: tuple[Claims, Claims], tmp_path: Path
) -> None:
    first, second = pair
    for each in pair:
        assert each.claim(MODEL, A) == A
    first.release(MODEL)
    assert first.claim(MODEL, B) == A
    second.release(MODEL)
    second.release(MODEL)  # no effect
    assert first.served(MODEL) is None
    assert [path.name for path in (tmp_path / "digests").iterdir()] == [LOCK]
    assert first.claim(MODEL, B) == B


def test_a_killed_process_claims_nothing(pair: tuple[Claims, Claims], tmp_path: Path) -> None:
    code = (
        "import os, pathlib, signal\n"
        "from app.serving.claims import Claims\n"
        "from app.types import ModelId\n"
        f"Claims(pathlib.Path({str(tmp_path / 'digests')!r})).claim(ModelId('m', 1), {A!r})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert [path.name for path in (tmp_path / "digests").glob("m@*")] == [f"m@1@{A}"]
    assert pair[0].claim(MODEL, B) == B
