"""One look at a store after the other: what it has, and what of it the mirror gets and loses."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from enum import Enum, auto
from functools import partial

import structlog

from app.serving.version_policy import VersionPolicy
from app.sources.cache import Cache, NoRoom, is_full, remove_folder
from app.sources.download import Damaged
from app.sources.fetcher import Fetcher, Refused
from app.sources.listing import Listed, Listing, listing_of
from app.sources.mirror import Mirror
from app.sources.room import make_room
from app.sources.state import MirroredVersion, State
from app.sources.tries import Tries
from app.sources.wants import Wants, wants_of_all
from app.types import ModelId
from models.integrity import IntegrityError, Verifier, read_any_artifact
from models.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES, FileDigest
from models.stores.base import Content, Store
from models.stores.errors import Missing, StoreError, TooLarge

LOG = structlog.get_logger(__name__)


class _Outcome(Enum):
    THERE = auto()
    REFUSED = auto()  # as it is: the next older one may take its place
    LATER = auto()  # the store does not answer: nothing takes its place


class Looking:
    """Keeps one mirror; only the process that holds its lock has one.

    Args:
        store: the source.
        mirror: its mirror.
        cache: contains the files.
        verifier: checks signatures before anything else is read; None: nothing is checked.
        gone_after_s: a version is removed once every listing for this many seconds has lacked it.
    """

    def __init__(
        self,
        store: Store,
        mirror: Mirror,
        cache: Cache,
        verifier: Verifier | None,
        gone_after_s: float,
    ) -> None:
        self._store = store
        self._mirror = mirror
        self._cache = cache
        self._fetcher = Fetcher(store, mirror, cache, verifier)
        self._gone_after_s = gone_after_s
        self._is_first = True
        self._state = State()
        self._wants: list[Wants] = []
        self._tries = Tries()
        self._ignored: frozenset[str] = frozenset()

    async def look(self, ticket: int) -> State:
        """Look at the store once, and bring what is wanted.

        Args:
            ticket: the latest request that this look answers; a new one tries all again.

        Returns:
            the new state, which is also in the mirror.

        Raises:
            OSError: if the mirror cannot be read or written.
        """
        before = self._mirror.state.read()
        self._state = state = before.model_copy(deep=True, update={"url": str(self._store.url)})
        state.looked_at, state.problem = time.time(), None
        if ticket > before.ticket:
            self._tries.forget_all()
        state.ticket = ticket
        self._read_wants()
        self._recover()
        self._drop_damaged()
        try:
            listing = await listing_of(self._store)
            self._check_not_empty(listing)
            self._log_ignored(listing)
            self._forget_gone(listing)
            for name, numbers in listing.numbers().items():
                await self._bring_model(name, numbers, listing)
        except StoreError as error:
            state.problem = str(error)
        if state.problem is None:
            state.succeeded_at = state.looked_at
            self._clear_partials()
        self._mirror.state.write(state)
        return state

    def _check_not_empty(self, listing: Listing) -> None:
        if not listing.versions and self._state.versions:
            raise StoreError(
                f"{self._store.url} is suddenly empty: the versions that it had are kept"
            )

    def _log_ignored(self, listing: Listing) -> None:
        self._state.ignored = min(listing.ignored, default=None)
        if new := sorted(listing.ignored - self._ignored):
            LOG.warning("source_folders_ignored", names=", ".join(new[:10]), count=len(new))
        self._ignored = listing.ignored

    # What leaves the mirror.

    def _forget_gone(self, listing: Listing) -> None:
        """Remove the versions that several listings in a row have lacked."""
        state, listed = self._state, {str(model) for model in listing.versions}
        for key in [each for each in state.refused if each not in listed]:
            del state.refused[key]
        for key, version in list(state.versions.items()):
            before, version.missing_since = version.missing_since, None
            if key in listed:
                continue
            version.missing_since = state.looked_at if before is None else before
            if before is not None and state.looked_at - before >= self._gone_after_s:
                self._remove(key)
                LOG.info("source_version_removed", model=key)

    def _remove(self, key: str) -> None:
        remove_folder(self._mirror.repository / key)
        self._state.versions.pop(key, None)
        self._state.changed.pop(key, None)

    def _recover(self) -> None:
        """Bring the state in line with the mirror, after a kill or the loss of the state."""
        there, known = self._mirror.manifests(), self._state.versions
        for key in known.keys() - there.keys():  # somebody removed them
            del known[key]
        # Later only this process changes a version that is known.
        unsure = there.keys() if self._is_first else there.keys() - known.keys()
        for key in unsure:
            digest = hashlib.sha256(there[key].read_bytes()).hexdigest()
            if key not in known or known[key].digest != digest:
                known[key] = MirroredVersion(digest=digest)
        self._is_first = False

    def _drop_damaged(self) -> None:
        """Remove mirrored versions in which a server has found damaged files, and these files."""
        for report in list(self._mirror.damaged.iterdir()):
            key = report.name.replace(",", "/")
            known = self._state.versions.get(key)
            if known is not None and self._is_damaged(key, known.digest):
                self._remove(key)
                LOG.warning("source_version_damaged", model=key)
            report.unlink(missing_ok=True)

    def _is_damaged(self, key: str, digest: str) -> bool:
        """Whether a mirrored version is not as it came; its damaged files leave the cache.

        What cannot be read here, or is of another release, may well be as it came.
        """
        folder, is_damaged = self._mirror.repository / key, False
        try:
            if hashlib.sha256((folder / MANIFEST_FILE).read_bytes()).hexdigest() != digest:
                return True
            for name, file in read_any_artifact(folder, whole=False).manifest.files.items():
                with (folder / name).open("rb") as opened:
                    found = hashlib.file_digest(opened, "sha256").hexdigest()
                if found != file.sha256:
                    self._cache.drop(file)
                    is_damaged = True
        except FileNotFoundError:
            return True
        except (OSError, IntegrityError) as error:
            LOG.warning("source_version_not_checked", model=key, problem=str(error))
        return is_damaged

    def _make_room(self, coming: ModelId, files: Mapping[str, FileDigest]) -> None:
        """Make room for a version.

        Raises:
            NoRoom: if it does not fit beside what is wanted.
        """
        versions = self._state.versions
        for key in make_room(self._cache, self._mirror, (str(coming), files), versions):
            del versions[key]
            self._mirror.state.write(self._state)
            LOG.info("source_version_evicted", model=key)

    def _clear_partials(self) -> None:
        for each in self._mirror.partials.iterdir():
            each.unlink(missing_ok=True)

    # What comes into it.

    async def _bring_model(self, name: str, numbers: list[int], listing: Listing) -> None:
        """Bring the versions of a model that any process wants."""
        for wants in self._wants:
            if wants.models is not None and name not in wants.models:
                continue
            wanted, good = VersionPolicy.parse(wants.policy).wanted(name, numbers), 0
            for number in wanted.candidates:
                if good >= wanted.most or number not in numbers:
                    continue
                outcome = await self._bring(ModelId(name, number), listing)
                good += outcome is _Outcome.THERE
                if outcome is _Outcome.LATER:
                    break
        for number in numbers:
            if any(f"{name}/{number}" in wants.versions for wants in self._wants):
                await self._bring(ModelId(name, number), listing)

    async def _bring(self, model: ModelId, listing: Listing) -> _Outcome:
        """Bring a version, unless it is there; record why not."""
        key, listed = str(model), listing.versions[model]
        if self._tries.waits(model, listed):
            return _Outcome.REFUSED
        outcome = _Outcome.THERE
        try:
            await self._bring_now(model, listed)
        except (Refused, Damaged, NoRoom, IntegrityError, Missing, TooLarge) as error:
            reason, outcome = str(error), _Outcome.REFUSED
            if not isinstance(error, Missing | NoRoom):  # it may be coming, or be there
                self._tries.failed(model, listed)
        except StoreError as error:
            reason, outcome = str(error), _Outcome.LATER
            self._state.problem = self._state.problem or reason
        except FileNotFoundError:  # the same cache made room for another mirror
            reason, outcome = "its files left the cache while they came", _Outcome.LATER
        except OSError as error:
            if not is_full(error):
                raise
            reason, outcome = "the disk of the cache is full", _Outcome.REFUSED
        if outcome is _Outcome.THERE:
            self._tries.forget(model)
            self._state.refused.pop(key, None)
        elif self._state.refused.get(key) != reason and key not in self._state.versions:
            self._state.refused[key] = reason
            LOG.error("source_version_refused", model=key, problem=reason)
        return outcome

    async def _bring_now(self, model: ModelId, listed: Listed) -> None:
        """Bring a version, unless it is there.

        Raises:
            Refused, Damaged, NoRoom, IntegrityError, Missing, TooLarge: if it is not as it must be.
            StoreError: if the store does not answer.
            OSError: if the mirror cannot be written.
        """
        key, state = str(model), self._state
        known = state.versions.get(key)
        if known is None or listed.etag is None or known.etag != listed.etag:
            name, etag = f"{key}/{MANIFEST_FILE}", known.etag if known is not None else None
            content = await self._store.read_unless(name, MAX_MANIFEST_BYTES, etag)
            if content is not None:
                known = await self._take(model, content, listed, known)
        if known is not None and known.signature != listed.signature:
            await self._fetcher.renew_signature(key)
            known.signature = listed.signature

    async def _take(
        self, model: ModelId, content: Content, listed: Listed, known: MirroredVersion | None
    ) -> MirroredVersion | None:
        """Bring a version with a manifest that may be new; returns it if only its ETag was."""
        key, state = str(model), self._state
        digest = hashlib.sha256(content.data).hexdigest()
        etag = listed.etag or content.etag
        if known is not None and known.digest == digest:
            known.etag = etag
            state.changed.pop(key, None)
            return known
        if known is not None and self._is_used(key):
            state.changed[key] = digest  # a served version is its digest
            return None
        await self._fetcher.fetch(model, content.data, partial(self._make_room, model))
        version = MirroredVersion(digest=digest, etag=etag, signature=listed.signature)
        state.versions[key] = version
        state.changed.pop(key, None)
        state.refused.pop(key, None)
        self._mirror.state.write(state)  # a look may take hours, and be killed
        return None

    def _read_wants(self) -> None:
        self._wants = list(wants_of_all(self._mirror.wants))

    def _is_used(self, key: str) -> bool:
        self._read_wants()
        return any(key in wants.versions for wants in self._wants)
