"""Temporary folders: removed by the next process if theirs was killed, and by nobody before."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from models.system.scratch import scratch_folder

PREFIX = "made-"
OWNER = """
import sys
from pathlib import Path
from models.system.scratch import scratch_folder
with scratch_folder("made-", Path(sys.argv[1])) as folder:
    (folder / "half").touch()
    print(folder.name, flush=True)
    sys.stdin.read()
"""


class Owner:
    """A process that has a folder."""

    def __init__(self, parent: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(parent)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.folder = parent / self.process.stdout.readline().strip()

    def kill(self) -> Path:
        """End it without a chance to tidy up; returns what it leaves."""
        self.process.kill()
        self.process.communicate()
        return self.folder


def removed(parent: Path, folder: Path) -> bool:
    """Whether the next process removes a folder."""
    with scratch_folder(PREFIX, parent):
        return not folder.exists()


def test_folder_is_private_and_removed_on_exit(tmp_path: Path) -> None:
    with scratch_folder(PREFIX, tmp_path) as folder:
        (folder / "file").touch()
        assert folder.stat().st_mode & 0o077 == 0
    assert list(tmp_path.iterdir()) == []


def test_only_folders_of_dead_processes_are_removed(
    tmp_path: Path,
) -> None:
    owner = Owner(tmp_path)
    try:
        assert not removed(tmp_path, owner.folder)
        assert (owner.folder / "half").exists()
    finally:
        left = owner.kill()
    assert left.exists()
    assert removed(tmp_path, left)


def _a_link(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "file").touch()
    (tmp_path / "made-12345678").symlink_to(tmp_path / "target")
    return tmp_path / "target" / "file"


def _a_file(tmp_path: Path) -> Path:
    (tmp_path / "made-12345678").touch()
    return tmp_path / "made-12345678"


def _another_name(tmp_path: Path) -> Path:
    (tmp_path / "made-by-somebody").mkdir()
    return tmp_path / "made-by-somebody"


@pytest.mark.parametrize("make", [_a_link, _a_file, _another_name])
def test_unrelated_files_stay(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    assert not removed(tmp_path, make(tmp_path))


def test_folders_of_other_users_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = Owner(tmp_path).kill()
    other = os.geteuid() + 1
    monkeypatch.setattr("os.geteuid", lambda: other)
    assert not removed(tmp_path, left)
    monkeypatch.undo()
    assert removed(tmp_path, left)


def test_nothing_is_removed_without_file_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError("no locks available")

    left = Owner(tmp_path).kill()
    monkeypatch.setattr("fcntl.flock", fails)
    assert not removed(tmp_path, left)


def test_concurrent_owners_keep_their_folders(tmp_path: Path) -> None:
    """Each may find the folder of another one between its making and its lock."""
    lost: list[Path] = []

    def owner() -> None:
        for _ in range(200):
            with scratch_folder(PREFIX, tmp_path) as folder:
                if not folder.exists():
                    lost.append(folder)

    threads = [threading.Thread(target=owner) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lost == []
    assert list(tmp_path.iterdir()) == []
