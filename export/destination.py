"""Where artifacts go: a folder, or a store, to which finished artifacts are uploaded."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from export.errors import ExportError, UsageError
from models.manifest import MANIFEST_FILE
from models.stores.buckets import Bucket
from models.stores.errors import Exists, Missing, StoreError
from models.stores.urls import Place, StoreUrl, check_store_extra
from models.system.scratch import scratch_folder
from models.versions import version_of

CLAIM_FILE = ".claim"  # in the folder of a version while an export uploads it
MAX_FILES = 1_000_000  # that are listed to find the versions that are taken


class Destination:
    """A folder: artifacts stay where they are made.

    Attributes:
        folder: the repository to write to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def deliver(self, artifact: Path) -> str:
        """Bring a finished artifact to its place; returns the place, for people.

        Raises:
            ExportError: if that fails.
        """
        return str(artifact)

    def shown(self, path: Path) -> str:
        """A path in the repository, for people."""
        return str(path)


class _InStore(Destination):
    """A temporary repository, in which the version numbers are taken that the store has."""

    def __init__(self, folder: Path, url: StoreUrl) -> None:
        super().__init__(folder)
        self._url = url

    def shown(self, path: Path) -> str:
        return str(path).replace(str(self.folder), str(self._url))

    def deliver(self, artifact: Path) -> str:
        try:
            asyncio.run(upload(Bucket(self._url), artifact))
        except BaseException as error:
            kept = Path(tempfile.mkdtemp(prefix="torchlane-kept-")) / artifact.parent.name
            shutil.copytree(artifact, kept / artifact.name)
            where = f"the artifact is kept in {kept / artifact.name}"
            if isinstance(error, StoreError):
                raise ExportError(f"{error}; {where}") from error
            if isinstance(error, KeyboardInterrupt):
                it = self.shown(artifact)
                raise ExportError(f"interrupted; {it} may be complete, or not; {where}") from error
            error.add_note(where)
            raise
        return self.shown(artifact)


@contextlib.contextmanager
def destination(out: Place) -> Iterator[Destination]:
    """Provide the repository to write to.

    Raises:
        MissingExtra: if the packages for stores are not installed.
        UsageError: if the store cannot be read.
    """
    if isinstance(out, Path):
        yield Destination(out)
        return
    check_store_extra("--out ", out)
    with scratch_folder("torchlane-export-", Path(tempfile.gettempdir())) as folder:
        # In another process: large models are built in a fork of this one, which then must not
        # have the threads of the store's library.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            taken = pool.apply(_taken, (out,))
        if isinstance(taken, str):
            raise UsageError(taken)
        for model, version in taken:
            (folder / model / str(version)).mkdir(parents=True)
            (folder / model / str(version) / MANIFEST_FILE).touch()
        made = _InStore(folder, out)
        try:
            yield made
        except ExportError as error:
            raise type(error)(str(error).replace(str(folder), str(out))) from error


def _taken(url: StoreUrl) -> list[tuple[str, int]] | str:
    """The models and version numbers that a store has; or what is wrong with it."""
    try:
        return sorted(asyncio.run(_versions(Bucket(url))))
    except StoreError as error:
        return str(error)


async def _versions(store: Bucket) -> set[tuple[str, int]]:
    found = set()
    async for entry in store.entries(MAX_FILES):
        model, _, rest = entry.key.partition("/")
        version = version_of(rest.partition("/")[0])
        if version is not None:
            found.add((model, version))
    return found


async def upload(store: Bucket, artifact: Path) -> None:
    """Upload an artifact: the manifest last, so that it is there as a whole or not at all.

    A claim keeps others from the same number meanwhile. If the upload fails, all is removed again,
    the claim last. Where the manifest may be there, or something cannot be removed, what remains
    keeps its claim, which the next export of this number names.

    Raises:
        StoreError: if that fails.
    """
    key = f"{artifact.parent.name}/{artifact.name}"
    claim = f"{key}/{CLAIM_FILE}"
    try:
        await store.write_new(claim, b"")
    except Exists:
        raise StoreError(
            f"another export writes {store.url}/{key}, or was killed while it did: choose another "
            f"number with --version, or remove {store.url}/{claim}"
        ) from None
    uploaded = [claim]
    try:
        async for entry in store.entries(MAX_FILES, key):
            if entry.key != claim:
                raise StoreError(f"another export has written {store.url}/{key} meanwhile")
        names = await asyncio.to_thread(os.listdir, artifact)
        for name in sorted({*names} - {MANIFEST_FILE}):
            uploaded.append(f"{key}/{name}")
            await store.write(uploaded[-1], artifact / name)
        manifest = await asyncio.to_thread((artifact / MANIFEST_FILE).read_bytes)
        await _publish(store, f"{key}/{MANIFEST_FILE}", manifest, uploaded)
    finally:
        with contextlib.suppress(StoreError):  # then the claim stays
            for each in reversed(uploaded):
                await store.remove(each)


async def _publish(store: Bucket, key: str, manifest: bytes, uploaded: list[str]) -> None:
    """Write the manifest, even if the answer to that is lost.

    Args:
        store: to write to.
        key: of the manifest.
        manifest: what it contains.
        uploaded: the claim and all files; contains afterwards what is to be removed, also after
            errors: the claim alone; nothing, if it is unknown whether the manifest is there.

    Raises:
        StoreError: if it is not there, or the store does not say.
    """
    files = uploaded.copy()
    uploaded.clear()
    try:
        await store.write_new(key, manifest)
    except StoreError as error:
        try:
            there = await store.read(key, len(manifest))
        except Missing:
            uploaded += [*files, key]  # the manifest is removed first: a late write may bring it
            raise error from None
        except StoreError:
            raise error from None
        if there.data != manifest:
            raise
    uploaded.append(files[0])
