"""The artifacts behind the served versions: a version is its digest.

While any process of a server serves a version, no process of it loads other files under its
number. Once every process has unloaded it, the number may come with other files.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from app.errors import VersionChanged
from app.registry.repository import (
    Artifact,
    HandlerArtifact,
    Repository,
    Stamp,
    other_files,
)
from app.serving.claims import Claims
from app.types import ModelId


class State(NamedTuple):
    """What decides whether a version can be loaded.

    Attributes:
        stamp: the state of its files.
        served: the digest with which a process of this server serves it, if any.
    """

    stamp: Stamp
    served: str | None


class ServedArtifacts:
    """Opens versions, and keeps to the digests that this server serves.

    All methods block.

    Args:
        repository: contains the files.
        claims: shared by the server's processes; None if there is only one.
    """

    def __init__(self, repository: Repository, claims: Claims | None = None) -> None:
        self._repository = repository
        self._claims = claims

    def open(
        self, model: ModelId, served: str | None = None, *, whole: bool = True
    ) -> Artifact | HandlerArtifact:
        """Open a version in order to serve it, until `release`.

        Args:
            model: the version.
            served: the digest with which this process serves it already.
            whole: whether to check all files, not only the manifest.

        Raises:
            ArtifactInvalid: see `Repository.open`.
            VersionChanged: if this server serves it with another digest.
        """
        artifact = self._repository.open_any(model, served or self._served(model), whole=whole)
        if self._claims is not None:
            claimed = self._claims.claim(model, artifact.digest)
            if claimed != artifact.digest:
                raise other_files(model, claimed, artifact.digest)
        return artifact

    def state(self, model: ModelId) -> State:
        """The current state of a version."""
        return State(self._repository.stamp(model), self._served(model))

    def change(self, model: ModelId, served: str) -> VersionChanged | None:
        """How a version's files differ from those that are served; None: they do not."""
        try:
            self._repository.open_any(model, served)
        except VersionChanged as change:
            return change
        return None

    def release(self, model: ModelId) -> None:
        """Stop serving a version."""
        if self._claims is not None:
            self._claims.release(model)

    def forget_dead(self, name: str, versions: Collection[int]) -> None:
        """Let other versions of a model come back with other files, if no process serves them."""
        if self._claims is not None:
            self._claims.forget_dead(name, versions)

    def _served(self, model: ModelId) -> str | None:
        return self._claims.served(model) if self._claims is not None else None
