"""A file is replaced whole, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.system.durable import replacing


def test_the_new_file_appears_at_the_end(tmp_path: Path) -> None:
    target = tmp_path / "state"
    target.write_bytes(b"old")
    with replacing(target) as file:
        file.write(b"new")
        file.flush()
        assert target.read_bytes() == b"old"
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"state": b"new"}


def test_a_failure_leaves_the_old_file_alone(tmp_path: Path) -> None:
    target = tmp_path / "state"
    target.write_bytes(b"old")

    def interrupted() -> None:
        with replacing(target) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"state": b"old"}
