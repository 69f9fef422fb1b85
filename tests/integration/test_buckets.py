"""Buckets of every kind, in emulators, do what the mirror and export need of them."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.stores.base import client_options
from models.stores.buckets import Bucket
from models.stores.errors import Exists, Missing, StoreError, TooLarge
from models.stores.urls import StoreUrl
from tests.conftest import Once
from tests.emulators import (
    ACCOUNT,
    KEY,
    account_file,
    azurite,
    fake_gcs,
    new_bucket,
    new_container,
)
from tests.s3 import Bucket as S3Bucket
from tests.s3 import Proxy

LARGE = 12 << 20  # more than a part


@pytest.fixture(scope="module")
def azure_port(once: Once, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with azurite(once, tmp_path_factory.mktemp("azurite") / "log") as port:
        yield port


@pytest.fixture(scope="module")
def google_port(once: Once, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with fake_gcs(once, tmp_path_factory.mktemp("gcs") / "log") as port:
        yield port


@pytest.fixture
def s3_url(s3: Proxy, bucket: S3Bucket) -> str:
    return bucket.url


@pytest.fixture
def az_url(azure_port: int, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", f"http://127.0.0.1:{azure_port}/{ACCOUNT}")
    name = uuid.uuid4().hex
    new_container(azure_port, name)
    return f"az://{name}/models"


@pytest.fixture
def gs_url(google_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    file = account_file(tmp_path, google_port)
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(file))
    name = uuid.uuid4().hex
    new_bucket(google_port, name)
    return f"gs://{name}/models"


@pytest.fixture(params=["s3", pytest.param("az", marks=pytest.mark.soak), "gs"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StoreUrl:
    """An empty folder in a bucket; emulators have no certificates."""
    options = client_options()
    monkeypatch.setattr(
        "models.stores.buckets.client_options", lambda: {**options, "allow_http": True}
    )
    return StoreUrl.parse(request.getfixturevalue(f"{request.param}_url"))


async def keys(store: Bucket, below: str | None = None) -> list[str]:
    return sorted([entry.key async for entry in store.entries(100, below)])


async def test_files_are_listed_below_their_folder(url: StoreUrl) -> None:
    store = Bucket(url)
    assert await keys(store) == []
    for key in ("m/1/a", "m/10/a", "other/1/a"):
        await store.write(key, b"x")
    assert await keys(store) == ["m/1/a", "m/10/a", "other/1/a"]
    assert await keys(store, "m/1") == ["m/1/a"]
    with pytest.raises(TooLarge, match="too many files to be listed"):
        [entry async for entry in store.entries(2)]
    await store.remove("m/1/a")
    await store.remove("m/1/a")
    assert await keys(store) == ["m/10/a", "other/1/a"]


async def test_a_claim_is_had_by_one(url: StoreUrl) -> None:
    store = Bucket(url)
    await store.write_new("m/1/.claim", b"mine")
    with pytest.raises(Exists, match=r"m/1/\.claim exists"):
        await store.write_new("m/1/.claim", b"theirs")
    assert (await store.read("m/1/.claim", 10)).data == b"mine"


async def test_etags_follow_the_content(url: StoreUrl) -> None:
    store = Bucket(url)
    await store.write("a", b"one")
    (first,) = [entry.etag async for entry in store.entries(1)]
    (again,) = [entry.etag async for entry in store.entries(1)]
    assert first is not None
    assert again == first
    read = await store.read("a", 10)
    if url.scheme != "gs":  # its emulator ignores the condition
        assert await store.read_unless("a", 10, read.etag) is None
    await store.write("a", b"two")
    (changed,) = [entry.etag async for entry in store.entries(1)]
    assert changed != first
    content = await store.read_unless("a", 10, read.etag)
    assert content is not None
    assert content.data == b"two"


async def test_parts_of_a_file_are_read(url: StoreUrl, tmp_path: Path) -> None:
    store, content = Bucket(url), os.urandom(LARGE)
    file = tmp_path / "large"
    file.write_bytes(content)
    await store.write("large", file)
    assert (await store.read("large", LARGE)).data == content
    part = await store.read_range("large", 5 << 20, 9 << 20, LARGE)
    assert b"".join(part) == content[5 << 20 : 9 << 20]
    with pytest.raises(TooLarge, match="at most 100 are read"):
        await store.read("large", 100)


async def test_what_is_not_there_is_missing(url: StoreUrl) -> None:
    with pytest.raises(Missing, match="nothing does not exist"):
        await Bucket(url).read("nothing", 10)
    with pytest.raises(StoreError):
        await keys(Bucket(StoreUrl(url.scheme, f"no{url.place}"[:60], url.path)))


async def test_a_panic_of_the_library_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://%zz")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with pytest.raises(
        StoreError, match=r"^s3://b/x: the store's library failed; look for line br"
    ):
        await Bucket(StoreUrl.parse("s3://b")).read("x", 100)
