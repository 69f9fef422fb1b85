"""Export into a store: a version is there as a whole, or not at all, whoever writes at once."""

from __future__ import annotations

import asyncio
import io
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from export.cli import main
from export.destination import CLAIM_FILE, destination, upload
from export.errors import ExportError
from models.catalog import CATALOG
from models.integrity import read_artifact
from models.manifest import MANIFEST_FILE
from models.stores.buckets import Bucket as Writable
from models.stores.choose import open_store
from models.stores.errors import StoreError
from models.stores.urls import StoreUrl
from tests.artifacts import write_artifact
from tests.integration.harness import serving
from tests.integration.publishing import Publisher, answered_by
from tests.s3 import Bucket, Handler, Proxy, Seen, only, status

QUICK = ("pairwise", "--max-batch-size", "2", "--variants", "script")


def export(*arguments: str) -> tuple[int, str]:
    """The exit code, and what was printed."""
    output = io.StringIO()
    return main(arguments, CATALOG, Console(file=output, width=400)), output.getvalue()


async def upload_to(bucket: Bucket, folder: Path) -> None:
    await upload(Writable(StoreUrl.parse(bucket.url)), folder)


def names(bucket: Bucket, s3: Proxy) -> Sequence[str]:
    """What is in the store."""

    async def listed() -> list[str]:
        store = open_store(StoreUrl.parse(bucket.url))
        return sorted([entry.key async for entry in store.entries(1000)])

    return asyncio.run(listed())


def test_export_writes_to_a_store(
    s3: Proxy, bucket: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = export(*QUICK, "--out", bucket.url)
    assert code == 0
    assert f"written   {bucket.url}/pairwise/1: " in output
    assert f"--model-dir {bucket.url}" in output
    assert str(tmp_path) not in output
    for key in names(bucket, s3):
        file = tmp_path / key
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bucket.read(key))
    assert read_artifact(tmp_path / "pairwise" / "1").manifest.version == 1
    assert export(*QUICK, "--out", bucket.url, "--if-empty") == (
        0,
        f"{bucket.url}/pairwise/1 exists; nothing to do\n",
    )
    assert export(*QUICK, "--out", bucket.url, "--version", "1")[0] == 2
    assert f"version 1 exists in {bucket.url}/pairwise, and" in capsys.readouterr().err


async def test_a_server_serves_what_was_uploaded(s3: Proxy, bucket: Bucket, tmp_path: Path) -> None:
    await upload_to(bucket, Publisher(tmp_path).publish(1))
    async with serving(bucket.url, source_cache=tmp_path / "cache") as api:
        assert await answered_by(api) == 1


async def test_two_exports_do_not_mix(s3: Proxy, bucket: Bucket, tmp_path: Path) -> None:
    made = [write_artifact(tmp_path / name, "m") for name in ("one", "two")]
    results = await asyncio.gather(
        *(upload_to(bucket, folder) for folder in made), return_exceptions=True
    )
    (refused,) = (each for each in results if each is not None)
    assert isinstance(refused, StoreError)
    assert "another export " in str(refused)
    winner = made[results.index(None)]
    for file in winner.iterdir():
        assert bucket.read(f"m/1/{file.name}") == file.read_bytes()
    with pytest.raises(StoreError, match="another export has written"):
        await upload_to(bucket, made[0])


async def test_a_failed_upload_leaves_nothing_and_frees_the_number(
    s3: Proxy, bucket: Bucket, tmp_path: Path
) -> None:
    folder = write_artifact(tmp_path, "m")
    denied = only(MANIFEST_FILE, status(403))
    s3.fault = lambda handler, seen: seen.method == "PUT" and denied(handler, seen)
    with pytest.raises(StoreError, match="the store answers 403"):
        await upload_to(bucket, folder)
    s3.fault = None
    assert await asyncio.to_thread(names, bucket, s3) == []
    await upload_to(bucket, folder)
    assert MANIFEST_FILE in {
        key.rpartition("/")[2] for key in await asyncio.to_thread(names, bucket, s3)
    }


async def test_a_lost_answer_to_the_last_write_loses_nothing(
    s3: Proxy, bucket: Bucket, tmp_path: Path
) -> None:
    def late(handler: Handler, seen: Seen) -> bool:
        if (seen.method, seen.path.endswith(MANIFEST_FILE)) == ("PUT", True):
            bucket.put(f"m/1/{MANIFEST_FILE}", manifest)
            handler.answer(500, b"")
            return True
        return False

    folder = write_artifact(tmp_path, "m")
    manifest = (folder / MANIFEST_FILE).read_bytes()
    s3.fault = late
    await upload_to(bucket, folder)
    there = await asyncio.to_thread(names, bucket, s3)
    assert {key.rpartition("/")[2] for key in there} == {file.name for file in folder.iterdir()}


async def test_an_upload_that_is_cancelled_at_the_manifest_leaves_all_and_its_claim(
    s3: Proxy, bucket: Bucket, tmp_path: Path
) -> None:
    """The store may have the manifest, which must not be there without its files."""
    has_arrived, may_answer = threading.Event(), threading.Event()

    def hanging(handler: Handler, seen: Seen) -> bool:
        if (seen.method, seen.path.endswith(MANIFEST_FILE)) == ("PUT", True):
            bucket.put(f"m/1/{MANIFEST_FILE}", manifest)
            has_arrived.set()
            may_answer.wait(60)
        return False

    folder = write_artifact(tmp_path, "m")
    manifest = (folder / MANIFEST_FILE).read_bytes()
    s3.fault = hanging
    uploading = asyncio.create_task(upload_to(bucket, folder))
    try:
        assert await asyncio.to_thread(has_arrived.wait, 60)
        uploading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await uploading
    finally:
        may_answer.set()
        s3.fault = None
    there = await asyncio.to_thread(names, bucket, s3)
    files = {file.name for file in folder.iterdir()}
    assert {key.rpartition("/")[2] for key in there} == files | {CLAIM_FILE}


async def test_a_claim_stays_where_something_cannot_be_removed(
    s3: Proxy, bucket: Bucket, tmp_path: Path
) -> None:
    denied, removals = status(403), []

    def fault(handler: Handler, seen: Seen) -> bool:
        """Denies the manifest and the first removal."""
        if seen.method == "PUT":
            return MANIFEST_FILE in seen.path and denied(handler, seen)
        if seen.method in ("POST", "DELETE"):
            removals.append(seen)
            return len(removals) == 1 and denied(handler, seen)
        return False

    folder = write_artifact(tmp_path, "m")
    s3.fault = fault
    with pytest.raises(StoreError, match="the store answers 403"):
        await upload_to(bucket, folder)
    s3.fault = None
    assert removals
    there = await asyncio.to_thread(names, bucket, s3)
    files = {file.name for file in folder.iterdir()}
    assert {key.rpartition("/")[2] for key in there} == files - {MANIFEST_FILE} | {CLAIM_FILE}


@pytest.mark.parametrize(
    ("raised", "seen"),
    [(KeyboardInterrupt(), ExportError), (OSError("it is gone"), OSError)],
)
def test_an_artifact_is_kept_whatever_ends_its_upload(
    s3: Proxy,
    bucket: Bucket,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    raised: BaseException,
    seen: type[Exception],
) -> None:
    async def ended(*_: object) -> None:
        raise raised

    monkeypatch.setattr("export.destination.upload", ended)
    with destination(StoreUrl.parse(bucket.url)) as target:
        folder = write_artifact(target.folder, "m")
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        with pytest.raises(seen) as caught:
            target.deliver(folder)
    (kept,) = tmp_path.glob("torchlane-kept-*/m/1")
    assert (kept / MANIFEST_FILE).is_file()
    said = [str(caught.value), *getattr(caught.value, "__notes__", ())]
    assert any(f"the artifact is kept in {kept}" in each for each in said)


def test_the_claim_of_a_killed_export_is_named(s3: Proxy, bucket: Bucket, tmp_path: Path) -> None:
    folder = write_artifact(tmp_path, "m")
    bucket.put(f"m/1/{CLAIM_FILE}", b"")
    with pytest.raises(StoreError, match=f"remove {bucket.url}/m/1/.claim"):
        asyncio.run(upload_to(bucket, folder))


def test_a_store_that_denies_is_an_error_before_the_work(
    s3: Proxy, bucket: Bucket, capsys: pytest.CaptureFixture[str]
) -> None:
    s3.fault = status(403)
    assert export(*QUICK, "--out", bucket.url)[0] == 2
    assert "the store answers 403 Forbidden; it takes AWS_ACCESS" in capsys.readouterr().err


def test_a_web_server_cannot_be_written_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert export(*QUICK, "--out", "https://models.example/m")[0] == 2
    assert "https:// can only be read; write to a folder, s3://" in capsys.readouterr().err
