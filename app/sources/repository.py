"""The repository of a mirror, which also knows what could not be mirrored, and why."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from app.errors import ArtifactInvalid, VersionChanged
from app.registry.repository import (
    Artifact,
    Contents,
    HandlerArtifact,
    Repository,
    Stamp,
    other_files,
)
from app.sources.mirror import Mirror
from app.types import ModelId
from models.integrity import Verifier


class MirroredRepository(Repository):
    """Reads a mirror as a repository.

    A version that the mirror could not get is there too, and opening it says why. One that changed
    in the store is as in a folder whose files changed: the server keeps what it serves.

    Args:
        mirror: of the store.
        verifier: see `Repository`.
        uses: called with each version before its files are read.
        damaged: called with a version whose files are not as they came.
    """

    def __init__(
        self,
        mirror: Mirror,
        verifier: Verifier | None,
        uses: Callable[[ModelId], None] = lambda model: None,
        damaged: Callable[[ModelId], None] = lambda model: None,
    ) -> None:
        super().__init__(mirror.repository, verifier)
        self._mirror = mirror
        self._uses = uses
        self._damaged = damaged

    def seen(self) -> str:
        """When the store was last seen, and what is wrong with it, for people."""
        state = self._mirror.state.read()
        if state.succeeded_at is None:
            seen = "never seen"
        else:
            seen = f"last seen {max(0, round(time.time() - state.succeeded_at)):,} s ago"
        return seen if state.problem is None else f"{seen}: {state.problem}"

    def scan(self) -> Contents:
        """See `Repository.scan`; includes the versions that could not be mirrored."""
        contents = super().scan()
        for key in self._mirror.state.read().refused:
            name, _, number = key.rpartition("/")
            numbers = {*contents.versions.get(name, ()), int(number)}
            contents.versions[name] = sorted(numbers, reverse=True)
        return contents

    def stamp(self, model: ModelId) -> Stamp:
        """See `Repository.stamp`; also changes with what is known of the version in the store."""
        state = self._mirror.state.read()
        known = state.refused.get(str(model)), state.changed.get(str(model))
        said = tuple((each, 0, 0, 0) for each in known if each is not None)
        return super().stamp(model) + said

    def open_any(
        self, model: ModelId, served_digest: str | None = None, *, whole: bool = True
    ) -> Artifact | HandlerArtifact:
        """See `Repository.open_any`; a version with damaged files is fetched again."""
        self._uses(model)
        state, key = self._mirror.state.read(), str(model)
        if served_digest is not None and (digest := state.changed.get(key)) is not None:
            raise other_files(model, served_digest, digest)
        if key in state.refused and key not in state.versions:
            raise ArtifactInvalid(
                f"{model} is not here from {self._mirror.url}: {state.refused[key]}"
            )
        try:
            return super().open_any(model, served_digest, whole=whole)
        except (ArtifactInvalid, VersionChanged) as error:
            is_other = isinstance(error, VersionChanged) and error.found is not None
            if key in state.versions and not is_other:
                self._damaged(model)
            raise

    def _why_empty(self, root: Path) -> str:
        return self._mirror.state.read().why_empty(self._mirror.url)
