"""A registered model of MLflow: the version that an alias or a number means, wherever it is."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from typing import TypeVar
from urllib.parse import quote, urlsplit

from pydantic import BaseModel, ValidationError

from models.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, SIGNATURE_FILE
from models.stores.base import Content, Entry, Store
from models.stores.buckets import Bucket
from models.stores.errors import Missing, StoreError, TooLarge
from models.stores.tracking import Answer, TrackingServer
from models.stores.urls import NotAPlace, StoreUrl
from models.system.contained import printable

M = TypeVar("M", bound=BaseModel)
API, ARTIFACTS = "/api/2.0/mlflow/", "/api/2.0/mlflow-artifacts/artifacts"
MAX_ANSWER_BYTES = 16 << 20
MAX_FILES = 10_000  # of an artifact
ADVICE = "register the folder of a version that `torchlane export` wrote, as docs/sources.md shows"


class _Alias(BaseModel):
    alias: str
    version: str


class _Model(BaseModel):
    aliases: list[_Alias] = []


class _File(BaseModel):
    path: str
    is_dir: bool = False


class _Answer(BaseModel):
    """What is read of any answer."""

    registered_model: _Model = _Model()
    artifact_uri: str = ""
    files: list[_File] = []


class _Named(BaseModel):
    """What is read of a manifest."""

    model: str
    version: int


class RegisteredModel(Store):
    """See `Store`; contains one version, whose name and number are those of its manifest.

    Each listing asks anew where it is.

    Raises:
        StoreError: if MLflow's variables cannot be used.
    """

    def __init__(self, url: StoreUrl) -> None:
        super().__init__(url)
        self._server = TrackingServer(url)
        self._folder = ""
        self._files: Store | None = None

    async def entries(self, limit: int, below: str | None = None) -> AsyncIterator[Entry]:
        """The manifest, and the signature if there is one; their digests are the ETags.

        Raises:
            StoreError: see `Store.entries`; also if it is no artifact of this project.
        """
        files = self._files_at(await self._location())
        names = {entry.key async for entry in files.entries(MAX_FILES)}
        if MANIFEST_FILE not in names:
            what = "is a model in MLflow's own format" if "MLmodel" in names else "is no artifact"
            raise StoreError(f"{self.url} {what}, without a {MANIFEST_FILE}: {ADVICE}")
        for name in (MANIFEST_FILE, SIGNATURE_FILE):
            if name not in names:
                continue
            data = (await files.read(name, MAX_MANIFEST_BYTES)).data
            if name == MANIFEST_FILE:
                named = _parsed(
                    _Named, data, f"{self.url}: its {MANIFEST_FILE} is not Torchlane's: {ADVICE}"
                )
                self._folder, self._files = f"{named.model}/{named.version}", files
            yield Entry(f"{self._folder}/{name}", hashlib.sha256(data).hexdigest())

    async def read_unless(self, key: str, limit: int, etag: str | None) -> Content | None:
        files, name = self._inside(key)
        return Content((await files.read(name, limit)).data, None)

    async def read_range(self, key: str, start: int, stop: int, size: int) -> list[memoryview]:
        files, name = self._inside(key)
        return await files.read_range(name, start, stop, size)

    async def stop_reading(self) -> None:
        if self._files is not None:
            await self._files.stop_reading()

    def _inside(self, key: str) -> tuple[Store, str]:
        folder, _, name = key.rpartition("/")
        if self._files is None or folder != self._folder:
            raise Missing(f"{self.url} has no {key}")
        return self._files, name

    async def _location(self) -> str:
        """The URI of the version's files.

        Raises:
            StoreError: if there is no such model or version, or the server does not answer.
        """
        name, _, version = self.url.path.rpartition("/")
        if not name:
            name, _, alias = self.url.path.rpartition("@")
            version = await self._version_of(name, alias)
        query = {"name": name, "version": version}
        why = f"has no version {version} of the model {name}"
        return (await self._ask("model-versions/get-download-uri", query, why)).artifact_uri

    async def _version_of(self, name: str, alias: str) -> str:
        why = f"has no registered model {name}"
        answer = await self._ask("registered-models/get", {"name": name}, why)
        aliases = {each.alias: each.version for each in answer.registered_model.aliases}
        if alias not in aliases:
            there = printable(", ".join(sorted(aliases)[:20])) or "none"
            raise StoreError(f"{self.url}: the model {name} has no alias {alias}; it has: {there}")
        return aliases[alias]

    async def _ask(self, path: str, query: dict[str, str], why: str) -> _Answer:
        try:
            data = await self._server.get(API + path, query, MAX_ANSWER_BYTES)
        except Missing:
            raise StoreError(f"{self.url}: {self._server} {why}") from None
        return _parsed(_Answer, data, f"{self.url}: {self._server} does not answer as MLflow does")

    def _files_at(self, location: str) -> Store:
        """What reads the files of the version.

        Raises:
            StoreError: if they are in a place that cannot be read.
        """
        try:
            parts = urlsplit(location)
            if parts.scheme == "mlflow-artifacts" and not parts.netloc:
                return ProxiedFiles(self.url, self._server, parts.path.strip("/"))
            if parts.scheme in ("s3", "gs"):
                return Bucket(StoreUrl.parse(location))
            if parts.scheme in ("wasbs", "abfss") and parts.username and parts.hostname:
                account = os.environ.get("AZURE_STORAGE_ACCOUNT_NAME")
                if account != (needed := parts.hostname.partition(".")[0]):
                    raise StoreError(f"{self.url}: set AZURE_STORAGE_ACCOUNT_NAME={needed}")
                return Bucket(StoreUrl.parse(f"az://{parts.username}{parts.path}"))
        except (NotAPlace, ValueError):
            pass
        raise StoreError(
            f"{self.url}: its files are in {printable(location[:200])}, which cannot be read from "
            "here: have `mlflow server` pass them on (--serve-artifacts), or use a bucket"
        )


class ProxiedFiles(Store):
    """See `Store`; the files of one artifact, which the tracking server passes on.

    It may fetch a whole file from elsewhere for each request, so large ones are read by one.

    Args:
        url: for messages.
        server: has them.
        path: of the artifact.
    """

    def __init__(self, url: StoreUrl, server: TrackingServer, path: str) -> None:
        super().__init__(url)
        self._server = server
        self._path = path
        self._turn = asyncio.Lock()  # first come, first served
        self._open: tuple[str, int, Answer] | None = None  # the file, its next byte

    async def entries(self, limit: int, below: str | None = None) -> AsyncIterator[Entry]:
        """The files of the artifact, without ETags; see `Store.entries`."""
        data = await self._server.get(ARTIFACTS, {"path": self._path}, MAX_ANSWER_BYTES)
        found = _parsed(_Answer, data, f"{self.url}: {self._server} does not list files").files
        if len(found) > limit:
            raise TooLarge(f"{self.url} has too many files to be listed")
        for file in found:
            if not file.is_dir:
                yield Entry(file.path.rpartition("/")[2], None)

    async def read_unless(self, key: str, limit: int, etag: str | None) -> Content | None:
        return Content(await self._server.get(self._at(key), {}, limit), None)

    async def read_range(self, key: str, start: int, stop: int, size: int) -> list[memoryview]:
        """See `Store.read_range`; ranges of a file that follow each other are one request."""
        async with self._turn:
            if self._open is None or self._open[:2] != (key, start):
                await self.stop_reading()
                self._open = key, start, await self._server.open(self._at(key), {}, start)
            answer, self._open = self._open[2], None
            try:
                data = await answer.read(stop - start)
                if stop < size:
                    self._open = key, stop, answer
            finally:
                if self._open is None:
                    await answer.aclose()
            return [memoryview(data)]

    async def stop_reading(self) -> None:
        opened, self._open = self._open, None
        if opened is not None:
            await opened[2].aclose()

    def _at(self, key: str) -> str:
        return f"{ARTIFACTS}/{quote(self._path)}/{quote(key)}"


def _parsed(kind: type[M], data: bytes, why: str) -> M:
    """An answer, or a manifest.

    Raises:
        StoreError: if it is none, with this message.
    """
    try:
        return kind.model_validate_json(data)
    except ValidationError:
        raise StoreError(why) from None
