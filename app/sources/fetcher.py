"""Fetches one version: its manifest is checked, its files come, and it appears in one step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from app.sources.cache import Cache, remove_folder
from app.sources.download import Download
from app.sources.mirror import Mirror
from app.types import ModelId
from models.integrity import MAX_SMALL_BYTES, Untrusted, Verifier, read_any_artifact
from models.manifest import DIGEST_FILE, MANIFEST_FILE, SIGNATURE_FILE, FileDigest
from models.stores.base import Store
from models.stores.errors import Missing
from models.system.durable import replacing
from models.system.scratch import scratch_folder

LOG = structlog.get_logger(__name__)
OWN_FILES = frozenset({MANIFEST_FILE, DIGEST_FILE, SIGNATURE_FILE})


class Refused(Exception):
    """A version cannot be mirrored as it is; the message says why."""


class Fetcher:
    """Brings versions from a store into a mirror.

    Args:
        store: contains them.
        mirror: gets them.
        cache: contains the files.
        verifier: checks signatures before anything else is read; None: nothing is checked.
    """

    def __init__(
        self, store: Store, mirror: Mirror, cache: Cache, verifier: Verifier | None
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._cache = cache
        self._verifier = verifier

    async def fetch(
        self,
        model: ModelId,
        manifest: bytes,
        make_room: Callable[[Mapping[str, FileDigest]], None],
    ) -> None:
        """Bring a version, in place of another one with its number, which nobody uses.

        Args:
            model: the version.
            manifest: its manifest in the store.
            make_room: called with the files before they come.

        Raises:
            Refused, IntegrityError: if the manifest is wrong, or not signed as it must be.
            Damaged: if a file differs from it.
            StoreError: if the store does not answer.
            OSError: if the mirror cannot be written.
        """
        began, key = time.monotonic(), str(model)
        with scratch_folder(".fetch-", self._mirror.folder) as staging:
            (staging / MANIFEST_FILE).write_bytes(manifest)
            digest_line = await self._store.read(f"{key}/{DIGEST_FILE}", MAX_SMALL_BYTES)
            (staging / DIGEST_FILE).write_bytes(digest_line.data)
            if (signature := await self._signature(key)) is not None:
                (staging / SIGNATURE_FILE).write_bytes(signature)
            files = self._check(model, staging)
            make_room(files)
            download = Download(self._store, self._cache, self._mirror.partials)
            await download.bring(key, files)
            for name, file in files.items():
                self._cache.link(file, staging / name)
            staging.chmod(0o755)
            target = self._mirror.repository / key
            remove_folder(target)
            target.parent.mkdir(exist_ok=True)
            staging.rename(target)
        LOG.info(
            "source_version_fetched",
            model=key,
            downloaded_bytes=download.nbytes,
            seconds=round(time.monotonic() - began, 1),
        )

    async def renew_signature(self, key: str) -> None:
        """Replace the signature of a version by the one in the store, or remove it.

        One that the trusted keys do not accept, or that is missing, replaces none.

        Args:
            key: MODEL/VERSION.

        Raises:
            StoreError: if the store does not answer.
            OSError: if it cannot be written.
        """
        signature, folder = await self._signature(key), self._mirror.repository / key
        if self._verifier is not None:
            try:
                self._verifier.verify((folder / MANIFEST_FILE).read_bytes(), signature)
            except Untrusted as error:
                LOG.warning("source_signature_ignored", model=key, problem=str(error))
                return
        file = folder / SIGNATURE_FILE
        if signature is None:
            file.unlink(missing_ok=True)
            return
        with replacing(file) as new:
            new.write(signature)

    async def _signature(self, key: str) -> bytes | None:
        """The signature of a version in the store; None if it has none."""
        try:
            content = await self._store.read(f"{key}/{SIGNATURE_FILE}", MAX_SMALL_BYTES)
        except Missing:
            return None
        return content.data

    def _check(self, model: ModelId, staging: Path) -> Mapping[str, FileDigest]:
        """The files that a manifest names, once its signature, digest and content are right."""
        manifest = read_any_artifact(staging, verifier=self._verifier, whole=False).manifest
        if (manifest.model, manifest.version) != (model.name, model.version):
            raise Refused(
                f"{MANIFEST_FILE} belongs to {manifest.model}/{manifest.version}; the folder in "
                "the store was copied or renamed"
            )
        if own := sorted(OWN_FILES & manifest.files.keys()):
            raise Refused(f"{MANIFEST_FILE} names {own[0]} as a file of the model")
        return manifest.files
