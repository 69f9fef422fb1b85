"""Versions come and go while the server answers."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.errors import ShuttingDown
from app.serving.overrides import Overrides
from tests.artifacts import scripted, write_artifact
from tests.integration.harness import Api, serving
from tests.integration.publishing import (
    Publisher,
    Times,
    answered_by,
    eventually,
    lifecycle,
    states,
)
from tests.late_streams import put_everything_off

LOOK_S = 0.05


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path)


async def load_of(api: Api, path: str = "/predict") -> AsyncIterator[int]:
    """Requests, one after the other, each with an input of its own."""
    for number in range(1_000_000):
        yield await answered_by(api, path, x=1.0 + number / 8)


async def test_a_new_version_is_detected_and_takes_over(publisher: Publisher) -> None:
    publisher.publish(1)
    async with serving(publisher.repository, reload_s=LOOK_S) as api:
        assert await answered_by(api) == 1
        publisher.publish(2)
        await eventually(lambda: answered_by(api), 2)
        await eventually(lambda: states(api), {2: "ready", 1: "unloaded"})
        gone = await api.client.post("/models/m/versions/1/predict", json={"input": [1, 2]})
        assert (gone.status_code, gone.json()["code"]) == (404, "model_not_found")
        assert gone.json()["error"] == "version 1 of 'm' is not loaded; loaded: 2"
        assert await api.metric("torchlane_model_info", version="2") == 1
        assert await api.metric("torchlane_model_info", version="1") == 0
        text = (await api.client.get("/metrics")).text
        assert 'torchlane_queue_depth_items{model="m",version="2"}' in text
        assert 'torchlane_queue_depth_items{model="m",version="1"}' not in text
        assert await api.metric("torchlane_model_loads_total", version="1", result="retired") == 1


async def test_no_request_fails_while_versions_change_under_load(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an asynchronous device that does everything as late as possible."""
    late_streams = put_everything_off(monkeypatch)
    publisher.publish(1)
    seen: list[list[int]] = [[], [], []]
    async with serving(publisher.repository, reload_s=LOOK_S, devices="cpu*2") as api:

        async def client(mine: list[int]) -> None:
            async for version in load_of(api):
                mine.append(version)
                await asyncio.sleep(0.002)  # else loading, in a thread, would hardly get a turn

        clients = [asyncio.create_task(client(mine)) for mine in seen]

        async def newest_seen() -> list[int]:
            return [mine[-1] if mine else 0 for mine in seen]

        await eventually(newest_seen, [1, 1, 1])
        for version in range(2, 5):
            publisher.publish(version)
            await eventually(lambda: states_ready(api), [version])
        await eventually(newest_seen, [4, 4, 4])
        for each in clients:
            each.cancel()
        for outcome in await asyncio.gather(*clients, return_exceptions=True):
            assert isinstance(outcome, asyncio.CancelledError)
        assert await api.metric("torchlane_requests_total", status="503") == 0
    for mine in seen:
        assert mine == sorted(mine)  # never back
    assert len(late_streams) == 2
    assert not any(each.waiting for each in late_streams)


async def states_ready(api: Api) -> list[int]:
    return [version for version, state in (await states(api)).items() if state == "ready"]


async def test_the_cache_never_answers_across_versions(publisher: Publisher) -> None:
    publisher.publish(1)
    async with serving(publisher.repository, reload_s=0) as api:
        for _ in range(4):  # the body is remembered as well
            assert await answered_by(api, x=3.0) == 1
        publisher.publish(2)
        await lifecycle(api).reload()
        for _ in range(4):
            assert await answered_by(api, x=3.0) == 2


async def test_a_bad_version_is_reported_and_never_serves(publisher: Publisher) -> None:
    publisher.publish(1)
    async with serving(publisher.repository, reload_s=LOOK_S) as api:
        publisher.publish_wrong(2)
        await eventually(lambda: states(api), {2: "failed", 1: "ready"})
        assert await answered_by(api) == 1
        info = (await api.client.get("/models/m")).json()
        assert "golden example 0" in info["versions"][0]["problem"]
        assert (await api.client.get("/health/ready")).status_code == 200
        assert await api.metric("torchlane_model_loads_total", result="failed") == 1
        await asyncio.sleep(4 * LOOK_S)  # it is not tried again and again
        assert await api.metric("torchlane_model_loads_total", result="failed") == 1


async def test_a_slowly_copied_version_loads_when_complete(
    publisher: Publisher, tmp_path: Path
) -> None:
    publisher.publish(1)
    async with serving(publisher.repository, reload_s=LOOK_S) as api:
        made = write_artifact(tmp_path / "elsewhere", "m", 2, Times(2))
        folder = publisher.repository / "m" / "2"
        folder.mkdir()
        for path in sorted(made.iterdir()):
            await eventually(lambda: states(api), {2: "failed", 1: "ready"})
            shutil.copy(path, folder)
        await eventually(lambda: answered_by(api), 2)


async def test_an_unreadable_folder_affects_no_other_model(publisher: Publisher) -> None:
    publisher.publish(1)
    stray = publisher.repository / "a"
    stray.symlink_to("x" * 300)  # to look at it is an error
    (publisher.repository / "m" / "20261125120000").mkdir()
    with capture_logs() as logs:
        async with serving(publisher.repository, reload_s=LOOK_S) as api:
            assert await answered_by(api, "/models/m/predict") == 1
            publisher.publish(2)
            await eventually(lambda: answered_by(api, "/models/m/predict"), 2)
            shown = (await api.client.get("/models/a")).json()
            assert (shown["state"], shown["versions"]) == ("failed", [])
            assert shown["problem"] == "it cannot be read: File name too long"
            answer = await api.client.post("/models/a/predict", json={"input": [1, 2]})
            assert (answer.status_code, answer.json()["code"]) == (503, "model_not_ready")
            assert "File name too long" in answer.json()["error"]
            assert await api.metric("torchlane_model_folders_unreadable") == 1
            stray.unlink()
            publisher.publish(3, "a")
            await eventually(lambda: states(api, "a"), {3: "ready"})
            assert await api.metric("torchlane_model_folders_unreadable") == 0
    told = [(log["event"], log.get("names", log.get("model"))) for log in logs]
    for each in (
        ("folders_ignored", "m/20261125120000"),
        ("model_folder_unreadable", "a"),
        ("model_folder_readable", "a"),
    ):
        assert told.count(each) == 1


async def test_a_model_whose_folder_turns_unreadable_is_served_as_before(
    publisher: Publisher,
) -> None:
    publisher.publish(1)
    publisher.publish(2)
    async with serving(publisher.repository, reload_s=0) as api:
        away = publisher.repository.parent / "away"
        (publisher.repository / "m").rename(away)
        (publisher.repository / "m").symlink_to("x" * 300)
        for _ in range(2):
            changes = await lifecycle(api).reload()
            assert (changes.loaded, changes.retired, changes.failed) == ([], [], [])
            assert await answered_by(api) == 2
        assert (await lifecycle(api).unload("m")).retired  # also while it is unreadable
        (publisher.repository / "m").unlink()
        away.rename(publisher.repository / "m")
        await lifecycle(api).load("m")
        assert await answered_by(api) == 2


async def test_a_new_model_does_not_affect_readiness(publisher: Publisher) -> None:
    publisher.publish(1)
    async with serving(publisher.repository, reload_s=LOOK_S) as api:
        wrong = publisher.publish(1, "other")
        (wrong / "script.pt").write_bytes(b"altered")
        while "other" not in (await api.client.get("/models")).text:
            assert (await api.client.get("/health/ready")).status_code == 200
            await asyncio.sleep(0.01)
        await eventually(lambda: states(api, "other"), {1: "failed"})
        assert (await api.client.get("/health/ready")).status_code == 200
        assert await answered_by(api) == 1  # the default model is what it was
        publisher.publish(2, "other")
        await eventually(lambda: states(api, "other"), {2: "ready", 1: "failed"})
        assert await answered_by(api, "/models/other/predict") == 2


async def test_the_first_only_model_stays_the_default(publisher: Publisher) -> None:
    publisher.publish(1)
    overrides = Overrides(None)
    async with serving(publisher.repository, reload_s=0) as api:
        publisher.publish(2, "a")
        publisher.publish(2, "b")
        with capture_logs() as logs:
            await lifecycle(api).reload()
            await lifecycle(api).reload()
        told = [(log["model"], log["others"]) for log in logs if log["event"].startswith("default")]
        assert told == [("m", "a, b")]
        assert await answered_by(api) == 1
        overrides.keep_default(lifecycle(api).loaded.default_model)
    async with serving(publisher.repository) as api:  # it was not the only one when this began
        assert (await api.client.post("/predict", json={"input": [1, 2]})).status_code == 404
        lifecycle(api).loaded.record_contents(
            (), overrides.now().default
        )  # another process has said so
        assert await answered_by(api) == 1


async def test_readiness_follows_the_first_published_model(publisher: Publisher) -> None:
    async with serving(publisher.repository, reload_s=LOOK_S, wait_ready=False) as api:
        await asyncio.sleep(2 * LOOK_S)
        assert (await api.client.get("/health/ready")).status_code == 503
        publisher.publish(1)

        async def ready() -> int:
            return (await api.client.get("/health/ready")).status_code

        await eventually(ready, 200)
        assert await answered_by(api) == 1


async def test_the_last_good_version_outlives_its_files(publisher: Publisher) -> None:
    publisher.publish(1)
    publisher.publish(2)
    async with serving(publisher.repository, reload_s=0) as api:
        shutil.rmtree(publisher.repository / "m" / "2")
        await lifecycle(api).reload()
        assert await answered_by(api) == 1
        assert await states(api) == {1: "ready"}
        shutil.rmtree(publisher.repository / "m")
        await lifecycle(api).reload()
        assert await answered_by(api) == 1
        shutil.rmtree(publisher.repository)
        await lifecycle(api).reload()
        assert await answered_by(api) == 1
        assert (await api.client.get("/health/ready")).status_code == 200


async def test_a_missing_pinned_version_is_reported_and_awaited(publisher: Publisher) -> None:
    publisher.publish(1)
    async with serving(
        publisher.repository, versions="2", reload_s=LOOK_S, wait_ready=False
    ) as api:
        await eventually(lambda: states(api), {2: "failed"})
        answer = await api.client.post("/predict", json={"input": [1, 2]})
        assert (answer.status_code, answer.json()["code"]) == (503, "model_not_ready")
        publisher.publish(2)
        await eventually(lambda: states(api), {2: "ready"})


async def test_a_version_without_the_pinned_variant_retires_nothing(publisher: Publisher) -> None:
    publisher.publish(1)
    publisher.publish(2)
    async with serving(publisher.repository, reload_s=0, variant="script") as api:
        await lifecycle(api).load("m", 1)
        publisher.publish(3, variants={"other": scripted(Times(3), "other")})
        changes = await lifecycle(api).reload()
        assert [status.id.version for status in changes.failed] == [3]
        assert changes.retired == []
        assert await states(api) == {3: "failed", 2: "ready", 1: "ready"}


async def test_a_stop_cancels_a_running_load(publisher: Publisher) -> None:
    publisher.publish(1)
    async with serving(publisher.repository, reload_s=0) as api:
        publisher.publish(2)
        reloading = asyncio.create_task(lifecycle(api).reload())
        await asyncio.sleep(0)
        lifecycle(api).begin_drain(5.0)
        with pytest.raises(ShuttingDown):
            await reloading
