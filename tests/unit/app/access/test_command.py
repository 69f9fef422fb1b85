"""`torchlane keys` with outputs that are closed or full."""

from __future__ import annotations

import subprocess
import sys

import pytest

ACCESS = 'exec "$0" -m app.access bob --scope predict'


def ended(redirected: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f"{ACCESS} {redirected}", sys.executable]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_key_goes_to_stderr_and_its_line_to_stdout() -> None:
    done = ended("")
    assert done.returncode == 0
    assert done.stdout.startswith("bob predict sha256:")
    assert done.stderr.startswith("The key, shown only once:\n")


@pytest.mark.parametrize("redirected", [">&-", ">/dev/full"])
def test_line_that_cannot_be_written_is_one_sentence(redirected: str) -> None:
    done = ended(redirected)
    assert done.returncode == 1
    assert "torchlane: the key and its line need standard output and error" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full"])
def test_line_of_a_key_that_was_not_shown_is_not_written(redirected: str) -> None:
    done = ended(redirected)
    assert (done.returncode, done.stdout) == (1, "")
