"""What a listing of a store says about versions; other files are counted and left alone."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from app.registry.model_settings import MODEL_NAME
from app.types import ModelId
from models.manifest import MANIFEST_FILE, SIGNATURE_FILE
from models.stores.base import Store
from models.system.contained import printable
from models.versions import version_of

MAX_FILES = 200_000  # in the repository; a listing of S3 has 1,000 per request


class Listed(NamedTuple):
    """A version in a store.

    Attributes:
        etag: of its manifest; None: unknown.
        signature: the ETag of its signature, "" if there is none; None: unknown.
        files: differs if the ETag of any of its files does, as far as they are listed.
    """

    etag: str | None
    signature: str | None
    files: int


class Listing(NamedTuple):
    """The versions in a store, and names of folders that look like versions but are none."""

    versions: dict[ModelId, Listed]
    ignored: frozenset[str]

    def numbers(self) -> dict[str, list[int]]:
        """Version numbers of each model, newest first."""
        found: dict[str, list[int]] = {}
        for model in sorted(self.versions, reverse=True):
            found.setdefault(model.name, []).append(model.version)
        return found


async def listing_of(store: Store) -> Listing:
    """List the versions in a store: those whose manifest is there, which export writes last.

    Raises:
        StoreError: if not all of it can be listed.
    """
    manifests: dict[ModelId, str | None] = {}
    signatures: dict[ModelId, str | None] = {}
    files: Counter[str] = Counter()  # by folder, a number that changes with its files
    ignored: set[str] = set()
    async for entry in store.entries(MAX_FILES):
        folder, _, name = entry.key.rpartition("/")
        files[folder] ^= hash((name, entry.etag))
        if name not in (MANIFEST_FILE, SIGNATURE_FILE):
            continue
        model_name, _, number = folder.partition("/")
        version = version_of(number)
        if version is None or MODEL_NAME.fullmatch(model_name) is None:
            if len(ignored) < 100:
                ignored.add(printable(folder[:200]))
            continue
        (manifests if name == MANIFEST_FILE else signatures)[ModelId(model_name, version)] = (
            entry.etag
        )
    versions = {
        model: Listed(etag, signatures.get(model, None if etag is None else ""), files[str(model)])
        for model, etag in manifests.items()
    }
    return Listing(versions, frozenset(ignored))
