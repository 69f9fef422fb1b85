"""What loads took is kept in a file that servers share, and that nothing depends on."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.serving.residency import load_records
from app.serving.residency.load_records import LoadRecord, LoadRecords

RECORD = LoadRecord(nbytes=5 << 20, first_s=1.5, again_s=0.0)


async def test_servers_share_what_they_know(tmp_path: Path) -> None:
    one, other = (LoadRecords(tmp_path / "made") for _ in range(2))
    assert other.get("a") is None
    one.put("a", RECORD)
    assert one.get("a") == RECORD
    other.put("b", RECORD)
    for each in (one, other):
        await each.save()
    later = LoadRecords(tmp_path / "made")
    assert (later.get("a"), later.get("b"), later.get("c")) == (RECORD, RECORD, None)


async def test_it_is_not_written_often(tmp_path: Path) -> None:
    records = LoadRecords(tmp_path)
    for name in ("a", "b"):
        records.put(name, RECORD)
        await records.save()
    assert LoadRecords(tmp_path).get("b") is None
    await records.save(at_once=True)
    assert LoadRecords(tmp_path).get("b") == RECORD


async def test_another_process_that_writes_is_not_waited_for(tmp_path: Path) -> None:
    records = LoadRecords(tmp_path)
    records.put("a", RECORD)
    with (tmp_path / "loads.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        await records.save()
    assert LoadRecords(tmp_path).get("a") is None
    await records.save(at_once=True)
    assert LoadRecords(tmp_path).get("a") == RECORD


async def test_the_oldest_records_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_records, "MOST", 2)
    records = LoadRecords(tmp_path)
    for name in ("a", "b", "a", "c"):
        records.put(name, RECORD)
        await records.save(at_once=True)
    known = LoadRecords(tmp_path)
    assert [known.get(name) is not None for name in "abc"] == [True, False, True]


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"a": {"nbytes": -1}}', bytes(17 << 20)])
async def test_a_damaged_file_is_replaced(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "loads.json").write_bytes(data)
    records = LoadRecords(tmp_path)
    with capture_logs() as logs:
        assert records.get("a") is None
        records.put("a", RECORD)
        await records.save()
    assert [each["event"] for each in logs] == ["load_records_unusable"]
    assert LoadRecords(tmp_path).get("a") == RECORD


async def test_a_folder_that_cannot_be_written_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    records = LoadRecords(tmp_path / "file" / "folder")
    with capture_logs() as logs:
        for name in ("a", "b"):
            records.put(name, RECORD)
            await records.save(at_once=True)
    (log,) = logs
    assert log["event"] == "load_records_unusable"
    assert "Not a directory" in log["problem"]
    assert records.get("a") == RECORD
