"""Which versions the server of a handler's run must serve."""

from __future__ import annotations

from app.bulk.errors import BulkError
from app.errors import ArtifactInvalid
from app.registry.repository import HandlerArtifact, Repository
from app.serving.version_policy import VersionPolicy
from app.types import ModelId


def versions_for(artifact: HandlerArtifact, repository: Repository, policy: str) -> str:
    """A version policy: this handler, what it calls, and what that calls; nothing else.

    Args:
        artifact: of the handler.
        repository: has the others.
        policy: for the models that are called without a version.

    Raises:
        BulkError: if one is missing or damaged; the message says who calls it.
    """
    there = repository.scan().versions
    parsed = VersionPolicy.parse(policy)
    wanted: dict[str, set[int]] = {artifact.id.name: {artifact.id.version}}
    open_handlers = [artifact]
    while open_handlers:
        caller = open_handlers.pop()
        for called in caller.manifest.models:
            versions = there.get(called.name, [])
            candidates = parsed.wanted(called.name, versions).candidates
            version = called.version or next(iter(candidates), None)
            if version is None or version not in versions:
                has = f"its versions {', '.join(map(str, versions))}" if versions else "none"
                raise BulkError(
                    f"{caller.id} calls the model {called}, of which {repository.root} has {has}"
                )
            if version in wanted.setdefault(called.name, set()):
                continue
            wanted[called.name].add(version)
            try:
                opened = repository.open_any(ModelId(called.name, version), whole=False)
            except ArtifactInvalid as error:
                raise BulkError(f"{caller.id} calls the model {called}: {error}") from error
            if isinstance(opened, HandlerArtifact):
                open_handlers.append(opened)
    rules = [f"{name}={','.join(map(str, sorted(each)))}" for name, each in wanted.items()]
    return ";".join([*rules, "none"])
