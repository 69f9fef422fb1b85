"""An attacker with write access to the repository: their files cause no waiting and are not run.

Each attack leaves the server live and not ready, names the file, and tells clients no path of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.main import create_app
from app.settings import Settings, SettingsError
from tests.artifacts import write_artifact
from tests.integration.harness import Api, serving, settled
from tests.keys import Pair, make_pair

SECRET = "correct horse battery staple"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with double/1, next to a folder of secrets."""
    write_artifact(tmp_path / "root", "double")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/key").write_text(SECRET)
    return tmp_path / "root"


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return make_pair(tmp_path)


@pytest.fixture
def signed(root: Path, pair: Pair) -> Path:
    """The artifact's folder, signed."""
    pair.sign(root / "double/1")
    return root / "double/1"


async def reason(api: Api) -> str:
    """Why it is live and not ready; nothing that a client gets names a folder of this machine."""
    await settled(api)
    assert (await api.client.get("/health/live")).status_code == 200
    ready = await api.client.get("/health/ready")
    rejected = await api.client.post("/predict", json={"input": [1, 2]})
    models = await api.client.get("/models")
    assert (ready.status_code, rejected.status_code) == (503, 503)
    for answer in (ready, rejected, models):
        assert "/tmp" not in answer.text
        assert SECRET not in answer.text
    (found,) = ready.json()["reasons"]
    (version,) = models.json()["models"][0]["versions"]
    assert found == f"model 'double' could not be loaded: {version['problem']}"
    return str(found)


async def rejection(root: Path, **chosen: Any) -> str:
    async with serving(root, wait_ready=False, **chosen) as api:
        return await reason(api)


async def works(root: Path, **chosen: Any) -> dict[str, Any]:
    """The answer of /models from a ready server."""
    async with serving(root, **chosen) as api:
        answer = await api.client.post("/predict", json={"input": [1, 2]})
        assert answer.json()["prediction"] == {"outputs": {"y": [2.0, 4.0]}}
        found: dict[str, Any] = (await api.client.get("/models/double?full=true")).json()
        return found


async def eventually(api: Api, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """What /models says about it."""
    async with asyncio.timeout(60):
        while not wanted((await api.client.get("/models/double")).json()):
            await asyncio.sleep(0.01)


class TestContainment:
    @pytest.mark.parametrize("name", ["script.pt", "manifest.json", "manifest.sha256"])
    async def test_symlinked_file(self, root: Path, name: str) -> None:
        path = root / "double/1" / name
        path.rename(root.with_name("secrets") / name)  # the very bytes, but from elsewhere
        path.symlink_to(f"../../../secrets/{name}")
        assert f"double/1: {name} is a link that leads out of the artif" in await rejection(root)

    async def test_an_older_good_version_keeps_answering(self, root: Path) -> None:
        (root / "double/2").symlink_to(root.with_name("secrets"))
        found = await works(root)
        assert found["version"] == 1
        problems = {each["version"]: each["problem"] for each in found["versions"]}
        assert problems[2].startswith("double/2: the folder double/2 is a link that leads out")

    async def test_links_inside_the_repository_are_allowed(self, root: Path) -> None:
        (root / "..2026_01").mkdir()
        (root / "double").rename(root / "..2026_01/double")
        (root / "..data").symlink_to("..2026_01")
        (root / "double").symlink_to("..data/double")
        assert (await works(root))["version"] == 1


class TestSignatures:
    async def test_signed_by_a_trusted_key(self, signed: Path, pair: Pair) -> None:
        found = await works(signed.parents[1], trusted_keys=pair.public)
        assert found["signed_by"] == pair.fingerprint

    async def test_unsigned_artifact_when_signatures_are_required(
        self, root: Path, pair: Pair
    ) -> None:
        assert await rejection(root, trusted_keys=pair.public) == (
            "model 'double' could not be loaded: double/1: it is not signed: there is no "
            "manifest.sig, and only artifacts signed by a trusted key are accepted; sign it with "
            "`torchlane sign`"
        )

    async def test_an_unsigned_version_does_not_replace_a_signed_one(
        self, signed: Path, pair: Pair
    ) -> None:
        write_artifact(signed.parents[1], "double", version=2)
        found = await works(signed.parents[1], trusted_keys=pair.public)
        assert (found["version"], found["signed_by"]) == (1, pair.fingerprint)
        problems = {each["version"]: each["problem"] for each in found["versions"]}
        assert problems[2].startswith("double/2: it is not signed")

    async def test_a_version_signed_later_is_loaded(self, signed: Path, pair: Pair) -> None:
        root = signed.parents[1]
        async with serving(root, trusted_keys=pair.public, reload_s=0.05) as api:
            pushed = write_artifact(root, "double", version=2)
            await eventually(api, lambda info: "not signed" in str(info["versions"]))
            answer = await api.client.post("/predict", json={"input": [1, 2]})
            assert answer.json()["version"] == 1
            pair.sign(pushed)
            await eventually(api, lambda info: info["version"] == 2)


def test_a_missing_file_of_trusted_keys_prevents_the_start(root: Path, tmp_path: Path) -> None:
    settings = Settings(model_dir=root, trusted_keys=tmp_path / "none.pem", _env_file=None)
    with pytest.raises(SettingsError, match=r"^TORCHLANE_TRUSTED_KEYS=.*none\.pem cannot be read"):
        create_app(settings)
