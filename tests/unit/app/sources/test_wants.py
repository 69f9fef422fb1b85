"""What processes want is read as a whole, whatever happens while it is written."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from app.sources.wants import OwnWants, Wants, wants_of_all

FEW = Wants(policy="latest", versions=frozenset({"m/1"}))
MANY = Wants(policy="all", versions=frozenset(f"model/{number}" for number in range(100)))


@pytest.fixture
def own(tmp_path: Path) -> OwnWants:
    return OwnWants(tmp_path)


@pytest.mark.parametrize("rounds", [[FEW, MANY], [MANY, FEW], [FEW, MANY, FEW]])
def test_a_system_that_takes_a_part_at_a_time_loses_nothing(
    own: OwnWants, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: list[Wants]
) -> None:
    whole = os.pwrite
    monkeypatch.setattr("os.pwrite", lambda file, data, at: whole(file, data[:7], at))
    for wants in rounds:
        own.put(wants)
        assert list(wants_of_all(tmp_path)) == [wants]


def test_a_full_disk_keeps_the_earlier_wants(
    own: OwnWants, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own.put(FEW)
    whole, room = os.pwrite, os.stat(next(tmp_path.iterdir())).st_size + 10

    def nearly_full(file: int, data: bytes, at: int) -> int:
        if at >= room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return whole(file, data[: room - at], at)

    with monkeypatch.context() as patch:
        patch.setattr("os.pwrite", nearly_full)
        with pytest.raises(OSError, match="No space left"):
            own.put(MANY)
        assert list(wants_of_all(tmp_path)) == [FEW]
    own.put(MANY)
    assert list(wants_of_all(tmp_path)) == [MANY]
