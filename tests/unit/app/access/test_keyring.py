"""Known keys: from the environment, a file, and a changing file."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, MutableMapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.access.entries import EntryError, make_key
from app.access.keyring import Keyring
from tests.unit.app.engine.harness import until

FIRST, FIRST_LINE = make_key("first", ["predict"])
SECOND, SECOND_LINE = make_key("second", ["predict"])
Log = list[MutableMapping[str, Any]]


class Rig:
    """A file of keys, and a keyring over it."""

    def __init__(self, folder: Path, *lines: str, entries: str | None = None) -> None:
        self.file = folder / "keys"
        self.write(*lines)
        self.keyring = Keyring(entries, self.file)

    def write(self, *lines: str) -> None:
        """Like an editor that replaces the file."""
        new = self.file.with_suffix(".new")
        new.write_text("\n".join(lines))
        new.rename(self.file)

    def holds(self, secret: str) -> bool:
        return self.keyring.find(secret.encode()) is not None

    def knows(self, secret: str) -> bool:
        self.keyring.look()
        return self.holds(secret)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path, FIRST_LINE)


@pytest.mark.parametrize("separator", [";", "\n", " ; "])
def test_entries_are_read_from_the_environment(separator: str) -> None:
    keyring = Keyring(f"{FIRST_LINE}{separator}{SECOND_LINE}", None)
    assert keyring.is_configured
    found = [keyring.find(each.encode()) for each in (FIRST, SECOND, FIRST + "x", "")]
    assert [key and key.name for key in found] == ["first", "second", None, None]


def test_oversized_key_is_not_hashed(rig: Rig) -> None:
    assert not rig.knows("x" * 1_000_000)


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ("nonsense", "TORCHLANE_API_KEYS: entry 1: "),
        (f"{FIRST_LINE}; nonsense", "TORCHLANE_API_KEYS: entry 2: "),
        (" ", "TORCHLANE_API_KEYS: no key found"),
    ],
    ids=["nonsense", "behind a key", "nothing"],
)
def test_wrong_entries_refuse_the_start(entries: str, why: str) -> None:
    with pytest.raises(EntryError) as rejected:
        Keyring(entries, None)
    assert str(rejected.value).startswith(why)


class TestStart:
    """A file that is wrong when the server starts."""

    @pytest.mark.parametrize(
        ("content", "why"),
        [
            (b"# nobody\n", "no key found; `torchlane keys NAME` creates one"),
            (b"\xff", "not UTF-8 text"),
            (
                "alice".encode("utf-16"),
                "not UTF-8 text: it begins with the byte order mark of UTF-16; convert it to UTF-8",
            ),
            (f"{FIRST_LINE}\n\n{FIRST_LINE}".encode(), "line 3: duplicate key"),
            (b" " * 5_000_000, "keys has 5,000,000 bytes; at most 4,194,304 are read"),
        ],
        ids=["comments only", "no text", "UTF-16", "twice", "too large"],
    )
    def test_invalid_file_refuses_the_start(self, tmp_path: Path, content: bytes, why: str) -> None:
        file = tmp_path / "keys"
        file.write_bytes(content)
        with pytest.raises(EntryError) as rejected:
            Keyring(None, file)
        assert str(rejected.value) == f"TORCHLANE_API_KEYS_FILE={file}: {why}"

    @pytest.mark.parametrize(
        ("make", "why"),
        [(os.mkfifo, "not a regular file but a pipe"), (os.mkdir, "Is a directory")],
        ids=["pipe", "folder"],
    )
    def test_no_regular_file_refuses_the_start(
        self, tmp_path: Path, make: Callable[[Path], None], why: str
    ) -> None:
        make(tmp_path / "keys")
        with pytest.raises(EntryError, match=why):
            Keyring(None, tmp_path / "keys")

    def test_key_in_file_and_environment_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(EntryError, match="also in TORCHLANE_API_KEYS"):
            Rig(tmp_path, FIRST_LINE, entries=FIRST_LINE)

    def test_missing_file_refuses_the_start(self, tmp_path: Path) -> None:
        with pytest.raises(EntryError, match="No such file"):
            Keyring(None, tmp_path / "none")


class TestChange:
    """A file that changes while the server runs."""

    def test_new_keys_replace_old_ones(self, rig: Rig) -> None:
        rig.write(SECOND_LINE)
        with capture_logs() as logs:
            assert not rig.knows(FIRST)
            assert rig.knows(SECOND)
        assert [each["event"] for each in logs] == ["api_keys_changed"]

    def test_changes_behind_a_link_are_seen(self, tmp_path: Path) -> None:
        for name, line in (("one", FIRST_LINE), ("two", SECOND_LINE)):
            (tmp_path / name).write_text(line)
        file = tmp_path / "keys"
        file.symlink_to("one")
        keyring = Keyring(None, file)
        file.unlink()
        file.symlink_to("two")
        keyring.look()
        assert keyring.find(SECOND.encode()) is not None
        assert keyring.find(FIRST.encode()) is None

    async def test_file_is_checked_again_and_again(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("app.access.keyring.CHECK_EVERY_S", 0.01)
        following = asyncio.create_task(rig.keyring.follow())
        for secret, line in ((SECOND, SECOND_LINE), (FIRST, FIRST_LINE)):
            rig.write(line)
            await until(partial(rig.holds, secret))
        following.cancel()

    async def test_an_unforeseen_error_does_not_end_the_checks(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("app.access.keyring.CHECK_EVERY_S", 0.01)
        with monkeypatch.context() as broken, capture_logs() as logs:
            broken.setattr("app.access.keyring.read_named", lambda *_: 1 / 0)
            following = asyncio.create_task(rig.keyring.follow())
            rig.write(SECOND_LINE)
            await until(lambda: bool(logs))
            await asyncio.sleep(0.05)  # several checks later
        assert [each["event"] for each in logs] == ["api_keys_not_read"]  # once
        await until(partial(rig.holds, SECOND))
        following.cancel()

    @pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
    def test_file_that_becomes_something_else_changes_nothing(
        self, rig: Rig, make: Callable[[Path], None]
    ) -> None:
        os.unlink(rig.file)
        make(rig.file)
        with capture_logs() as logs:
            for _ in range(3):
                assert rig.knows(FIRST)
        self.check_told_once(logs)

    def test_file_that_could_not_be_read_is_read_again_without_a_change(
        self, rig: Rig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fails(*_: object) -> bytes:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        rig.write(SECOND_LINE)
        with monkeypatch.context() as failing, capture_logs() as logs:
            failing.setattr("app.access.keyring.read_named", fails)
            for _ in range(3):
                assert rig.knows(FIRST)
        self.check_told_once(logs)
        assert rig.knows(SECOND)

    @pytest.mark.parametrize(
        "content",
        ["nonsense", "", f"{SECOND_LINE}\nnonsense"],
        ids=["nonsense", "empty", "behind a key"],
    )
    def test_invalid_file_is_logged_once_and_ignored(self, rig: Rig, content: str) -> None:
        rig.write(content)
        with capture_logs() as logs:
            for _ in range(3):
                assert rig.knows(FIRST)
                assert not rig.knows(SECOND)
        self.check_told_once(logs)
        rig.write(FIRST_LINE, SECOND_LINE)
        assert rig.knows(SECOND)

    def check_told_once(self, logs: Log) -> None:
        (told,) = logs
        assert (told["event"], told["log_level"]) == ("api_keys_not_changed", "error")
        assert "TORCHLANE_API_KEYS_FILE=" in told["reason"]
        assert told["kept"] == 1

    def test_missing_file_changes_nothing(self, rig: Rig) -> None:
        os.unlink(rig.file)
        with capture_logs() as logs:
            for _ in range(3):
                assert rig.knows(FIRST)
        self.check_told_once(logs)
        rig.write(SECOND_LINE)
        assert not rig.knows(FIRST)


def test_keyring_knows_whether_keys_have_limits(rig: Rig) -> None:
    assert not rig.keyring.has_limits
    limited = make_key("limited", ["predict"], "100/second")[1]
    assert Rig(rig.file.parent, FIRST_LINE, limited).keyring.has_limits
