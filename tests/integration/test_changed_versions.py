"""A served version is its digest: files that change under its number change no answer."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.access.entries import make_key
from app.errors import VersionChanged
from app.registry.repository import Repository
from app.serving.claims import Claims
from app.serving.served_artifacts import ServedArtifacts
from app.shared_file import SharedFile
from app.types import ModelId
from tests.artifacts import write_artifact
from tests.integration.harness import Api, serving
from tests.integration.publishing import (
    Publisher,
    Times,
    answered_by,
    eventually,
    lifecycle,
    states,
)

LOOK_S = 0.02
SECRET, LINE = make_key("operator", ["admin", "predict"])
M1 = ModelId("m", 1)


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    return Publisher(tmp_path)


def other(publisher: Publisher) -> Path:
    """Version 1 with other content, elsewhere."""
    folder = publisher.repository.parent / "other"
    return write_artifact(folder, "m", 1, Times(2)) if not folder.exists() else folder / "m/1"


def copied_over(publisher: Publisher) -> None:
    """Like `cp -r`: the same folder and files, with other bytes."""
    shutil.copytree(other(publisher), publisher.repository / "m/1", dirs_exist_ok=True)


def replaced(publisher: Publisher) -> None:
    """Like `rm -r`, then an export with --version 1."""
    shutil.rmtree(publisher.repository / "m/1")
    copied_over(publisher)


def damaged_with_the_same_size_and_time(publisher: Publisher) -> None:
    file = publisher.repository / "m/1/script.pt"
    times = file.stat()
    file.write_bytes(bytes(times.st_size))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def another_model(publisher: Publisher) -> None:
    shutil.rmtree(publisher.repository / "m/1")
    made = write_artifact(publisher.repository.parent / "else", "n", 1, Times(2))
    made.rename(publisher.repository / "m/1")


async def problem(api: Api) -> str | None:
    info = (await api.client.get("/models/m")).json()
    (found,) = (each for each in info["versions"] if each["version"] == 1)
    assert found["state"] == "ready"
    return str(found["problem"]) if found["problem"] else None


async def changed(api: Api) -> bool:
    return await problem(api) is not None


@pytest.mark.parametrize(
    "change", [*(copied_over, replaced, another_model), damaged_with_the_same_size_and_time]
)
async def test_a_served_version_is_its_digest(
    publisher: Publisher, change: Callable[[Publisher], None]
) -> None:
    before = publisher.publish(1)
    kept = shutil.copytree(before, publisher.repository.parent / "kept")
    with capture_logs() as logs:
        async with serving(publisher.repository, reload_s=LOOK_S, api_keys=LINE) as api:
            api.client.headers["Authorization"] = f"Bearer {SECRET}"
            assert await answered_by(api) == 1
            change(publisher)
            await eventually(lambda: changed(api), True)
            assert await answered_by(api, x=2.0) == 1
            told = await problem(api)
            assert told is not None
            assert told.startswith("m/1: its files changed after it was loaded: ")
            assert told.endswith("write changed files as a version with a new number")
            assert await api.metric("torchlane_versions_changed") == 1
            for _ in range(2):
                answer = await api.client.post("/admin/reload")
                assert answer.status_code == 409
                found = answer.json()
                assert found["failed"] == [{"model": "m", "version": 1, "problem": told}]
                assert found["loaded"] == found["retired"] == []
            assert (await api.client.get("/health/ready")).status_code == 200
            await asyncio.sleep(4 * LOOK_S)
            assert [log["event"] for log in logs].count("version_changed") == 1
            shutil.copytree(kept, before, dirs_exist_ok=True)
            await eventually(lambda: changed(api), False)
            assert (await api.client.post("/admin/reload")).status_code == 200
            assert await api.metric("torchlane_versions_changed") == 0
            assert await answered_by(api, x=3.0) == 1
    assert [log["event"] for log in logs].count("version_as_served") == 1


async def test_a_new_number_is_accepted_after_a_change(publisher: Publisher) -> None:
    publisher.publish(1)
    async with serving(publisher.repository, reload_s=LOOK_S) as api:
        copied_over(publisher)
        await eventually(lambda: changed(api), True)
        publisher.publish(2)
        await eventually(lambda: answered_by(api), 2)
        assert await states(api) == {2: "ready", 1: "unloaded"}
        assert await api.metric("torchlane_versions_changed") == 0


async def test_unchanged_files_are_not_read_again(
    publisher: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher.publish(1)
    opened: list[ModelId] = []
    open_one = Repository.open_any

    def counted(
        self: Repository, model: ModelId, served: str | None = None, *, whole: bool = True
    ) -> object:
        opened.append(model)
        return open_one(self, model, served, whole=whole)

    monkeypatch.setattr(Repository, "open_any", counted)
    async with serving(publisher.repository, reload_s=0) as api:
        for _ in range(3):
            await lifecycle(api).reload()
    assert opened == [M1]


async def test_new_settings_do_not_swap_the_content(publisher: Publisher, tmp_path: Path) -> None:
    publisher.publish(1)
    file = tmp_path / "models.toml"
    file.write_text("[models.m]\nmax_batch_size = 8\n")
    async with serving(publisher.repository, reload_s=0, models_file=file) as api:
        copied_over(publisher)
        file.write_text("[models.m]\nmax_batch_size = 4\ntimeout_ms = 5000\n")
        changes = await lifecycle(api).reload()
        assert (changes.loaded, [each.id for each in changes.failed]) == ([], [M1])
        told = await problem(api)
        assert told is not None
        assert told.startswith("it keeps serving with its earlier settings: m/1: its files changed")
        assert await api.metric("torchlane_versions_changed") == 1
        shown = (await api.client.get("/models/m?full=true")).json()["settings"]
        assert (shown["max_batch_size"], shown["timeout_ms"]) == (8, 5000)
        assert await answered_by(api, x=2.0) == 1


async def test_an_unloaded_version_may_come_with_other_files(publisher: Publisher) -> None:
    publisher.publish(1)
    async with serving(publisher.repository, reload_s=0) as api:
        await lifecycle(api).unload("m")
        replaced(publisher)
        await lifecycle(api).load("m")
        answer = await api.client.post("/predict", json={"input": [1, 0]})
        assert answer.json()["prediction"]["outputs"]["y"] == [2, 0]
        assert await problem(api) is None


async def test_a_deleted_version_that_still_serves_does_not_come_back_changed(
    publisher: Publisher,
) -> None:
    publisher.publish(1)
    async with serving(publisher.repository, reload_s=0) as api:
        shutil.rmtree(publisher.repository / "m/1")
        assert not (await lifecycle(api).reload()).failed  # its files are gone: no change
        assert await problem(api) is None
        copied_over(publisher)
        assert [each.id for each in (await lifecycle(api).reload()).failed] == [M1]
        assert await answered_by(api, x=2.0) == 1


def in_two_processes(publisher: Publisher) -> tuple[ServedArtifacts, ServedArtifacts]:
    """The artifacts of one repository, as two processes of a server have them."""
    file = SharedFile.create()
    repository = Repository(publisher.repository)
    return (
        ServedArtifacts(repository, Claims(file, 0)),
        ServedArtifacts(repository, Claims(file, 1)),
    )


@pytest.fixture
def sibling(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> ServedArtifacts:
    """The artifacts in another process of the server that the test starts."""
    sibling, ours = in_two_processes(publisher)
    monkeypatch.setattr("app.main.ServedArtifacts", lambda *_: ours)
    return sibling


class TestSeveralProcesses:
    """Another process of the server serves version 1, and its files change."""

    async def test_a_replaced_process_serves_no_other_files(
        self, publisher: Publisher, sibling: ServedArtifacts, tmp_path: Path
    ) -> None:
        publisher.publish(1)
        publisher.publish(2)
        kept = shutil.copytree(publisher.repository / "m/2", tmp_path / "kept")
        sibling.open(ModelId("m", 2))
        shutil.rmtree(publisher.repository / "m/2")
        write_artifact(tmp_path / "changed", "m", 2, Times(9)).rename(publisher.repository / "m/2")
        async with serving(publisher.repository, reload_s=LOOK_S, wait_ready=False) as api:
            # Neither the changed version, nor an older one that no caller expects.
            await eventually(lambda: states(api), {2: "failed"})
            answer = await api.client.post("/predict", json={"input": [1, 0]})
            assert (answer.status_code, answer.json()["code"]) == (503, "model_not_ready")
            assert "m/2: its files changed" in answer.json()["error"]
            assert await api.metric("torchlane_versions_changed") == 1
            shutil.rmtree(publisher.repository / "m/2")
            kept.rename(publisher.repository / "m/2")
            await eventually(lambda: states(api), {2: "ready"})
            assert await answered_by(api) == 2

    async def test_changed_files_may_come_after_the_last_process(
        self, publisher: Publisher, sibling: ServedArtifacts
    ) -> None:
        publisher.publish(1)
        sibling.open(M1)
        replaced(publisher)
        async with serving(publisher.repository, reload_s=LOOK_S, wait_ready=False) as api:
            await eventually(lambda: states(api), {1: "failed"})
            sibling.release(M1)
            await eventually(lambda: states(api), {1: "ready"})
            with pytest.raises(VersionChanged):
                sibling.open(M1, served="0" * 64)

    def test_the_first_of_two_that_load_at_once_decides(
        self, publisher: Publisher, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        publisher.publish(1)
        one, two = in_two_processes(publisher)
        open_one = Repository.open_any

        def overtaken(
            self: Repository, model: ModelId, served: str | None = None, *, whole: bool = True
        ) -> object:
            artifact = open_one(self, model, served, whole=whole)
            monkeypatch.setattr(Repository, "open_any", open_one)
            replaced(publisher)
            two.open(model)
            return artifact

        monkeypatch.setattr(Repository, "open_any", overtaken)
        with pytest.raises(VersionChanged):
            one.open(M1)
        assert one.state(M1).served == two.state(M1).served is not None
