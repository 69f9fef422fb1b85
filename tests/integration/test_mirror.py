"""A mirror of a real S3: what it brings, keeps and refuses, whatever the store does."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from app.registry.repository import Repository
from app.sources.cache import Cache
from app.sources.download import PART
from app.sources.looking import Looking
from app.sources.mirror import Mirror
from app.sources.state import STATE_FILE, State
from app.sources.wants import OwnWants, Wants
from app.types import ModelId
from models.integrity import Untrusted, Verifier
from models.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, SIGNATURE_FILE
from models.stores.choose import open_store
from models.stores.urls import StoreUrl
from tests.artifacts import write_artifact
from tests.s3 import Bucket, Proxy, Seen, expired, only, reset, status

GIB = 1 << 30


class Mirrored:
    """A mirror, and one server's wish for it."""

    def __init__(
        self,
        cache: Path,
        url: str,
        policy: str = "latest",
        *,
        limit: int = GIB,
        verifier: Verifier | None = None,
        gone_after_s: float = 0.0,
    ) -> None:
        self.cache = cache
        self.mirror = Mirror(cache, StoreUrl.parse(url))
        self.mirror.create()
        self.policy = policy
        self.wants = OwnWants(self.mirror.wants)
        self.use()
        self.repository = Repository(self.mirror.repository, verifier)
        self._looking = Looking(
            open_store(self.mirror.url),
            self.mirror,
            Cache(cache, limit, "TORCHLANE_SOURCE_CACHE_BYTES"),
            verifier,
            gone_after_s,
        )

    def use(self, *versions: str) -> None:
        self.wants.put(Wants(policy=self.policy, versions=frozenset(versions)))

    async def look(self) -> State:
        return await self._looking.look(0)

    def versions(self) -> dict[str, list[int]]:
        """Those that are there, each of them intact."""
        found = self.repository.versions()
        for name, numbers in found.items():
            for number in numbers:
                self.repository.open_any(ModelId(name, number))
        return found


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """Versions that are not in the store yet."""
    return tmp_path / "made"


@pytest.fixture
def mirrored(tmp_path: Path, s3: Proxy, bucket: Bucket) -> Mirrored:
    return Mirrored(tmp_path / "cache", bucket.url)


async def test_the_wanted_versions_appear_and_nothing_is_read_twice(
    mirrored: Mirrored, made: Path, s3: Proxy, bucket: Bucket
) -> None:
    for number in (1, 2):
        bucket.upload(write_artifact(made, "m", number))
    bucket.upload(write_artifact(made, "other"))
    bucket.put("m/2/notes.txt", b"no file of the artifact")
    state = await mirrored.look()
    assert (state.problem, state.refused) == (None, {})
    assert mirrored.versions() == {"m": [2], "other": [1]}
    files = {file.name for file in (mirrored.mirror.repository / "m" / "2").iterdir()}
    assert files == {file.name for file in (made / "m" / "2").iterdir()}
    s3.seen.clear()
    await mirrored.look()
    assert [each.path.partition("?")[2].partition("&")[0] for each in s3.seen] == ["list-type=2"]


async def test_policies_of_all_servers_decide_what_is_brought(
    mirrored: Mirrored, made: Path, bucket: Bucket
) -> None:
    for number in range(1, 6):
        bucket.upload(write_artifact(made, "m", number))
    other = OwnWants(mirrored.mirror.wants)
    other.put(Wants(policy="m=2;latest"))
    mirrored.use("m/4")
    await mirrored.look()
    assert mirrored.versions() == {"m": [5, 4, 2]}
    other.close()
    bucket.upload(write_artifact(made, "m", 6))
    await mirrored.look()
    assert mirrored.versions() == {"m": [6, 5, 4, 2]}  # there is room for what nobody wants


async def test_a_large_file_comes_in_parts_and_goes_on_after_a_stop(
    mirrored: Mirrored, made: Path, s3: Proxy, bucket: Bucket
) -> None:
    folder = large_version(made, PART * 3 + 1000)
    bucket.upload(folder)
    s3.fault = lambda handler, seen: (
        f"bytes={2 * PART}-" in (handler.headers["Range"] or "") and reset(handler, seen)
    )
    state = await mirrored.look()
    assert state.problem is not None
    assert "weights.bin: the connection broke" in state.problem
    assert (mirrored.versions(), list(state.refused)) == ({}, ["m/1"])
    s3.fault = None
    s3.seen.clear()
    state = await mirrored.look()
    assert (state.problem, mirrored.versions()) == (None, {"m": [1]})
    assert sum(each.nbytes for each in s3.got("weights.bin")) == PART + 1000


def large_version(made: Path, nbytes: int, number: int = 1) -> Path:
    """A version with one file more, of random bytes."""
    folder = write_artifact(made, "m", number)
    content = os.urandom(nbytes)
    (folder / "weights.bin").write_bytes(content)
    manifest = json.loads((folder / MANIFEST_FILE).read_bytes())
    digest = hashlib.sha256(content).hexdigest()
    manifest["files"]["weights.bin"] = {"sha256": digest, "bytes": nbytes}
    seal(folder, manifest)
    return folder


def seal(folder: Path, manifest: object) -> None:
    """Write a manifest and its digest."""
    text = json.dumps(manifest).encode()
    (folder / MANIFEST_FILE).write_bytes(text)
    line = f"{hashlib.sha256(text).hexdigest()}  {MANIFEST_FILE}\n"
    (folder / "manifest.sha256").write_text(line)


async def test_wrong_bytes_are_refused_and_nothing_of_them_stays(
    mirrored: Mirrored, made: Path, s3: Proxy, bucket: Bucket
) -> None:
    bucket.upload(write_artifact(made, "m", 1))
    await mirrored.look()
    bucket.upload(write_artifact(made, "m", 2))

    def flipped(seen: Seen, content: bytes) -> bytes:
        return (
            content[:-1] + bytes([content[-1] ^ 1]) if seen.path.endswith("script.pt") else content
        )

    s3.change = flipped
    state = await mirrored.look()
    assert "script.pt in the store has SHA-256" in state.refused["m/2"]
    assert mirrored.versions() == {"m": [1]}
    assert list(mirrored.mirror.partials.iterdir()) == []
    s3.change = None
    state = await mirrored.look()
    assert (state.refused, mirrored.versions()) == ({}, {"m": [2, 1]})


async def test_a_store_that_keeps_lying_is_asked_less_and_less(
    mirrored: Mirrored, made: Path, bucket: Bucket, s3: Proxy
) -> None:
    folder = write_artifact(made, "m")
    bucket.upload(folder)
    bucket.put("m/1/script.pt", b"x" * (folder / "script.pt").stat().st_size)
    for _ in range(6):
        state = await mirrored.look()
    assert len(s3.got("m/1/script.pt")) == 3
    assert list(state.refused) == ["m/1"]
    bucket.put(f"m/1/{MANIFEST_FILE}", (folder / MANIFEST_FILE).read_bytes() + b"\n")
    seal_in_store(bucket, "m/1")
    await mirrored.look()
    assert len(s3.got("m/1/script.pt")) == 4  # what is new is tried at once
    for _ in range(3):
        await mirrored.look()
    bucket.put("m/1/script.pt", (folder / "script.pt").read_bytes())
    assert (await mirrored.look()).refused == {}


def seal_in_store(bucket: Bucket, key: str) -> None:
    text = bucket.read(f"{key}/{MANIFEST_FILE}")
    line = f"{hashlib.sha256(text).hexdigest()}  {MANIFEST_FILE}\n"
    bucket.put(f"{key}/manifest.sha256", line.encode())


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (status(503), "the store answers 503 Service Unavailable"),
        (status(403, b"<Error><Code>AccessDenied</Code></Error>"), "403 Forbidden, AccessDenied"),
        (expired, "400 Bad Request, ExpiredToken; it takes AWS_ACCESS_KEY_ID"),
        (reset, "the connection broke"),
        (status(200, b"<html>a captive portal</html>"), "is suddenly empty"),
        (only("continuation-token", status(500)), "the store answers 500"),
    ],
)
async def test_a_store_that_fails_costs_nothing_but_freshness(
    mirrored: Mirrored,
    made: Path,
    s3: Proxy,
    bucket: Bucket,
    fault: object,
    says: str,
) -> None:
    bucket.upload(write_artifact(made, "m"))
    for number in range(1000 if "500" in says else 0):
        bucket.put(f"a/{number}", b"")  # so that the listing has a second page
    before = await mirrored.look()
    s3.fault = fault  # type: ignore[assignment]
    for _ in range(3):
        state = await mirrored.look()
        assert state.problem is not None
        assert says in state.problem
        assert state.succeeded_at == before.succeeded_at
        assert mirrored.versions() == {"m": [1]}
    for secret in ("a-secret-access-key", "a-session-token", "AKIDEXAMPLE"):
        assert secret not in state.model_dump_json()
    s3.fault = None
    state = await mirrored.look()
    assert (state.problem, mirrored.versions()) == (None, {"m": [1]})


async def test_a_version_leaves_only_after_two_listings_without_it(
    mirrored: Mirrored, made: Path, bucket: Bucket, s3: Proxy
) -> None:
    folders = [write_artifact(made, "m", number) for number in (1, 2)]
    mirrored.policy = "all"
    mirrored.use()
    for folder in folders:
        bucket.upload(folder)
    await mirrored.look()
    bucket.remove_version(folders[1])
    await mirrored.look()
    s3.fault = status(503)
    await mirrored.look()  # which says nothing about the version
    assert mirrored.versions() == {"m": [2, 1]}
    s3.fault = None
    await mirrored.look()
    assert mirrored.versions() == {"m": [1]}
    bucket.remove_version(folders[0])
    for _ in range(3):
        state = await mirrored.look()
    assert "suddenly empty" in str(state.problem)
    assert mirrored.versions() == {"m": [1]}


async def test_listings_soon_after_each_other_remove_nothing(
    tmp_path: Path, made: Path, s3: Proxy, bucket: Bucket
) -> None:
    """An administrator may ask twice while the store fails to list a version."""
    folders = [write_artifact(made, "m", number) for number in (1, 2)]
    for folder in folders:
        bucket.upload(folder)
    patient = Mirrored(tmp_path / "cache", bucket.url, "all", gone_after_s=3600)
    await patient.look()
    bucket.remove_version(folders[1])
    for _ in range(3):
        state = await patient.look()
    assert patient.versions() == {"m": [2, 1]}
    since = state.versions["m/2"].missing_since
    assert since is not None
    bucket.upload(folders[1])
    state = await patient.look()
    assert state.versions["m/2"].missing_since is None
    bucket.remove_version(folders[1])
    state = await patient.look()
    assert (state.versions["m/2"].missing_since or 0) > since  # the time begins anew
    await Mirrored(tmp_path / "cache", bucket.url, "all").look()
    assert patient.versions() == {"m": [1]}


async def test_a_listing_that_changes_while_it_is_read_loses_nothing(
    mirrored: Mirrored, made: Path, bucket: Bucket, s3: Proxy
) -> None:
    bucket.upload(write_artifact(made, "m"))
    await mirrored.look()

    def without(seen: Seen, content: bytes) -> bytes:
        if "list-type" not in seen.path:
            return content
        return content.replace(b"m/1/manifest.json", b"m/1/manifest.jso_")

    bucket.upload(write_artifact(made, "other"))
    s3.change = without
    await mirrored.look()
    s3.change = None
    await mirrored.look()
    assert mirrored.versions() == {"m": [1], "other": [1]}


async def test_a_version_that_changes_in_the_store_does_not_change_while_it_is_used(
    mirrored: Mirrored, made: Path, bucket: Bucket, tmp_path: Path
) -> None:
    bucket.upload(write_artifact(made, "m"))
    await mirrored.look()
    first = mirrored.repository.open(ModelId("m", 1)).digest
    changed = made / "m" / "1"
    manifest = json.loads((changed / MANIFEST_FILE).read_bytes())
    seal(changed, manifest | {"git_commit": "another one"})
    bucket.upload(changed)
    mirrored.use("m/1")
    state = await mirrored.look()
    digest = hashlib.sha256((changed / MANIFEST_FILE).read_bytes()).hexdigest()
    assert state.changed == {"m/1": digest}
    assert mirrored.repository.open(ModelId("m", 1)).digest == first
    mirrored.use()
    state = await mirrored.look()
    assert state.changed == {}
    assert mirrored.repository.open(ModelId("m", 1)).digest == digest


async def test_a_lost_state_costs_no_download_and_changes_nothing_that_is_used(
    mirrored: Mirrored, made: Path, bucket: Bucket, s3: Proxy
) -> None:
    folder = write_artifact(made, "m")
    bucket.upload(folder)
    await mirrored.look()
    digest = mirrored.repository.open(ModelId("m", 1)).digest
    (mirrored.mirror.folder / STATE_FILE).unlink()
    manifest = json.loads((folder / MANIFEST_FILE).read_bytes())
    seal(folder, manifest | {"git_commit": "another one"})
    bucket.upload(folder)
    mirrored.use("m/1")
    s3.seen.clear()
    state = await mirrored.look()
    assert mirrored.repository.open(ModelId("m", 1)).digest == digest
    assert list(state.changed) == ["m/1"]
    assert s3.got("script.pt") == []


async def test_a_kill_between_a_version_and_the_state_is_noticed(
    mirrored: Mirrored, made: Path, bucket: Bucket, s3: Proxy, tmp_path: Path
) -> None:
    """The state says the digest of the version that was there before."""
    folder = write_artifact(made, "m")
    bucket.upload(folder)
    before = (await mirrored.look()).model_copy(deep=True)
    manifest = json.loads((folder / MANIFEST_FILE).read_bytes())
    seal(folder, manifest | {"git_commit": "another one"})
    bucket.upload(folder)
    after = await mirrored.look()
    mirrored.mirror.state.write(before)
    again = await Mirrored(mirrored.cache, bucket.url).look()
    assert again.versions["m/1"].digest == after.versions["m/1"].digest
    mirrored.mirror.state.write(before)
    mirrored.use("m/1")
    again = await Mirrored(mirrored.cache, bucket.url).look()
    assert again.changed == {}  # what is served is what the store has


async def test_an_upload_that_is_not_complete_waits(
    mirrored: Mirrored, made: Path, bucket: Bucket
) -> None:
    folder = write_artifact(made, "m")
    bucket.upload(folder)
    bucket.remove("m/1/script.pt")
    for _ in range(5):
        state = await mirrored.look()
    assert state.refused["m/1"].endswith("m/1/script.pt does not exist")
    assert mirrored.versions() == {}
    bucket.put("m/1/script.pt", (folder / "script.pt").read_bytes())
    await mirrored.look()
    assert mirrored.versions() == {"m": [1]}


async def test_names_and_sizes_that_are_absurd_are_refused(
    mirrored: Mirrored, made: Path, bucket: Bucket, s3: Proxy
) -> None:
    huge = write_artifact(made, "huge")
    manifest = json.loads((huge / MANIFEST_FILE).read_bytes())
    manifest["files"]["script.pt"]["bytes"] = 10**18
    seal(huge, manifest)
    bucket.upload(huge)
    moved = write_artifact(made, "moved")
    for file in moved.iterdir():
        bucket.put(f"elsewhere/7/{file.name}", file.read_bytes())
    out = write_artifact(made, "out")
    manifest = json.loads((out / MANIFEST_FILE).read_bytes())
    manifest["files"]["../../escape"] = manifest["files"]["script.pt"]
    seal(out, manifest)
    bucket.upload(out)
    bucket.put("long/1/manifest.json", b"[" + b"1," * 500_000)
    bucket.put("bad name!/1/manifest.json", b"{}")
    bucket.put("m/01/manifest.json", b"{}")
    with capture_logs() as logs:
        state = await mirrored.look()
    assert mirrored.versions() == {}
    assert "1,000,000,000,000,000,000 bytes are needed" in state.refused["huge/1"]
    assert "belongs to moved/1" in state.refused["elsewhere/7"]
    assert "manifest.json, files" in state.refused["out/1"]
    assert set(state.refused) == {"huge/1", "elsewhere/7", "out/1", "long/1"}
    assert not any("script.pt" in each.path for each in s3.seen)
    (ignored,) = (each for each in logs if each["event"] == "source_folders_ignored")
    assert ignored["names"] == "bad name!/1, m/01"


async def test_a_manifest_that_never_ends_is_not_read_to_its_end(
    mirrored: Mirrored, bucket: Bucket, s3: Proxy
) -> None:
    bucket.put("m/1/manifest.json", b" " * (MAX_MANIFEST_BYTES + 1))
    state = await mirrored.look()
    assert "at most 67,108,864 are read" in state.refused["m/1"]


async def test_more_files_than_can_be_listed_are_a_problem_of_the_store(
    mirrored: Mirrored, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.sources.listing.MAX_FILES", 2)
    for number in range(3):
        bucket.put(f"a/{number}", b"")
    assert "has too many files to be listed" in str((await mirrored.look()).problem)


async def test_what_is_not_used_goes_when_room_is_needed(
    tmp_path: Path, made: Path, s3: Proxy, bucket: Bucket
) -> None:
    first, second = (large_version(made, 4 << 20, number) for number in (1, 2))
    bucket.upload(first)
    size = sum(file.stat().st_size for file in first.iterdir())
    mirrored = Mirrored(tmp_path / "cache", bucket.url, limit=size + size // 2)
    await mirrored.look()
    bucket.upload(second)
    mirrored.use("m/1")
    state = await mirrored.look()
    assert "that TORCHLANE_SOURCE_CACHE_BYTES allows" in state.refused["m/2"]
    assert mirrored.versions() == {"m": [1]}
    mirrored.use()
    state = await mirrored.look()
    assert (state.refused, mirrored.versions()) == ({}, {"m": [2]})


async def test_two_mirrors_share_files(
    mirrored: Mirrored, tmp_path: Path, made: Path, s3: Proxy, bucket: Bucket, s3_port: int
) -> None:
    folder = write_artifact(made, "m")
    bucket.upload(folder)
    await mirrored.look()
    copy = Bucket(s3_port, f"{bucket.name}-copy")
    copy.upload(folder)
    s3.seen.clear()
    other = Mirrored(tmp_path / "cache", copy.url)
    await other.look()
    assert other.versions() == {"m": [1]}
    assert s3.got("script.pt") == []


async def test_the_limit_holds_over_all_mirrors_that_nobody_uses(
    tmp_path: Path, made: Path, s3: Proxy, s3_port: int, bucket: Bucket
) -> None:
    first, second = (large_version(made, 4 << 20, number) for number in (1, 2))
    size = sum(file.stat().st_size for file in first.iterdir())
    other = Bucket(s3_port, f"{bucket.name}-other")
    other.upload(first)
    bucket.upload(second)
    left = Mirrored(tmp_path / "cache", other.url)
    await left.look()
    (left.mirror.partials / "arrived").write_bytes(bytes(1 << 20))
    mirrored = Mirrored(tmp_path / "cache", bucket.url, limit=size + size // 2)
    state = await mirrored.look()
    assert "that TORCHLANE_SOURCE_CACHE_BYTES allows" in state.refused["m/2"]  # it is in use
    left.wants.close()
    with left.mirror.kept():
        state = await mirrored.look()
    assert list(state.refused) == ["m/2"]  # a process has it, which may be about to use it
    file = left.mirror.folder / "lock"
    file.rename(tmp_path / "lock")
    file.mkdir()  # as one of another user, it cannot be opened
    state = await mirrored.look()
    assert list(state.refused) == ["m/2"]
    file.rmdir()
    (left.mirror.repository / "m" / "stray").touch()
    state = await mirrored.look()
    assert (state.refused, mirrored.versions()) == ({}, {"m": [2]})
    assert left.versions() == {}
    assert disk_use(tmp_path / "cache") < size + size // 2
    back = Mirrored(tmp_path / "cache", other.url)
    mirrored.wants.close()
    state = await back.look()
    assert (state.refused, back.versions()) == ({}, {"m": [1]})


def disk_use(folder: Path) -> int:
    """Bytes of all files; links count once."""
    files = [file.stat() for file in folder.rglob("*") if file.is_file()]
    return sum({file.st_ino: file.st_size for file in files}.values())


async def test_versions_that_share_a_file_make_room_for_another(
    tmp_path: Path, made: Path, s3: Proxy, bucket: Bucket
) -> None:
    """The file leaves with the last of them."""
    first, third = large_version(made, 4 << 20, 1), large_version(made, 4 << 20, 3)
    shared = write_artifact(made, "m", 2)
    manifest = json.loads((shared / MANIFEST_FILE).read_bytes())
    weights = json.loads((first / MANIFEST_FILE).read_bytes())["files"]["weights.bin"]
    (shared / "weights.bin").write_bytes((first / "weights.bin").read_bytes())
    manifest["files"]["weights.bin"] = weights
    seal(shared, manifest)
    for folder in (first, shared):
        bucket.upload(folder)
    mirrored = Mirrored(tmp_path / "cache", bucket.url, "all", limit=6 << 20)
    await mirrored.look()
    assert mirrored.versions() == {"m": [2, 1]}
    bucket.upload(third)
    mirrored.policy = "latest"
    mirrored.use()
    state = await mirrored.look()
    assert (state.refused, mirrored.versions()) == ({}, {"m": [3]})


async def test_a_full_disk_keeps_what_is_there(
    mirrored: Mirrored, made: Path, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket.upload(write_artifact(made, "m", 1))
    await mirrored.look()
    bucket.upload(write_artifact(made, "m", 2))
    usage = shutil.disk_usage(mirrored.cache)
    with monkeypatch.context() as patch:
        patch.setattr("shutil.disk_usage", lambda _: usage._replace(free=1000))
        state = await mirrored.look()
    assert "has 1,000 left: make room there" in state.refused["m/2"]
    assert mirrored.versions() == {"m": [1]}
    await mirrored.look()
    assert mirrored.versions() == {"m": [2, 1]}


async def test_only_real_damage_costs_a_version(
    mirrored: Mirrored, made: Path, bucket: Bucket, s3: Proxy
) -> None:
    """A server may report a version that it cannot open for a reason of its own."""
    bucket.upload(write_artifact(made, "m"))
    await mirrored.look()
    mirrored.mirror.report_damaged(ModelId("m", 1))
    s3.seen.clear()
    await mirrored.look()
    assert mirrored.versions() == {"m": [1]}
    assert s3.got("script.pt") == []
    assert not any(mirrored.mirror.damaged.iterdir())


class Verifies:
    """Accepts one signature."""

    def verify(self, manifest: bytes, signature: bytes | None) -> str:
        if signature != b"good":
            raise Untrusted("bad signature")
        return "me"


@pytest.mark.parametrize("later", [b"bad", None])
async def test_a_signature_that_is_not_accepted_replaces_none(
    tmp_path: Path, made: Path, bucket: Bucket, s3: Proxy, later: bytes | None
) -> None:
    mirrored = Mirrored(tmp_path / "cache", bucket.url, verifier=Verifies())
    bucket.upload(write_artifact(made, "m"))
    bucket.put(f"m/1/{SIGNATURE_FILE}", b"good")
    await mirrored.look()
    assert mirrored.versions() == {"m": [1]}
    if later is None:
        bucket.remove(f"m/1/{SIGNATURE_FILE}")
    else:
        bucket.put(f"m/1/{SIGNATURE_FILE}", later)
    with capture_logs() as logs:
        await mirrored.look()
    assert "source_signature_ignored" in [each["event"] for each in logs]
    assert mirrored.versions() == {"m": [1]}
