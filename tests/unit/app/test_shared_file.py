"""Files without a name: contents, locks, and what is left of them."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.shared_file import SharedFile

HOLDER = """
import sys, time
from app.shared_file import SharedFile
with SharedFile(int(sys.argv[1])).locked(waits=True):
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.fixture(params=["memory", "disk"])
def file(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SharedFile]:
    """A file as on Linux, and as where the kernel has none in memory."""
    if request.param == "disk":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    elif not hasattr(os, "memfd_create"):
        pytest.skip("the system has no files in memory")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = SharedFile.create()
    assert not list(tmp_path.iterdir())  # nothing is left, however the process ends
    yield made
    made.close()


def test_other_processes_read_what_was_put(file: SharedFile) -> None:
    other = SharedFile(os.dup(file.descriptor))
    assert other.content() is None
    file.put(b"a long content")
    assert other.content() == b"a long content"
    other.put(b"short")
    assert file.content() == b"short"
    assert b"long" not in file.read()
    other.close()


def test_a_content_that_is_being_replaced_is_not_read(file: SharedFile) -> None:
    file.put(b"old content")
    file.write(b"new", at=12)
    assert file.content() is None


def test_a_file_that_grows_while_it_is_read_is_read_whole(
    file: SharedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else its reader finds the new length of the entries, and not all entries."""
    fstat = os.fstat

    def then_it_grows(descriptor: int) -> os.stat_result:
        before = fstat(descriptor)
        file.write(b"n" * 100)
        return before

    file.write(b"o" * 10)
    monkeypatch.setattr(os, "fstat", then_it_grows)
    assert file.read() == b"n" * 100


def test_parts_keep_their_places(file: SharedFile) -> None:
    file.write(b"second", at=8)
    file.write(b"first")
    assert file.read() == b"first\0\0\0second"


def test_lock_of_a_killed_process_is_released(file: SharedFile) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(file.descriptor)],
        pass_fds=[file.descriptor],
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(BlockingIOError), file.locked(waits=False):
            pytest.fail("two have the lock")
        holder.kill()
    with file.locked(waits=True), pytest.raises(BlockingIOError), file.locked(waits=False):
        pytest.fail("two threads have the lock")
    with file.locked(waits=False):
        pass


def test_a_file_that_cannot_grow_is_an_error_and_no_signal(file: SharedFile) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        file.write(bytes(4096))
        with pytest.raises(OSError, match="too large"):
            file.write(bytes(4096), at=4096)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
