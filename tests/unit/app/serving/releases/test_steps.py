"""Releases of a server: one worker judges, all of them and a later server know the stage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.backends.selection import Preference, select
from app.codecs.choose import codec_for
from app.errors import InvalidInput, ModelNotFound, NotSaved
from app.metrics import Metrics
from app.registry.loaded_models import LoadedModel, LoadedModels
from app.registry.model_settings import ModelSettings
from app.registry.releases import Release, StopIf
from app.serving.releases.file import ReleaseFile
from app.serving.releases.steps import Action, Releases
from app.shared_file import SharedFile
from app.types import ModelId
from models.manifest import Manifest
from tests.unit.models.manifests import make_manifest, spec

RELEASE = Release(to=3, steps=[10, 50, 100], every_s=60, stop_if=StopIf(errors_above=0.1))
MANIFEST = make_manifest()


class Process:
    """A worker, or a server of one process, with versions 2 and 3 of `m`.

    Args:
        folder: with the models file.
        judging: shared with other workers.
        has_release: whether the models file has the release.
    """

    def __init__(
        self, folder: Path, judging: SharedFile | None = None, *, has_release: bool = True
    ) -> None:
        self.moment = 0.0
        self.has_room = True
        self.metrics = Metrics()
        self.loaded = LoadedModels(None)
        self.wanted = {"m": RELEASE} if has_release else {}
        self.releases = Releases(
            self.loaded,
            lambda: self.wanted,
            lambda _: True,
            ReleaseFile(folder / "models.toml"),
            self.metrics,
            judging,
            has_room=lambda _: self.has_room,
            clock=lambda: self.moment,
            now=lambda: self.moment,
        )
        self.releases.start()
        for version in (3, 2):
            self.serve(version)

    def serve(self, version: int, manifest: Manifest = MANIFEST) -> None:
        codec, selection = codec_for(manifest), select(manifest, Preference())
        settings = ModelSettings(release=self.wanted.get("m"))
        model = ModelId("m", version)
        self.loaded.publish(LoadedModel(model, manifest, codec, selection, settings=settings))

    async def passes(self, seconds: float) -> None:
        self.moment += seconds
        await self.releases.look()

    def fails(self) -> None:
        model = self.metrics.model(ModelId("m", 3))
        for _ in range(60):
            model.outcome("backend_failed")
            model.count_failure(0.1)

    @property
    def shares(self) -> Mapping[int, float]:
        split = self.loaded.split("m")
        return {} if split is None else split.shares

    def metric(self, name: str) -> float | None:
        labels = {"model": "m", "version": "3"}
        return self.metrics.registry.get_sample_value(f"torchlane_release_{name}", labels)


async def watched(process: Process) -> None:
    """Look until the judge watches the first step."""
    await process.passes(0)
    await process.passes(0)


async def test_it_completes_and_says_so(tmp_path: Path) -> None:
    with capture_logs() as logs:
        process = Process(tmp_path)
        assert process.shares == {2: 1}
        await watched(process)
        for share in (0.1, 0.5, 1):
            assert process.shares.get(3) == share
            assert process.metric("share") == share
            await process.passes(60)
            await process.passes(0)
        assert process.shares == {3: 1}
    assert [(log["event"], log.get("step")) for log in logs] == [
        ("release_step", "1 of 3"),
        ("release_step", "2 of 3"),
        ("release_step", "3 of 3"),
        ("release_completed", None),
    ]


async def test_a_failing_version_is_rolled_back(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await watched(process)
    process.fails()
    with capture_logs() as logs:
        await process.passes(1)
        await process.passes(1)
    assert process.shares == {2: 1}
    assert (process.metric("share"), process.metric("rolled_back")) == (0, 1)
    (log,) = logs
    assert (log["event"], log["log_level"]) == ("release_rolled_back", "error")
    assert (log["model"], log["version"], log["old"]) == ("m", 3, 2)


async def test_the_stage_survives_a_restart(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await watched(process)
    await process.passes(60)
    assert Process(tmp_path).shares == {2: 0.5, 3: 0.5}
    await process.passes(0)
    process.fails()
    await process.passes(1)
    assert Process(tmp_path).shares == {2: 1}


async def test_one_worker_judges_and_the_others_follow(tmp_path: Path) -> None:
    judging = SharedFile.create()
    descriptor = SharedFile(judging.descriptor)  # as another worker has it
    judge, other = Process(tmp_path, judging), Process(tmp_path, judging)
    await watched(judge)
    other.fails()  # counted by this worker alone, which does not judge
    await watched(other)
    await other.passes(60)
    assert other.shares == {2: 0.9, 3: 0.1}
    await judge.passes(60)
    await other.passes(1)
    assert other.shares == judge.shares == {2: 0.5, 3: 0.5}
    judge.releases.close()
    await watched(other)
    await other.passes(60)
    assert other.shares == {3: 1}
    other.releases.close()
    descriptor.close()


async def test_a_file_that_cannot_be_written_pauses(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await watched(process)
    blocked = tmp_path / ".models.toml.releases.json.tmp"  # what is renamed to the file
    blocked.mkdir()
    with capture_logs() as logs:
        for _ in range(3):
            await process.passes(60)
        with pytest.raises(NotSaved, match="did not change"):
            await process.releases.act("m", "pause")
    assert [log["event"] for log in logs] == ["release_state_unusable"]
    assert process.shares == {2: 0.9, 3: 0.1}
    assert "paused" in str(process.releases.problem("m"))
    blocked.rmdir()
    await process.passes(1)
    assert process.releases.problem("m") is None
    assert process.shares == {2: 0.5, 3: 0.5}


async def test_a_damaged_file_keeps_the_shares(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await watched(process)
    file = ReleaseFile(tmp_path / "models.toml").path
    file.write_text("{")
    with capture_logs() as logs:
        await process.passes(60)
        await process.passes(60)
    assert [log["event"] for log in logs] == ["release_state_unusable"]
    assert process.shares == {2: 0.9, 3: 0.1}
    assert Process(tmp_path).shares == {2: 1}
    file.unlink()
    await watched(process)
    assert process.shares == {2: 0.9, 3: 0.1}


async def test_an_administrator_decides(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await watched(process)
    act = process.releases.act
    await act("m", "pause")
    await watched(process)
    await process.passes(1000)
    assert process.shares == {2: 0.9, 3: 0.1}
    await act("m", "resume")
    await watched(process)
    await process.passes(60)
    assert process.shares == {2: 0.5, 3: 0.5}
    await act("m", "rollback")
    assert process.shares == {2: 1}
    await act("m", "resume")  # from the first step
    assert process.shares == {2: 0.9, 3: 0.1}


@pytest.mark.parametrize("action", ["pause", "resume", "rollback"])
async def test_an_action_that_is_impossible_is_refused(tmp_path: Path, action: Action) -> None:
    process = Process(tmp_path)
    act = process.releases.act
    with pytest.raises(InvalidInput, match="has not begun"):
        await act("m", action)
    with pytest.raises(ModelNotFound):
        await act("absent", action)
    await watched(process)
    if action != "resume":
        await act("m", action)
    with pytest.raises(InvalidInput, match=f"{action} is not possible now"):
        await act("m", action)
    process.wanted = {}
    with pytest.raises(InvalidInput, match="no release"):
        await act("m", action)


async def test_a_release_that_is_removed_ends(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await watched(process)
    process.wanted = {}
    process.serve(3)
    await process.passes(0)
    assert process.shares == {}
    assert process.metric("share") == 0
    assert ReleaseFile(tmp_path / "models.toml").read() == {}


async def test_a_release_that_is_removed_while_the_server_is_down_ends(tmp_path: Path) -> None:
    await watched(Process(tmp_path))
    await Process(tmp_path, has_release=False).passes(0)
    assert ReleaseFile(tmp_path / "models.toml").read() == {}


async def test_a_version_that_is_missing_is_reported_once(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.loaded.withdraw(ModelId("m", 3))
    with capture_logs() as logs:
        await process.passes(0)
        await process.passes(59)
        assert logs == []
        await process.passes(1)
        await process.passes(1)
    (log,) = logs
    assert log["event"] == "release_waits"
    assert "version 3 is not served" in log["problem"]
    assert process.releases.problem("m") == log["problem"]
    process.serve(3)
    await watched(process)
    assert process.releases.problem("m") is None
    assert process.shares == {2: 0.9, 3: 0.1}


async def test_a_version_without_room_waits(tmp_path: Path) -> None:
    process = Process(tmp_path)
    await watched(process)
    process.has_room = False
    for _ in range(5):
        await process.passes(60)
    assert process.shares == {2: 0.9, 3: 0.1}
    assert "there is no room to load version 3 on demand" in str(process.releases.problem("m"))
    process.has_room = True
    await process.passes(0)
    await process.passes(60)
    assert process.shares == {2: 0.5, 3: 0.5}


async def test_versions_that_cannot_be_compared_wait_if_they_are_judged_by_it(
    tmp_path: Path,
) -> None:
    process = Process(tmp_path)
    process.serve(3, make_manifest(inputs=[spec("other")]))
    judged = {"stop_if": StopIf(agreement_below=0.9)}
    process.wanted = {"m": RELEASE.model_copy(update=judged)}
    await watched(process)
    assert process.shares == {2: 1}
    problem = str(process.releases.problem("m"))
    assert "version 3 reads its inputs in another way than version 2" in problem
    process.serve(3)
    await watched(process)
    assert process.releases.problem("m") is None
    process.serve(3, make_manifest(inputs=[spec("other")]))
    process.wanted = {"m": RELEASE}
    await watched(process)
    assert process.releases.problem("m") is None
