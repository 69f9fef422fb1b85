"""A server whose models are in a store: a real S3, and what is in between."""

from __future__ import annotations

import asyncio
import errno
import json
import os
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from app.access.entries import make_key
from app.doctor import main as doctor
from app.sources.state import STATE_FILE, StateFile
from models.stores.base import Content, LibraryStore
from tests.artifacts import write_artifact
from tests.e2e.forking import run
from tests.integration.harness import Api, serving
from tests.integration.publishing import Publisher, answered_by, eventually, states
from tests.s3 import Bucket, Proxy, expired, reset, status

LOOK_S = 0.1
SECRETS = ("a-secret-access-key", "a-session-token", "AKIDEXAMPLE")


class Servers:
    """Starts servers that share a cache."""

    def __init__(self, cache: Path, bucket: Bucket) -> None:
        self._cache = cache
        self._url = bucket.url

    def serving(self, **settings: Any) -> AbstractAsyncContextManager[Api]:
        settings = {"reload_s": LOOK_S, "source_poll_s": LOOK_S} | settings
        return serving(self._url, source_cache=self._cache, **settings)


@pytest.fixture
def servers(tmp_path: Path, s3: Proxy, bucket: Bucket) -> Servers:
    return Servers(tmp_path / "cache", bucket)


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path)


async def readiness(api: Api) -> str:
    return (await api.client.get("/health/ready")).text


async def test_versions_come_from_the_store_and_replace_each_other(
    servers: Servers, publisher: Publisher, bucket: Bucket
) -> None:
    first = publisher.publish(1)
    bucket.upload(first)
    async with servers.serving() as api:
        assert await answered_by(api) == 1
        bucket.upload(publisher.publish(2))
        await eventually(lambda: answered_by(api), 2)
        bucket.remove_version(first)
        await eventually(lambda: states(api), {2: "ready"})


async def test_a_warm_cache_needs_no_byte_of_weights(
    servers: Servers, publisher: Publisher, bucket: Bucket, s3: Proxy
) -> None:
    bucket.upload(publisher.publish(1))
    async with servers.serving() as api:
        assert await answered_by(api) == 1
    assert len(s3.got("script.pt")) == 1
    s3.seen.clear()
    async with servers.serving() as api:
        assert await answered_by(api) == 1
        await asyncio.to_thread(s3.wait_for_looks, 2)
    assert {each.path.partition("?")[2].partition("&")[0] for each in s3.seen} == {"list-type=2"}


@pytest.mark.parametrize("fault", [status(503), expired, reset], ids=["503", "expired", "reset"])
async def test_a_store_that_fails_does_not_disturb_what_is_loaded(
    servers: Servers, publisher: Publisher, bucket: Bucket, s3: Proxy, fault: Any
) -> None:
    bucket.upload(publisher.publish(1))
    with capture_logs() as logs:

        async def told() -> bool:
            return any(each["event"] == "source_unreachable" for each in logs)

        async with servers.serving() as api:
            s3.fault = fault
            bucket.upload(publisher.publish(2))
            await eventually(told, True)
            assert await answered_by(api) == 1
            assert await api.metric("torchlane_source_age_seconds") > 0
            shown = (await api.client.get("/models?full=true")).text
            s3.fault = None
            looks = s3.looks()
            await eventually(lambda: answered_by(api), 2)
            assert s3.looks() - looks <= 2 + 1  # two polls, and one that may have just begun
    names = [each["event"] for each in logs]
    assert (names.count("source_unreachable"), names.count("source_reachable")) == (1, 1)
    assert not any(secret in json.dumps(logs, default=str) + shown for secret in SECRETS)


async def test_a_start_with_a_warm_cache_and_a_dead_store_serves(
    servers: Servers, publisher: Publisher, bucket: Bucket, s3: Proxy
) -> None:
    bucket.upload(publisher.publish(1))
    async with servers.serving() as api:
        assert await answered_by(api) == 1
    s3.fault = status(503)
    with capture_logs() as logs:
        async with servers.serving() as api:
            assert await answered_by(api) == 1
    (said,) = (each for each in logs if each["event"] == "source_not_seen")
    assert (said["url"], said["serves"]) == (bucket.url, "what the cache has")
    assert "the store answers 503" in said["problem"]


async def test_a_start_without_anything_waits_and_says_why(
    servers: Servers, publisher: Publisher, bucket: Bucket, s3: Proxy
) -> None:
    bucket.upload(publisher.publish(1))
    s3.fault = status(403)
    async with servers.serving(wait_ready=False) as api:
        await eventually(lambda: has(api, "no models have come from"), True)
        assert f"{bucket.url}: the store answers 403 Forbidden; it takes AWS_ACCESS" in (
            await readiness(api)
        )
        s3.fault = None
        await eventually(lambda: has(api, '"ready"'), True)
        assert await answered_by(api) == 1


async def test_an_unexpected_error_is_shown_and_tried_again(
    servers: Servers,
    publisher: Publisher,
    bucket: Bucket,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """What came before it is served."""
    read = LibraryStore.read_unless
    names: list[str] = []

    async def fail(store: LibraryStore, key: str, limit: int, etag: str | None) -> Content | None:
        names.append(key.partition("/")[0])
        if names[-1] != names[0]:
            raise RuntimeError("not expected")
        return await read(store, key, limit, etag)

    bucket.upload(publisher.publish(1))
    bucket.upload(publisher.publish(1, "n"))
    with monkeypatch.context() as patch, capture_logs() as logs:
        patch.setattr(LibraryStore, "read_unless", fail)
        async with servers.serving(wait_ready=False) as api:
            await eventually(lambda: has(api, "an unexpected error, which the log has: Run"), True)
            await eventually(lambda: states(api, names[0]), {1: "ready"})
            for _ in range(20):  # a failed look keeps what it brought
                (state,) = (tmp_path / "cache").rglob(STATE_FILE)
                assert f"{names[0]}/1" in json.loads(state.read_text())["versions"]
                await asyncio.sleep(LOOK_S / 4)
            patch.undo()
            await eventually(lambda: states(api, "m"), {1: "ready"})
            await eventually(lambda: states(api, "n"), {1: "ready"})
    assert [each["event"] for each in logs].count("source_failed") == 1


async def test_a_cache_that_cannot_be_written_is_named(
    servers: Servers, publisher: Publisher, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    bucket.upload(publisher.publish(1))
    with monkeypatch.context() as patch:
        patch.setattr(StateFile, "write", full)
        async with servers.serving() as api:
            assert await answered_by(api) == 1  # there was room for the files
            assert await api.metric("torchlane_source_age_seconds") > 0
    with capture_logs() as logs:
        async with servers.serving() as api:
            assert await answered_by(api) == 1
    assert [each for each in logs if each["event"].startswith("source_")] == []


async def has(api: Api, text: str) -> bool:
    return text in await readiness(api)


async def test_what_cannot_be_fetched_is_shown_like_what_cannot_be_loaded(
    servers: Servers, publisher: Publisher, bucket: Bucket
) -> None:
    bucket.upload(publisher.publish(1))
    async with servers.serving() as api:
        bucket.upload(publisher.publish(2))
        bucket.put("m/2/script.pt", b"not what it was")
        await eventually(lambda: states(api), {2: "failed", 1: "ready"})
        shown = (await api.client.get("/models/m?full=true")).text
        assert f"m/2 is not here from {bucket.url}: the store sent 15 bytes of script.pt" in shown
        assert await answered_by(api) == 1


async def test_a_version_that_changes_in_the_store_is_reported_and_not_served(
    servers: Servers, publisher: Publisher, bucket: Bucket, tmp_path: Path
) -> None:
    bucket.upload(publisher.publish(1))
    async with servers.serving() as api:
        bucket.upload(write_artifact(tmp_path / "other", "m", 1))
        await eventually(lambda: api.metric("torchlane_versions_changed"), 1.0)
        assert await answered_by(api) == 1
        shown = (await api.client.get("/models/m?full=true")).text
        assert "its files changed after it was loaded" in shown


async def test_an_older_version_is_fetched_when_it_is_asked_for(
    servers: Servers, publisher: Publisher, bucket: Bucket, s3: Proxy
) -> None:
    for number in (1, 2):
        bucket.upload(publisher.publish(number))
    secret, line = make_key("ops", ["admin", "predict"])
    async with servers.serving(source_poll_s=0, reload_s=0, api_keys=line) as api:
        api.client.headers["Authorization"] = f"Bearer {secret}"
        assert await answered_by(api) == 2
        assert not s3.got("m/1/script.pt")
        assert (await api.client.post("/admin/models/m/versions/1/load")).status_code == 200
        assert await states(api) == {2: "ready", 1: "ready"}
        bucket.upload(publisher.publish(3))
        assert (await api.client.post("/admin/reload")).status_code == 200
        assert await answered_by(api) == 3


async def test_a_damaged_file_in_the_cache_is_fetched_again(
    servers: Servers, publisher: Publisher, bucket: Bucket, tmp_path: Path
) -> None:
    bucket.upload(publisher.publish(1))
    async with servers.serving() as api:
        assert await answered_by(api) == 1
    (file,) = (tmp_path / "cache").glob("mirrors/*/repository/m/1/script.pt")
    size = file.stat().st_size
    file.chmod(0o600)
    file.write_bytes(b"x" * size)
    async with servers.serving() as api:
        assert await answered_by(api) == 1


async def test_doctor_and_score_share_the_mirror(
    publisher: Publisher,
    bucket: Bucket,
    s3: Proxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHLANE_SOURCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TORCHLANE_PORT", "0")
    assert await asyncio.to_thread(doctor, ["--model-dir", bucket.url]) == 1
    assert f"! nothing has been fetched from {bucket.url} yet" in capsys.readouterr().out
    assert not (tmp_path / "cache").exists()
    for name in ("m", "other"):
        bucket.upload(publisher.publish(1, name))
    (tmp_path / "rows.jsonl").write_text('{"input": [1, 2]}\n')
    arguments = ["m", "rows.jsonl", "--model-dir", bucket.url, "--out", "scored"]
    command = ("-m", "app.bulk", *arguments, "--devices", "cpu")
    done = await asyncio.to_thread(run, *command)  # it changes filters and the log
    assert done.returncode == 0, done.stderr
    assert not s3.got("other/1/script.pt")  # only what it needs
    capsys.readouterr()
    s3.fault = status(403)
    assert await asyncio.to_thread(doctor, ["--model-dir", bucket.url]) == 0
    report = capsys.readouterr().out
    assert f"store: {bucket.url}, last seen" in report
    assert "m/1: intact" in report


async def test_several_servers_of_a_machine_look_once(
    servers: Servers, publisher: Publisher, bucket: Bucket, s3: Proxy
) -> None:
    bucket.upload(publisher.publish(1))
    async with servers.serving() as first, servers.serving(source_poll_s=0.5) as second:
        assert (await answered_by(first), await answered_by(second)) == (1, 1)
        assert len(s3.got("script.pt")) == 1
        bucket.upload(publisher.publish(2))
        await eventually(lambda: answered_by(second), 2)
    async with servers.serving() as api:
        assert await answered_by(api) == 2
