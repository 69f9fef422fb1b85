"""Only regular files inside the folder are opened."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from models.system.contained import FileRejected, open_inside, read_inside


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """root/m/1/file, next to a secret; `linked` leads to all of it too."""
    folder = tmp_path / "root/m/1"
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(b"content")
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/file").write_bytes(b"secret")
    (tmp_path / "linked").symlink_to("root")
    return tmp_path / "root"


def rejection(root: Path, name: str = "file") -> str:
    with pytest.raises(FileRejected) as caught:
        open_inside(root / "m/1", name, root)
    assert str(root.parent) not in str(caught.value)
    return str(caught.value)


def read(root: Path) -> bytes:
    return read_inside(root / "m/1", "file", 100, root)


def test_file_in_the_folder_is_read(root: Path) -> None:
    assert read(root) == b"content"
    assert read_inside(root / "m/1", "file", 7) == b"content"


def test_root_may_be_a_link_or_relative(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(root.with_name("linked")) == b"content"
    monkeypatch.chdir(root.parent)
    assert read(Path("root")) == b"content"
    monkeypatch.chdir(root / "m/1")
    assert read_inside(Path(), "file", 100) == b"content"


def mounted_as_kubernetes_does(folder: Path) -> None:
    """What is in the folder moves into ..2026_01, and is reached through ..data."""
    inner = folder / "..2026_01"
    inner.mkdir()
    for path in list(folder.iterdir()):
        if path != inner:
            path.rename(inner / path.name)
            path.symlink_to(f"..data/{path.name}")
    (folder / "..data").symlink_to(inner.name)


@pytest.mark.parametrize("where", [".", "m", "m/1"])
def test_kubernetes_links_inside_the_root_are_followed(root: Path, where: str) -> None:
    mounted_as_kubernetes_does(root / where)
    assert read(root) == b"content"


@pytest.mark.parametrize("target", ["../../../secret/file", "/etc/passwd", "../2/file", "../../.."])
def test_file_linking_out_of_its_folder_is_rejected(root: Path, target: str) -> None:
    (root / "m/2").mkdir()
    (root / "m/2/file").write_bytes(b"of another version")
    (root / "m/1/file").unlink()
    (root / "m/1/file").symlink_to(target)
    assert rejection(root).startswith("file is a link that leads out of the artifact's folder; ")


def test_link_out_through_another_link_is_rejected(root: Path) -> None:
    (root / "m/1/file").rename(root / "m/1/other")
    (root / "m/1/file").symlink_to("inner/../hop")
    (root / "m/1/inner").mkdir()
    (root / "m/1/hop").symlink_to("../../../secret/file")
    assert "leads out" in rejection(root)


@pytest.mark.parametrize("linked", ["m", "m/1"])
def test_folder_linking_out_of_the_root_is_named(root: Path, linked: str) -> None:
    outside = root.with_name("outside")
    (root / linked).rename(outside)
    (root / linked).symlink_to(outside)
    assert rejection(root).startswith(
        f"the folder {linked} is a link that leads out of the repository; put the folder itself"
    )


def test_folder_prefixed_with_the_roots_name_is_outside(root: Path) -> None:
    (root / "m/1").rename(root.with_name("root-2"))
    (root / "m/1").symlink_to("../../root-2")
    assert "the folder m/1 is a link" in rejection(root)


def test_folder_may_be_anywhere_without_a_root(root: Path) -> None:
    (root / "m/2").symlink_to(root.with_name("secret"))
    assert read_inside(root / "m/2", "file", 100) == b"secret"


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../1/file", "/etc/passwd", "a/b", "a\\b", "nul\0", "./file"]
)
def test_path_is_not_a_file_name(root: Path, name: str) -> None:
    assert rejection(root, name) == f"{name!r} is not the name of a file in the artifact's folder"


class TestKinds:
    def test_a_pipe_is_rejected_without_waiting_for_a_writer(self, root: Path) -> None:
        (root / "m/1/file").unlink()
        os.mkfifo(root / "m/1/file")
        assert rejection(root) == (
            "file is not a regular file but a pipe or a device; put a file there"
        )

    def test_a_socket(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (root / "m/1/file").unlink()
        monkeypatch.chdir(root / "m/1")  # names of sockets must be short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("file")
            with pytest.raises(OSError, match="No such device"):
                read(root)

    def test_a_device(self) -> None:
        with pytest.raises(FileRejected, match=r"^null is not a regular file"):
            open_inside(Path("/dev"), "null")

    @pytest.mark.parametrize("name", ["file", "self"])
    def test_a_folder(self, root: Path, name: str) -> None:
        (root / "m/1/file").unlink()
        (root / "m/1/file").mkdir()
        (root / "m/1/self").symlink_to(".")
        with pytest.raises(IsADirectoryError, match="Is a directory"):
            open_inside(root / "m/1", name)

    def test_links_in_a_circle(self, root: Path) -> None:
        (root / "m/1/file").unlink()
        (root / "m/1/file").symlink_to("other")
        (root / "m/1/other").symlink_to("file")
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            read(root)

    def test_a_missing_file_and_a_dangling_link(self, root: Path) -> None:
        (root / "m/1/file").unlink()
        with pytest.raises(FileNotFoundError):
            read(root)
        (root / "m/1/file").symlink_to("nothing")
        with pytest.raises(FileNotFoundError):
            read(root)


class TestSizes:
    def test_up_to_the_limit(self, root: Path) -> None:
        assert read_inside(root / "m/1", "file", 7) == b"content"
        with pytest.raises(FileRejected, match=re.escape("file has 7 bytes; at most 6 are read")):
            read_inside(root / "m/1", "file", 6)

    def test_huge_file_is_refused_before_reading(self, root: Path) -> None:
        os.truncate(root / "m/1/file", 2**40)
        with pytest.raises(FileRejected, match="file has 1,099,511,627,776 bytes"):
            read(root)


def until(ended: threading.Event, change: Callable[[], None]) -> None:
    while not ended.is_set():
        change()


@pytest.mark.parametrize("exchanged", ["m", "m/1", "m/1/file"])
def test_replacing_links_concurrently_never_leaks_the_secret(root: Path, exchanged: str) -> None:
    """A swap between check and opening yields the content or nothing."""
    path = root / exchanged
    inside = path.rename(path.with_name("inside"))
    secret = root.with_name("secret")
    if exchanged == "m":
        (secret / "1").mkdir()
        (secret / "1/file").write_bytes(b"secret")
    outside = secret / "file" if exchanged == "m/1/file" else secret
    ended = threading.Event()

    def change() -> None:
        inside.rename(path)
        path.rename(inside)
        path.symlink_to(outside)
        path.unlink()

    thread = threading.Thread(target=until, args=(ended, change))
    thread.start()
    found: set[bytes] = set()
    try:
        reads, give_up = 0, time.monotonic() + 60
        while reads < 5000 or (b"content" not in found and time.monotonic() < give_up):
            reads += 1
            try:
                found.add(read(root))
            except (FileRejected, OSError):
                found.add(b"")
    finally:
        ended.set()
        thread.join()
    assert found - {b""} == {b"content"}  # which was seen, or this says nothing
